"""A detected machine as files that a user can edit: a cluster, and a node where it is new."""

import json

import yaml

from planner.catalog.detect.merge import Machine
from planner.limits import one_line


def cluster_text(machine: Machine, node_file: str | None, command: str) -> str:
    """Return the YAML of a cluster file; comments say where each figure was seen.

    ``node_file`` is the name beside it of the node file, None for a node of the catalog.
    """
    lines = [f"# Written by `{one_line(command)}`; edit what is wrong.", "# Seen:"]
    lines += [f"#   {one_line(f'{s.what}: {s.value} ({s.where})')}" for s in machine.seen]
    lines += ["# From the catalog, told by nothing:"]
    lines += [f"#   {one_line(text)}" for text in machine.kept]
    lines += [f"# Note: {one_line(note)}" for note in machine.notes]
    node = json.dumps(node_file) if node_file else machine.node
    lines += [f"node: {node}", f"count: {machine.num_nodes}"]
    if machine.fabric:
        lines.append(f"fabric: {machine.fabric}  # by kind and rate of the ports")
    if machine.overrides:
        lines.append("overrides:")
    for override in machine.overrides:
        known = "none" if override.catalog is None else f"{override.catalog:g}"
        comment = one_line(f"{override.where}; catalog: {known}")
        lines.append(f"  {override.key}: {override.value:.6g}  # {comment}")
    return "\n".join(lines) + "\n"


def node_text(machine: Machine) -> str | None:
    """Return the YAML of the node file, None for a node of the catalog."""
    if machine.new_node is None:
        return None
    text: str = yaml.safe_dump(
        machine.new_node,
        sort_keys=False,
        default_flow_style=None,
        width=10_000,
        allow_unicode=True,
    )
    return text

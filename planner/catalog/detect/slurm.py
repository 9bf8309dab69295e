"""The nodes of a Slurm cluster that a cluster file is made of: one kind, the largest."""

from planner.catalog.detect.accelerator import accelerator_of, may_mean
from planner.catalog.detect.observation import Observation
from planner.catalog.detect.sinfo import NodeGroup, SlurmNodes
from planner.errors import InputError


def choose_group(
    nodes: SlurmNodes, hint: str | None, accelerator: str, partition: str
) -> Observation:
    """Return the largest group of nodes, of the accelerator and partition wanted if any.

    ``hint`` is the accelerator that other sources saw. Others are named in the notes.
    """
    groups = list(nodes.groups)
    if partition:
        groups = [group for group in groups if partition in group.partitions]
        if not groups:
            known = ", ".join(dict.fromkeys(p for g in nodes.groups for p in g.partitions))
            message = (
                f"no GPUs in partition {partition!r}; allowed {known or 'none, none is named'}"
            )
            raise InputError.single(nodes.where, "--partition", message)
    unnamed = [group for group in groups if accelerator_of(group.gpu) is None]
    matching = [group for group in groups if hint and may_mean(group.gpu, hint)]
    if hint and not matching and not unnamed:
        kinds = "; ".join(map(str, groups[:8]))
        key = "--accelerator" if accelerator else "GRES"
        message = f"no nodes with {hint}; there are {kinds}"
        raise InputError.single(nodes.where, key, message)
    ranked = matching or (unnamed if hint else groups)
    return _observation(nodes, ranked[0], hint, partition)


def _observation(
    nodes: SlurmNodes, group: NodeGroup, hint: str | None, partition: str
) -> Observation:
    left = [other for other in nodes.groups if other is not group]
    notes = [f"left out: {other}; choose with --accelerator or --partition" for other in left[:8]]
    if len(left) > 8:
        notes.append(f"left out: {len(left) - 8:,} more kinds of nodes")
    if len(group.partitions) > 1 and not partition:
        notes.append(f"nodes of all partitions together: {', '.join(group.partitions)}")
    notes += nodes.notes
    known = accelerator_of(group.gpu)
    return Observation(
        where=nodes.where,
        gpu=group.gpu if hint is None or known == hint else "",
        num_gpus=group.gpus_per_node,
        num_nodes=group.num_nodes,
        host_memory_mib=group.memory_mib,
        notes=tuple(notes),
    )

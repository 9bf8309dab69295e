"""Where the groups of a layout lie on the network."""

from collections.abc import Iterator

from planner.check.layout import Layout
from planner.formats.finding import Finding
from planner.units import format_count


def network_findings(layout: Layout) -> Iterator[Finding]:
    """Groups that talk often and leave the scale-up domain, and nodes that are used in part."""
    cluster, strategy, places = layout.context.cluster, layout.strategy, layout.places
    domain, size = cluster.domain.name, cluster.domain.num_accelerators
    slow = _slower(layout)
    tp, context = strategy.tp, strategy.tp * strategy.cp
    experts = strategy.etp * strategy.ep
    is_spread = layout.num_gpus > size
    is_sound = is_spread
    if is_spread and _leaves(tp, size):
        text = f"tp {tp} leaves the {domain} domain of {size} GPUs{slow}; it talks in every layer"
        yield places.finding("network.tp_in_domain", text, "tp")
        is_sound = False
    if is_sound and strategy.cp > 1 and _leaves(context, size):
        text = f"tp x cp = {tp} x {strategy.cp} leaves the {domain} domain of {size} GPUs{slow}"
        yield places.finding("network.cp_in_domain", text, "cp")
        is_sound = False
    if is_sound and strategy.ep > 1 and _leaves(experts, size):
        text = f"etp x ep = {strategy.etp} x {strategy.ep} leaves the {domain} domain of {size} "
        text += f"GPUs{slow}; experts exchange tokens in every layer"
        yield places.finding("network.ep_in_domain", text, "ep")
    per_node = cluster.node.num_accelerators
    rest = layout.num_gpus % per_node
    if layout.num_gpus > per_node and rest:
        text = f"{layout.num_gpus} GPUs are no whole number of nodes of {per_node}; {rest} left"
        yield places.finding("network.whole_nodes", text, "num_gpus", "dp", "tp", "pp")


def _leaves(span: int, size: int) -> bool:
    """Groups of neighbours that do not all lie within one domain."""
    return span > size or size % span != 0


def _slower(layout: Layout) -> str:
    """By how much the next level is slower."""
    cluster = layout.context.cluster
    outer = cluster.levels[min(cluster.num_inner_levels + 1, len(cluster.levels) - 1)]
    inner, beyond = cluster.domain.achieved_bytes_per_s, outer.achieved_bytes_per_s
    return f" (beyond it {format_count(inner / beyond)} times slower)" if inner > beyond else ""

"""The limits a layout has to keep: memory of device and host, the GPUs, what a user asks for."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.plans.machines import resized
from planner.search.explaining.conflict import Conflict, Pattern, Witness, minimal_conflict
from planner.search.explaining.feasible import Fit, first_fit
from planner.search.space.narrow import Narrowing, read_narrowing
from planner.search.space.rule import Rule
from planner.search.space.space import dimension_values
from planner.spec.strategy import KINDS, Strategy
from planner.units import format_bytes

HBM, HOST, GPUS = "HBM", "host memory", "GPUs"
NOTHING_OFFLOADED = "--forbid offload"
UNLIMITED_BYTES = 2.0**60
MORE_NODES = (4, 16, 64)
"""Times the nodes there are, where their number is no limit."""
MOST_GPUS = 2**17
"""No larger cluster is looked at, unless the one asked about is."""
_OPTIONS = ("fix", "limit", "where", "allow", "forbid")


def narrowing_of(texts: tuple[str, ...]) -> Narrowing:
    """Return what options written as in ``Narrowing.texts`` narrow."""
    given: dict[str, list[str]] = {option: [] for option in _OPTIONS}
    for text in texts:
        option, _, value = text.partition(" ")
        given[option.removeprefix("--")].append(value)
    return read_narrowing(**given)


def with_nodes(context: Context, num_nodes: int) -> Context:
    """The context on another number of the same nodes; of a part of a node, of whole ones."""
    cluster = context.cluster
    whole = cluster.node.whole or cluster.node
    return replace(context, cluster=resized(cluster, num_nodes * whole.num_accelerators))


def more_nodes(context: Context) -> tuple[int, ...]:
    """Numbers of nodes that stand for as many as one likes, ascending; never empty.

    Beside a part of a node first the whole one.
    """
    cluster = context.cluster
    factors = MORE_NODES if cluster.node.whole is None else (1, *MORE_NODES[:-1])
    possible = [factor * cluster.num_nodes for factor in factors]
    most = MOST_GPUS // (cluster.node.whole or cluster.node).num_accelerators
    return tuple(number for number in possible if number <= most) or (cluster.num_nodes,)


def with_usable(context: Context, num_bytes: float) -> Context:
    """The context with accelerators on which a layout may fill so much."""
    cluster = context.cluster
    hbm_bytes = num_bytes / (1.0 - context.margin_fraction)
    accelerator = replace(cluster.accelerator, hbm_bytes=hbm_bytes)
    node = replace(cluster.node, accelerator=accelerator)
    return replace(context, cluster=replace(cluster, node=node))


def with_host_factor(context: Context, factor: float) -> Context:
    """The context with more host memory and NVMe; what is unknown stays unknown."""
    node = context.cluster.node
    host, nvme = node.host_memory_bytes, node.nvme_bytes
    node = replace(
        node,
        host_memory_bytes=host and host * factor,
        nvme_bytes=nvme and nvme * factor,
    )
    return replace(context, cluster=replace(context.cluster, node=node))


def without_memory_limits(context: Context) -> Context:
    """The context with more memory than any layout fills."""
    host = context.cluster.node.host_memory_bytes or 1.0
    return with_host_factor(with_usable(context, UNLIMITED_BYTES), UNLIMITED_BYTES / host)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one question, by name; user options are called what the user wrote."""

    context: Context
    narrowing: Narrowing
    deadline: float | None = None
    """Of time.monotonic, after which looking for layouts gives up."""
    parts: Mapping[str, Narrowing] = field(init=False)
    """What each user option narrows by itself."""

    def __post_init__(self) -> None:
        texts = self.narrowing.limiting
        object.__setattr__(self, "parts", {text: narrowing_of((text,)) for text in texts})

    @property
    def names(self) -> tuple[str, ...]:
        """Every limit; a conflict is looked for among the first ones first."""
        return (HBM, GPUS, HOST, *self.parts)

    def conflict(self) -> Conflict[Fit] | None:
        """A minimal set of limits that no layout keeps; None where some layout keeps all.

        Raises OutOfTimeError.
        """
        return minimal_conflict(self.names, self.probe)

    def probe(self, kept: frozenset[str]) -> Witness[Fit] | None:
        """Some layout that keeps the limits named."""
        for context in self._sizes(kept):
            if HBM not in kept:
                context = with_usable(context, UNLIMITED_BYTES)
            if HOST not in kept and context.cluster.node.host_memory_bytes:
                host = context.cluster.node.host_memory_bytes
                context = with_host_factor(context, UNLIMITED_BYTES / host)
            found = first_fit(context, self._kept(context, kept), deadline=self.deadline)
            if found is not None:
                violated = self.violated(found.strategy) - kept
                return Witness(layout=found, violated=violated)
        return None

    def _sizes(self, kept: frozenset[str]) -> Iterator[Context]:
        if GPUS in kept:
            yield self.context
            return
        yield from (with_nodes(self.context, number) for number in more_nodes(self.context))

    def _kept(self, context: Context, kept: frozenset[str]) -> Narrowing:
        """The narrowing of the options kept.

        What others fix stays part of the space, and what they lift stays lifted, so that no
        layout of the narrower space is missing in the wider one.
        """
        domains = dimension_values(context, Narrowing(allowed=self.narrowing.allowed))
        values: dict[str, tuple[int, ...]] = {}
        rules: list[Rule] = []
        kinds = set(KINDS)
        for text, part in self.parts.items():
            for name, given in part.values.items():
                others = () if text in kept else domains[name]
                values[name] = tuple(sorted({*given, *others}))
            if text in kept:
                rules += part.rules
                kinds &= set(part.kinds)
        return replace(
            self.narrowing,
            values=values,
            rules=tuple(rules),
            kinds=tuple(kind for kind in KINDS if kind in kinds),
        )

    def violated(self, strategy: Strategy) -> Pattern:
        """The limits that a layout does not keep."""
        memory = estimate(self.context, strategy).memory
        used, columns = _kinds(strategy), strategy.columns()
        by_name = {name: getattr(columns, name) for name in columns.__dataclass_fields__}
        checks: dict[str, Callable[[], bool]] = {
            HBM: lambda: memory.peak_bytes <= memory.usable_bytes,
            HOST: lambda: memory.host_bytes <= memory.host_limit_bytes,
            GPUS: lambda: strategy.num_gpus <= self.context.cluster.num_accelerators,
        }
        broken = {name for name, holds in checks.items() if not holds()}
        for text, part in self.parts.items():
            legal = all(by_name[name][0] in given for name, given in part.values.items())
            legal &= all(rule.is_legal(self.context, by_name)[0] for rule in part.rules)
            if not (legal and used <= set(part.kinds)):
                broken.add(text)
        return frozenset(broken)

    def in_words(self, name: str) -> str:
        """A limit with its figure."""
        cluster, node = self.context.cluster, self.context.cluster.node
        if name == HBM:
            margin = self.context.margin_fraction
            note = f" ({format_bytes(cluster.accelerator.hbm_bytes)} less {margin:.1%} margin)"
            return f"{format_bytes(self.context.usable_bytes)} of HBM per GPU{note * bool(margin)}"
        if name == HOST:
            if not node.host_memory_bytes:
                return "host memory, which is not known of this node"
            return f"{format_bytes(node.host_memory_bytes)} of host memory per node"
        return f"{cluster.num_accelerators:,} GPUs" if name == GPUS else name


def _kinds(strategy: Strategy) -> set[str]:
    """What happens to activations in a layout."""
    counts = np.array(strategy.policy_counts)
    names = [name for name, each in zip(KINDS[1:], counts, strict=True) if each.any()]
    untouched = (np.array(strategy.layers_per_stage) > counts.sum(axis=0)).any()
    return {*names, *(["none"] if untouched else [])}

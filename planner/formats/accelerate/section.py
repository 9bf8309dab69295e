"""What the parts of an Accelerate file have in common: how one carries a strategy."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.cost.context import Context
from planner.formats.accelerate import keys
from planner.formats.decision import KEPT, Decision, Line, Table, line, wrong_precision
from planner.formats.format import Value
from planner.formats.settings import Settings, decided, whole, word
from planner.spec.strategy import Strategy

PRECISIONS = ("bf16", "fp16", "fp8", "fp32")
_WHOLE = "no"
"""Accelerate's word for fp32."""
_FP8 = "fp8_config.fp8_backend"


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """A way Accelerate runs a layout, by its ``distributed_type``."""

    title: str
    distributed_type: str
    table: Table
    environment: Callable[[Context, Strategy], dict[str, str]]
    variables: Mapping[str, str] = field(default_factory=dict)


def recomputes_all(strategy: Strategy) -> bool:
    """Every layer is recomputed in full."""
    return strategy.recompute == "full"


def num_machines(context: Context, strategy: Strategy) -> int:
    """Nodes of a plan."""
    return -(-strategy.num_gpus // context.cluster.node.num_accelerators)


def accumulation(_: Context, strategy: Strategy) -> dict[str, str]:
    """Accumulation, which the file has no key for: Accelerator reads it from here."""
    return {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(strategy.num_micro_batches)}


def others(sections: Sequence[Section], lines: Iterable[Line]) -> Decision:
    """Keys that carry decisions in some sections, not all, and that the lines do not have: they go.

    What stands in every section is its own rows' to change.
    """
    tables = [{key for row in each.table for key in row.keys} for each in sections]
    kept = {
        key for each in sections for row in each.table for key in row.off if row.off[key] is KEPT
    }
    kept |= set.intersection(*tables) | {line.key for line in lines}
    return Decision(names=(), keys=tuple(sorted(set.union(*tables) - kept)))


def top(title: str, kind: str, precisions: tuple[str, ...] = PRECISIONS) -> Table:
    """The rows of the top level, where a section of a type carries the plan."""

    def to_type(_: Context, strategy: Strategy) -> Iterator[Line]:
        is_plain = kind == "MULTI_GPU" and strategy.tp == 1
        why = "whole replicas, no section" if is_plain else f"{title} carries the plan"
        value, is_alone = "LOCAL_MACHINE", kind == "MULTI_GPU" and strategy.num_gpus == 1
        yield Line(key="compute_environment", value=value, why="no SageMaker", is_default=True)
        yield Line(key=keys.TYPE, value="NO" if is_alone else kind, why=why)

    def to_precision(context: Context, _: Strategy) -> Iterator[Line]:
        precision, why = context.job.precision, "torchao, one scale per tensor"
        value = _WHOLE if precision == "fp32" else precision
        yield Line(key=keys.PRECISION, value=value, why=f"products in {precision}")
        if precision == "fp8":
            yield Line(key=_FP8, value="AO", why=why, is_default=True)

    def to_network(context: Context, strategy: Strategy) -> Iterator[Line]:
        if num_machines(context, strategy) > 1:
            why = "ranks meet at the first node's address"
            yield Line(key="same_network", value=True, why=why, is_default=True)
        if num_machines(context, strategy) > 1 and kind == "DEEPSPEED":
            why = "every node starts its own processes"
            yield Line(key=keys.MULTINODE, value="standard", why=why, is_default=True)

    return (
        Decision(
            names=("_type",),
            keys=("compute_environment", keys.TYPE),
            to=to_type,
            of=_of_type,
            off={"compute_environment": KEPT},
        ),
        Decision(
            names=("num_gpus", "_machines"),
            keys=(keys.MACHINES, keys.PROCESSES),
            to=_to_processes,
            of=_of_processes,
        ),
        Decision(
            names=("precision",),
            keys=(keys.PRECISION, _FP8),
            to=to_precision,
            of=_of_precision,
            cannot=lambda context, _: wrong_precision(context, precisions),
            off={_FP8: KEPT},
        ),
        Decision(
            names=(),
            keys=("same_network", keys.MULTINODE),
            to=to_network,
            off={"same_network": KEPT, keys.MULTINODE: KEPT},
        ),
    )


def _of_type(settings: Settings) -> Iterator[tuple[str, Value]]:
    if keys.TYPE in settings:
        yield "_type", decided(settings, keys.TYPE, keys.type_of(settings))


def _to_processes(context: Context, strategy: Strategy) -> Iterator[Line]:
    machines, gpus = num_machines(context, strategy), strategy.num_gpus
    yield Line(key=keys.MACHINES, value=machines, why=f"{machines} node(s)")
    why = f"{gpus} accelerators in all, one process each"
    yield Line(key=keys.PROCESSES, value=gpus, why=why)


def _of_processes(settings: Settings) -> Iterator[tuple[str, Value]]:
    yield "_machines", decided(settings, keys.MACHINES, whole(settings, keys.MACHINES, 1))
    if (processes := keys.num_started(settings)) > 0:
        yield "num_gpus", decided(settings, keys.PROCESSES, processes)


def _of_precision(settings: Settings) -> Iterator[tuple[str, Value]]:
    precision = word(settings, keys.PRECISION, "").lower()
    if precision in (_WHOLE, "false"):
        yield "precision", decided(settings, keys.PRECISION, "fp32")
    elif precision in PRECISIONS:
        yield "precision", decided(settings, keys.PRECISION, precision)


def to_mesh(_: Context, strategy: Strategy) -> Iterator[Line]:
    """The mesh of a strategy; none for a single process."""
    replicas, shard = strategy.dp_replicate, strategy.dp // strategy.dp_replicate
    sizes = {
        "dp_replicate": (replicas, f"{replicas} replica(s) of the sharding group"),
        "dp_shard": (shard, f"states are split over {shard} data-parallel ranks"),
        "tp": (strategy.tp, f"weights split over {strategy.tp} rank(s), innermost in the mesh"),
        "cp": (strategy.cp, f"sequence split over {strategy.cp} rank(s)"),
    }
    for name, (size, why) in sizes.items():
        yield from line(keys.size_key(name), size, why, when=strategy.num_gpus > 1)


def of_mesh(settings: Settings) -> Iterator[tuple[str, Value]]:
    """Degrees the mesh decides; dp takes every process where none, or DeepSpeed, divides them."""
    sizes, processes = keys.sizes(settings), keys.num_started(settings)
    split = "sp" if sizes["sp"] > 1 else "cp"
    for name, key in (("tp", "tp"), ("dp_replicate", "dp_replicate"), ("cp", split)):
        if sizes[key] != 1:
            yield name, decided(settings, keys.size_key(key), sizes[key])
    if sizes["sp"] > 1:
        yield "_ulysses", decided(settings, keys.size_key("sp"), sizes["sp"])
    outside = sizes["sp"] * sizes["tp"]
    is_sharded = keys.has_mesh(settings) and keys.type_of(settings) != "DEEPSPEED"
    if sizes["sp"] > 1 and processes > 0 and processes % outside == 0:
        yield "dp", decided(settings, keys.PROCESSES, processes // outside)
    elif is_sharded or sizes["sp"] > 1:
        dp = sizes["dp_replicate"] * sizes["dp_shard"]
        yield "dp", decided(settings, keys.size_key("dp_shard"), dp)
    elif processes > 0:
        yield "dp", decided(settings, keys.PROCESSES, processes)


MESH = Decision(
    names=("tp", "cp", "dp_replicate", "dp"),
    keys=(*map(keys.size_key, keys.SIZES), f"{keys.MESH}cp_backend"),
    to=to_mesh,
    of=of_mesh,
)

"""No section at all: whole replicas (DDP), or one replica split by tensor parallelism."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.formats.accelerate import fsdp, parallelism
from planner.formats.accelerate.section import Line, Section, num_started
from planner.formats.format import Value
from planner.formats.refusals import beyond, unlike_layers, wrong_precision
from planner.formats.settings import Settings, decided
from planner.spec.strategy import Strategy

SPLIT_STAGE = 2
"""What a plan calls tensor parallelism alone: the lowest stage of this framework's traits. With
one rank per shard of the model all stages are one."""
CANNOT = {
    **fsdp.CANNOT,
    "cp": "Accelerate runs context parallelism under FSDP2 only",
    "offload": "without a section nothing is offloaded",
}


def refusals(context: Context, strategy: Strategy) -> Iterator[str]:
    """Why plain replicas, or tensor parallelism alone, cannot carry a strategy."""
    yield from wrong_precision(context, ("bf16", "fp16", "fp8"))
    yield from layout_refusals(strategy)


def layout_refusals(strategy: Strategy) -> Iterator[str]:
    """Why they cannot carry a layout, whatever the job."""
    yield from beyond(strategy, CANNOT)
    yield from unlike_layers(strategy)
    if strategy.dp_replicate not in (1, strategy.dp):
        yield f"dp_replicate {strategy.dp_replicate}: without a section nothing is sharded"
    if strategy.tp > 1 and strategy.dp > 1:
        yield f"tp {strategy.tp} with dp {strategy.dp}: replicas of a split model need FSDP2"
    elif strategy.zero_stage != (SPLIT_STAGE if strategy.tp > 1 else 0):
        yield f"zero_stage {strategy.zero_stage}: without a section nothing is sharded"


def lines(_: Context, strategy: Strategy) -> Iterator[Line]:
    """The mesh, where the model is split."""
    if strategy.tp > 1:
        yield from parallelism.lines(strategy)


def decisions(settings: Settings) -> dict[str, Value]:
    """Degrees; nothing is sharded."""
    found = parallelism.decisions(settings)
    if "dp" not in found and (processes := num_started(settings)) > 0:
        found["dp"] = decided(settings, "num_processes", processes)
    is_split = "tp" in found and found["dp"].value == 1
    stage = SPLIT_STAGE if is_split else 0
    found["zero_stage"] = decided(settings, "distributed_type", stage)
    return found


REPLICATED = Section(
    title="no section",
    distributed_type="MULTI_GPU",
    owned=(),
    refusals=refusals,
    lines=lines,
    decisions=decisions,
    environment=fsdp.environment,
)

"""The section ``fsdp_config``: FSDP2, with tensor and context parallelism beside it, or FSDP1."""

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.context import Context
from planner.formats.accelerate import parallelism
from planner.formats.accelerate.section import Line, Section, recomputes_all
from planner.formats.format import ALL, Value
from planner.formats.refusals import beyond, unlike_layers, wrong_precision
from planner.formats.settings import Settings, decided, flag, whole, word
from planner.spec.strategy import Strategy

VERSION = "fsdp_config.fsdp_version"
RESHARD = "fsdp_config.fsdp_reshard_after_forward"
STRATEGY = "fsdp_config.fsdp_sharding_strategy"
OFFLOAD = "fsdp_config.fsdp_offload_params"
WRAP = "fsdp_config.fsdp_auto_wrap_policy"
CHECKPOINTING = "fsdp_config.fsdp_activation_checkpointing"
OWNED = (VERSION, RESHARD, OFFLOAD, CHECKPOINTING)
CANNOT = {
    "pp": "ParallelismConfig trains no pipeline",
    "vpp": "ParallelismConfig trains no pipeline",
    "schedule": "ParallelismConfig trains no pipeline",
    "ep": "ParallelismConfig has no expert parallelism",
    "sequence_parallel": "transformers' tensor-parallel plans split no norms",
    "offload_percent": "offloading takes all states or none",
}
OFFLOADS = ("none", "optimizer+parameters:host")
_FSDP1_STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
_FSDP1_STAGES |= {"HYBRID_SHARD_ZERO2": 2, "1": 3, "2": 2, "3": 0, "4": 3, "5": 2}


def refusals(context: Context, strategy: Strategy) -> Iterator[str]:
    """Why FSDP2 cannot carry a strategy."""
    yield from wrong_precision(context, ("bf16", "fp16", "fp8"))
    yield from layout_refusals(strategy)


def layout_refusals(strategy: Strategy) -> Iterator[str]:
    """Why FSDP2 cannot carry a layout, whatever the job."""
    yield from beyond(strategy, CANNOT)
    yield from unlike_layers(strategy)
    if strategy.zero_stage not in (2, 3):
        given = strategy.zero_stage
        yield f"zero_stage {given}: FSDP2 keeps gathered weights (2) or frees them (3)"
    if strategy.offload not in OFFLOADS:
        yield f"offload {strategy.offload}: FSDP2 offloads parameters with their states, or nothing"
    shard = strategy.dp // strategy.dp_replicate
    if strategy.num_gpus > 1 and shard * strategy.cp == 1:
        yield f"dp_shard {shard}, cp {strategy.cp}: FSDP2 needs ranks to shard over"
    elif strategy.dp_replicate > 1 and shard == 1:
        yield f"dp_replicate {strategy.dp_replicate}: with tp or cp, dp_shard must be above 1"


def lines(_: Context, strategy: Strategy) -> Iterator[Line]:
    """What FSDP2 and the mesh are set to."""
    reshards = strategy.zero_stage == 3
    after = "freed after forward and gathered again" if reshards else "kept until backward"
    yield Line(key=VERSION, value=2, why="FSDP2 shards parameter by parameter")
    yield Line(key=RESHARD, value=reshards, why=f"zero_stage {strategy.zero_stage}: {after}")
    offloads = strategy.offload != "none"
    where = "on the host between uses" if offloads else "on the accelerators"
    yield Line(key=OFFLOAD, value=offloads, why=f"parameters, gradients and states live {where}")
    yield Line(key=WRAP, value="TRANSFORMER_BASED_WRAP", why="one unit per transformer block")
    full = recomputes_all(strategy)
    why = "every block is recomputed in backward" if full else "no block is recomputed"
    yield Line(key=CHECKPOINTING, value=full, why=why)
    yield from parallelism.lines(strategy)


def refusals_1(context: Context, strategy: Strategy) -> Iterator[str]:
    """Why FSDP1 cannot carry a strategy."""
    yield from refusals(context, strategy)
    for name in ("tp", "cp", "dp_replicate"):
        if getattr(strategy, name) > 1:
            yield f"{name} {getattr(strategy, name)}: FSDP1 has no mesh; fsdp_version 2 has"


def lines_1(_: Context, strategy: Strategy) -> Iterator[Line]:
    """What FSDP1 is set to."""
    named = "FULL_SHARD" if strategy.zero_stage == 3 else "SHARD_GRAD_OP"
    why = f"zero_stage {strategy.zero_stage}"
    yield Line(key=VERSION, value=1, why="the file is FSDP1's")
    yield Line(key=STRATEGY, value=named, why=why)
    yield Line(key=OFFLOAD, value=strategy.offload != "none", why=f"offload {strategy.offload}")
    full = recomputes_all(strategy)
    yield Line(key=CHECKPOINTING, value=full, why=f"recomputation: {strategy.recompute}")


def is_first(settings: Settings) -> bool:
    """Whether a file is FSDP1's, which Accelerate takes where no version is named."""
    return whole(settings, VERSION, 1) == 1


def decisions(settings: Settings) -> dict[str, Value]:
    """What the section and the mesh decide."""
    found = parallelism.decisions(settings)
    if "dp" not in found and (processes := whole(settings, "num_processes", -1)) > 0:
        found["dp"] = decided(settings, "num_processes", processes)
    found["zero_stage"] = _zero_stage(settings)
    if flag(settings, OFFLOAD, default=False):
        found["offload"] = decided(settings, OFFLOAD, OFFLOADS[1])
    if flag(settings, CHECKPOINTING, default=False):
        found["recompute_layers_per_stage"] = decided(settings, CHECKPOINTING, ALL)
    return found


def _zero_stage(settings: Settings) -> Value:
    if is_first(settings):
        key = STRATEGY if STRATEGY in settings or RESHARD not in settings else RESHARD
        named = word(settings, key, "FULL_SHARD").upper()
        return decided(settings, key, _FSDP1_STAGES.get(named, 3))
    return decided(settings, RESHARD, 3 if flag(settings, RESHARD, default=True) else 2)


def environment(_: Context, strategy: Strategy) -> dict[str, str]:
    """Accumulation, which the file has no key for: Accelerator reads it from here."""
    return {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(strategy.num_micro_batches)}


FSDP = Section(
    title="fsdp_config",
    distributed_type="FSDP",
    owned=OWNED,
    refusals=refusals,
    lines=lines,
    decisions=decisions,
    environment=environment,
)
FSDP1 = replace(
    FSDP,
    title="fsdp_config of FSDP1",
    owned=(VERSION, STRATEGY, OFFLOAD, CHECKPOINTING),
    refusals=refusals_1,
    lines=lines_1,
)
"""Of files that are there; new ones are for FSDP2."""

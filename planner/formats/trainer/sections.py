"""How TrainingArguments carry a strategy: FSDP2, whole replicas, or DeepSpeed."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.cost.context import Context
from planner.formats.accelerate import deepspeed, fsdp, parallelism, replicated
from planner.formats.accelerate.section import Line, Section, recomputes_all
from planner.formats.refusals import wrong_precision
from planner.spec.strategy import OFFLOAD_CODES, Strategy
from planner.spec.traits import TraitValue

SYNC_EACH_BATCH = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
OPTIMIZERS: dict[str, tuple[str, str | None]] = {
    "adam": ("adamw_torch_fused", None),
    "adam-8bit": ("adamw_torch_8bit", None),
    "adam-8bit-bitsandbytes": ("adamw_8bit", None),
    "sgd": ("sgd", None),
    "sgd-momentum": ("sgd", "momentum=0.9"),
    "lion": ("lion_32bit", None),
    "lion-8bit": ("lion_8bit", None),
    "adafactor": ("adafactor", None),
}
"""``optim`` and ``optim_args`` by the names of optimizers.yaml."""
ALIASES = {"adamw_torch": "adam", "adamw_bnb_8bit": "adam-8bit-bitsandbytes"}
ZERO = "deepspeed.zero_optimization."
STAGE, OPTIMIZER, PARAM = (
    ZERO + name for name in ("stage", "offload_optimizer.device", "offload_param.device")
)
AUTO = (
    "deepspeed.train_micro_batch_size_per_gpu",
    "deepspeed.gradient_accumulation_steps",
    "deepspeed.train_batch_size",
    "deepspeed.bf16.enabled",
    "deepspeed.fp16.enabled",
)
FSDP_KEYS = (
    "fsdp_config.version",
    "fsdp_config.reshard_after_forward",
    "fsdp_config.cpu_offload",
    "fsdp_config.activation_checkpointing",
)
CHECKPOINTING = "activation_checkpointing"
MESH = "parallelism_config"


SUPPORT: Mapping[str, Mapping[str, TraitValue]] = {
    "accelerate": {"tp": False, "cp": False, "hybrid_sharding": False},
    "deepspeed": {
        **deepspeed.SUPPORT,
        "offload": tuple(code for code in OFFLOAD_CODES if "nvme" not in code),
    },
}
"""By framework what the arguments can say of it: a mesh reaches it in the environment only."""


def problems(context: Context) -> Iterator[str]:
    """What the arguments cannot say whatever the layout: precision, optimizer, profile."""
    yield from deepspeed.problems(context)
    yield from wrong_precision(context, ("bf16", "fp16"))
    if context.traits.optimizer.name not in OPTIMIZERS:
        yield f"optimizer {context.traits.optimizer.name}: optim has no name for it"


def _fsdp_refusals(context: Context, strategy: Strategy) -> Iterator[str]:
    yield from fsdp.layout_refusals(strategy)
    yield from problems(context)


def _replicated_refusals(context: Context, strategy: Strategy) -> Iterator[str]:
    yield from replicated.layout_refusals(strategy)
    yield from problems(context)
    if strategy.tp > 1:
        yield f"tp {strategy.tp}: the arguments shard over every rank, or over none"


def _deepspeed_refusals(context: Context, strategy: Strategy) -> Iterator[str]:
    yield from deepspeed.layout_refusals(strategy)
    yield from problems(context)
    if "nvme" in strategy.offload:
        yield f"offload {strategy.offload}: the path is not the plan's to know"


def _fsdp_lines(_: Context, strategy: Strategy) -> Iterator[Line]:
    reshards, full = strategy.zero_stage == 3, recomputes_all(strategy)
    after = "freed after forward and gathered again" if reshards else "kept until backward"
    yield Line(key="fsdp", value=True, why="fsdp_config carries the plan")
    yield Line(key=FSDP_KEYS[0], value=2, why="FSDP2 shards parameter by parameter")
    yield Line(key=FSDP_KEYS[1], value=reshards, why=f"zero_stage {strategy.zero_stage}: {after}")
    yield Line(
        key=FSDP_KEYS[2], value=strategy.offload != "none", why=f"offload {strategy.offload}"
    )
    yield Line(key=FSDP_KEYS[3], value=full, why=f"recomputation: {strategy.recompute}")
    key = "fsdp_config.auto_wrap_policy"
    yield Line(key=key, value="TRANSFORMER_BASED_WRAP", why="one unit per transformer block")


def _checkpointing(strategy: Strategy) -> Line:
    why = f"recomputation: {strategy.recompute}"
    return Line(key=CHECKPOINTING, value=recomputes_all(strategy), why=why)


def _replicated_lines(_: Context, strategy: Strategy) -> Iterator[Line]:
    yield _checkpointing(strategy)


def _deepspeed_lines(_: Context, strategy: Strategy) -> Iterator[Line]:
    yield _checkpointing(strategy)
    optimizer, parameters = deepspeed.DEVICES[strategy.offload]
    for key in (*AUTO, "deepspeed.gradient_clipping"):
        yield Line(key=key, value="auto", why="Trainer fills it in from its own arguments")
    yield Line(key=STAGE, value=strategy.zero_stage, why=f"zero_stage {strategy.zero_stage}")
    yield Line(key=OPTIMIZER, value=optimizer, why=f"offload {strategy.offload}")
    yield Line(key=PARAM, value=parameters, why=f"offload {strategy.offload}")


def mesh(_: Context, strategy: Strategy) -> dict[str, str]:
    """Variables that ParallelismConfig reads; none where every rank shards alike."""
    if max(strategy.tp, strategy.cp, strategy.dp_replicate) == 1:
        return {}
    sizes = {
        line.key.removeprefix(parallelism.PREFIX): line for line in parallelism.lines(strategy)
    }
    named = {f"PARALLELISM_CONFIG_{name.upper()}": str(each.value) for name, each in sizes.items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **named}


FSDP: Section = replace(
    fsdp.FSDP,
    owned=("fsdp", *FSDP_KEYS),
    refusals=_fsdp_refusals,
    lines=_fsdp_lines,
    environment=mesh,
)
REPLICATED: Section = replace(
    replicated.REPLICATED,
    owned=(CHECKPOINTING,),
    refusals=_replicated_refusals,
    lines=_replicated_lines,
    environment=mesh,
)
DEEPSPEED: Section = replace(
    deepspeed.DEEPSPEED,
    title="deepspeed",
    owned=("deepspeed", CHECKPOINTING, STAGE, OPTIMIZER, PARAM, *AUTO),
    refusals=_deepspeed_refusals,
    lines=_deepspeed_lines,
    environment=mesh,
)
SECTIONS = (FSDP, REPLICATED, DEEPSPEED)

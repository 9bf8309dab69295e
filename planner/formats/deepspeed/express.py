"""What of a strategy DeepSpeed cannot express, each with its reason."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.spec.strategy import PLACEMENT_NAMES, Strategy

OPTIMIZER_TYPES = {
    "adam": "AdamW",
    "adam-bf16": "AdamW",
    "sgd": "SGD",
    "sgd-momentum": "SGD",
    "lion": "Lion",
    "adafactor": "Adafactor",
    "muon": "Muon",
}
UNTESTED = ("sgd", "sgd-momentum", "adafactor")
"""Optimizers that ZeRO takes only with zero_allow_untested_optimizer."""
ADAMS = ("adam", "adam-bf16")


def reasons(context: Context, strategy: Strategy) -> list[str]:
    """Every reason why no DeepSpeed file can hold the strategy; empty where one can."""
    return [
        *_pipeline(strategy),
        *_other_axes(strategy),
        *_attention(context, strategy),
        *_states(context, strategy),
        *_partition_groups(context, strategy),
        *problems(context),
    ]


def _pipeline(strategy: Strategy) -> Iterator[str]:
    if strategy.vpp > 1:
        yield f"vpp {strategy.vpp}: DeepSpeed's pipeline engine runs one chunk per stage"
    if strategy.schedule != "1f1b":
        yield f"schedule {strategy.schedule}: DeepSpeed's pipeline engine runs 1f1b"
    if strategy.pp > 1 and strategy.zero_stage > 1:
        yield f"zero_stage {strategy.zero_stage} with pp {strategy.pp}: allowed are 0 and 1"
    if strategy.pp > 1 and strategy.cp > 1:
        yield f"cp {strategy.cp} with pp {strategy.pp}: its pipeline knows no sequence groups"
    if strategy.placement != PLACEMENT_NAMES[0]:
        yield f"placement {strategy.placement}: DeepSpeed's grid is {PLACEMENT_NAMES[0]}"


def _other_axes(strategy: Strategy) -> Iterator[str]:
    if strategy.sequence_parallel:
        yield "sequence_parallel: AutoTP does not split norms and residuals"
    if strategy.tp > 1 and strategy.cp > 1:
        yield f"cp {strategy.cp} with tp {strategy.tp}: Ulysses and AutoTP exclude each other"
    if strategy.ep > 1 and strategy.pp * strategy.tp * strategy.cp > 1:
        yield f"ep {strategy.ep} with tp, pp or cp: AutoEP is written alone only"
    if strategy.etp != strategy.tp:
        yield f"etp {strategy.etp} with tp {strategy.tp}: AutoTP splits experts like other layers"
    if strategy.dp_replicate > 1:
        yield f"dp_replicate {strategy.dp_replicate}: DeepSpeed shards over all of dp"
    if any(strategy.offloaded_layers_per_stage):
        yield "offloaded_layers_per_stage: no key sends saved activations of layers to the host"


def _attention(context: Context, strategy: Strategy) -> Iterator[str]:
    heads = context.model.num_kv_heads
    if strategy.pp == 1 and heads % strategy.tp:
        yield f"tp {strategy.tp}: AutoTP splits attention along the {heads} key-value heads"
    if context.model.num_heads % strategy.cp:
        yield f"cp {strategy.cp}: Ulysses splits the {context.model.num_heads} heads"


def _states(context: Context, strategy: Strategy) -> Iterator[str]:
    stage, offload = strategy.zero_stage, strategy.offload
    if offload != "none" and stage == 0:
        yield f"offload {offload} with zero_stage 0: offload needs a sharded optimizer"
    if "parameters" in offload and stage != 3:
        yield f"offload {offload} with zero_stage {stage}: offload_param needs stage 3"
    if "nvme" in offload and stage != 3:
        yield f"offload {offload} with zero_stage {stage}: below 3, NVMe silently means host memory"
    if strategy.offload_percent < 100 and offload != "none":
        if stage != 3:
            yield f"offload_percent {strategy.offload_percent} with zero_stage {stage}: needs 3"
        if context.traits.optimizer.name not in ADAMS:
            yield f"offload_percent {strategy.offload_percent}: a ratio needs Adam"


def _partition_groups(context: Context, strategy: Strategy) -> Iterator[str]:
    ranks = secondary_ranks(context, strategy)
    if ranks > 1 and strategy.tp * strategy.cp > 1:
        yield f"zero_hpz_partition_size {ranks} with tp or cp: its groups are neighbouring ranks"
    if ranks > 1 and strategy.num_gpus % ranks:
        yield f"zero_hpz_partition_size {ranks}: must divide {strategy.num_gpus} GPUs"


def problems(context: Context) -> Iterator[str]:
    """What no file can hold whatever the layout: precision and optimizer."""
    precision, optimizer = context.job.precision, context.traits.optimizer.name
    if precision not in ("bf16", "fp16"):
        yield f"precision {precision}: DeepSpeed's file knows bf16 and fp16"
    if optimizer not in OPTIMIZER_TYPES:
        yield f"optimizer {optimizer}: allowed are {', '.join(OPTIMIZER_TYPES)}"
    if optimizer == "adam-bf16" and precision != "bf16":
        yield f"optimizer adam-bf16 with precision {precision}: it needs bf16"


def secondary_ranks(context: Context, strategy: Strategy) -> int:
    """Ranks that share a secondary copy of the weights (ZeRO++); 1: none."""
    if strategy.zero_stage != 3 or not context.traits.states.zero3_secondary_weight_bytes:
        return 1
    return min(context.cluster.node.num_accelerators, strategy.num_gpus)

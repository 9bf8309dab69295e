"""The decision table: every decision of a strategy as Megatron options, each with its reason.

Megatron-Bridge is told the same decisions under other names.
"""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.megatron.choice import Choice, chosen
from planner.formats.megatron.interpret import FSDP_STAGES
from planner.formats.megatron.layout import even_chunks, layout_text, uniform_block
from planner.schedules.interleaved import chunk_layers
from planner.spec.strategy import PLACEMENT_NAMES, Strategy

PRECISIONS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "fp8_block": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "fp4": (("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
OPTIMIZERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "adam": (("--optimizer", "adam"),),
    "adam-bf16": (
        ("--optimizer", "adam"),
        ("--use-precision-aware-optimizer",),
        ("--exp-avg-dtype", "bf16"),
        ("--exp-avg-sq-dtype", "bf16"),
    ),
    "sgd": (("--optimizer", "sgd"), ("--sgd-momentum", "0")),
    "sgd-momentum": (("--optimizer", "sgd"), ("--sgd-momentum", "0.9")),
    "lion": (("--optimizer", "lion"),),
    "muon": (("--optimizer", "muon"),),
}
LAYER_WISE = ("lion", "muon")
"""Optimizers that share out whole tensors under --use-distributed-optimizer."""
SHARDED: Mapping[int, str] = {
    1: "optimizer states (ZeRO 1)",
    2: "optimizer states and gradients (ZeRO 2)",
    3: "optimizer states, gradients and weights (ZeRO 3)",
}
FSDP_STRATEGIES = {stage: name for name, stage in FSDP_STAGES.items()}
"""Megatron-FSDP's name of each ZeRO stage; plans use it from stage 2 on."""
FSDP_CHECKPOINTS = ("--ckpt-format", "fsdp_dtensor")
OFFLOADS = ("none", "optimizer:host")


def chunks_of_strategy(strategy: Strategy) -> tuple[int, ...]:
    """Layers of every model chunk from embedding to head."""
    if strategy.vpp == 1:
        return strategy.layers_per_stage
    return chunk_layers(strategy.layers_per_stage, strategy.vpp)


def selected_modules(context: Context, strategy: Strategy) -> tuple[str, ...]:
    """What selective recomputation repeats."""
    named = strategy.recompute_modules
    return context.traits.recompute.selected if named is None else named


def decision_choices(context: Context, strategy: Strategy) -> Iterator[Choice]:
    """Every option that carries a decision; the strategy must be expressible."""
    yield from _degrees(strategy)
    yield from _pipeline(strategy)
    yield from _batch(context, strategy)
    yield from _recompute(context, strategy)
    yield from _states(context, strategy)
    yield from _words(PRECISIONS[context.job.precision], f"planned in {context.job.precision}")


def _words(options: tuple[tuple[str, ...], ...], why: str) -> Iterator[Choice]:
    return (chosen(name, *words, why=why) for name, *words in options)


def _degrees(strategy: Strategy) -> Iterator[Choice]:
    why = f"every layer is split over {strategy.tp} ranks"
    yield chosen("--tensor-model-parallel-size", strategy.tp, why=why)
    if strategy.sequence_parallel:
        why = "norms and residuals are split over the tensor-parallel ranks too"
        yield chosen("--sequence-parallel", why=why)
    if strategy.cp > 1:
        why = f"every sequence is split over {strategy.cp} ranks"
        yield chosen("--context-parallel-size", strategy.cp, why=why)
    if strategy.ep > 1:
        why = f"experts are shared out over {strategy.ep} ranks"
        yield chosen("--expert-model-parallel-size", strategy.ep, why=why)
    if strategy.etp != strategy.tp:
        why = "experts are whole" if strategy.etp == 1 else f"experts are split {strategy.etp} ways"
        yield chosen("--expert-tensor-parallel-size", strategy.etp, why=why)
    if strategy.placement != PLACEMENT_NAMES[0]:
        why = "neighbouring ranks hold pipeline stages, data-parallel ranks are further apart"
        yield chosen("--use-tp-pp-dp-mapping", why=why)


def _pipeline(strategy: Strategy) -> Iterator[Choice]:
    why = f"layers are split into {strategy.pp} pipeline stages"
    yield chosen("--pipeline-model-parallel-size", strategy.pp, why=why)
    if strategy.pp == 1:
        return
    chunks = chunks_of_strategy(strategy)
    even = even_chunks(sum(chunks), strategy.pp, strategy.vpp)
    if chunks != even:
        why = "layers per stage, from embedding (E) to loss (L): " + ", ".join(
            map(str, strategy.layers_per_stage)
        )
        yield chosen("--pipeline-model-parallel-layout", layout_text(chunks), why=why)
    elif strategy.vpp > 1:
        why = f"interleaved 1F1B: each stage holds {strategy.vpp} chunks of {chunks[0]} layers"
        yield chosen("--num-layers-per-virtual-pipeline-stage", chunks[0], why=why)


def _batch(context: Context, strategy: Strategy) -> Iterator[Choice]:
    job = context.job
    why = f"{strategy.num_micro_batches} micro-batches per iteration and replica"
    yield chosen("--micro-batch-size", strategy.micro_batch, why=why)
    why = f"shared out over {strategy.dp} data-parallel replicas"
    yield chosen("--global-batch-size", job.global_batch, why=why)
    yield chosen("--seq-length", job.seq_len, why="tokens per sequence, as planned")


def _recompute(context: Context, strategy: Strategy) -> Iterator[Choice]:
    selective, full, offloaded = strategy.policy_counts
    if any(selective):
        modules = selected_modules(context, strategy)
        why = "the cheap, large activations are recomputed in backward"
        yield chosen("--recompute-granularity", "selective", why=why)
        yield chosen("--recompute-modules", *modules, why=why)
    if any(full):
        is_all = full == strategy.layers_per_stage
        chunks = chunks_of_strategy(strategy)
        size = 1 if is_all else uniform_block(chunks, full)
        why = f"layers recomputed in full, per stage: {', '.join(map(str, full))}"
        yield chosen("--recompute-granularity", "full", why=why)
        yield chosen("--recompute-method", "uniform" if is_all else "block", why=why)
        why = "layers per recomputed unit" if is_all else "of every model chunk, as many layers"
        yield chosen("--recompute-num-layers", size, why=why)
    if any(offloaded):
        why = "layers whose saved activations go to the host"
        yield chosen("--cpu-offloading-num-layers", offloaded[0], why=why)


def _states(context: Context, strategy: Strategy) -> Iterator[Choice]:
    optimizer = context.traits.optimizer.name
    yield from _words(OPTIMIZERS[optimizer], f"planned with optimizer {optimizer}")
    if strategy.zero_stage:
        why = f"sharded over the data-parallel ranks: {SHARDED[strategy.zero_stage]}"
        yield chosen("--use-distributed-optimizer", why=why)
    if strategy.zero_stage > 1:
        why = f"ZeRO {strategy.zero_stage} is Megatron-FSDP"
        yield chosen("--use-megatron-fsdp", why=why)
        sharding = FSDP_STRATEGIES[strategy.zero_stage]
        yield chosen("--data-parallel-sharding-strategy", sharding, why=why)
        yield chosen(*FSDP_CHECKPOINTS, why="the checkpoints Megatron-FSDP has")
    if strategy.zero_stage == 3:
        why = "no rank holds the whole model, not even at the start"
        yield chosen("--init-model-with-meta-device", why=why)
    if strategy.dp_replicate > 1:
        why = f"the sharding group is replicated {strategy.dp_replicate} times"
        yield chosen("--num-distributed-optimizer-instances", strategy.dp_replicate, why=why)
    if strategy.offload != "none":
        why = f"{strategy.offload_percent} % of the optimizer's states live on the host"
        yield chosen("--optimizer-cpu-offload", why=why)
        fraction = f"{strategy.offload_percent / 100:g}"
        yield chosen("--optimizer-offload-fraction", fraction, why=why)
        if optimizer == "adam":
            why = "Megatron offloads the optimizer only together with it"
            yield chosen("--use-precision-aware-optimizer", why=why)

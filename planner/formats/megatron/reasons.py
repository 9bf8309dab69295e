"""Why Megatron-LM cannot express a strategy: every reason, each by name."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.megatron.layout import uniform_block
from planner.formats.megatron.runtime import exchanges_beside_batches
from planner.formats.megatron.shape import shape_reasons
from planner.formats.megatron.table import (
    LAYER_WISE,
    OFFLOADS,
    OPTIMIZERS,
    chunks_of_strategy,
    selected_modules,
)
from planner.spec.strategy import Strategy

SCHEDULE = "1f1b"


def refuse(title: str, reasons: Iterator[str]) -> None:
    """Raise ExpressError with every reason; nothing where there is none."""
    found = list(reasons)
    if found:
        raise ExpressError("\n".join([f"{title} cannot express this plan:", *found]))


def problems(context: Context) -> Iterator[str]:
    """What no option of Megatron-LM expresses whatever the layout: the model, the optimizer."""
    yield from shape_reasons(context)
    yield from optimizer_reasons(context)


def reasons(context: Context, strategy: Strategy) -> Iterator[str]:
    """Every part of a plan that no option of Megatron-LM expresses."""
    yield from problems(context)
    yield from layout_reasons(context, strategy)


def optimizer_reasons(context: Context) -> Iterator[str]:
    """An optimizer that no option names."""
    name = context.traits.optimizer.name
    if name not in OPTIMIZERS:
        yield f"optimizer: {name}; allowed are {', '.join(OPTIMIZERS)}"


def layout_reasons(context: Context, strategy: Strategy) -> Iterator[str]:
    """Every decision of a legal strategy that no option expresses, whatever the model's shape."""
    numbers = list(_numbers(context, strategy))
    if numbers:
        yield from numbers
        return
    if strategy.schedule != SCHEDULE:
        yield f"schedule: {strategy.schedule}; Megatron-LM runs {SCHEDULE}, with and without chunks"
    if strategy.zero_stage > 1 and strategy.pp > 1:
        given = f"{strategy.zero_stage} with pp {strategy.pp}"
        yield f"zero_stage: {given}; Megatron-FSDP has no stages"
    if strategy.offload not in OFFLOADS:
        yield f"offload: {strategy.offload}; allowed are {', '.join(OFFLOADS)}"
    yield from _optimizer(context, strategy)
    yield from _recompute(context, strategy)
    yield from _activations(strategy)
    yield from _mixture(context, strategy)
    yield from _overlap(context, strategy)


def _numbers(context: Context, strategy: Strategy) -> Iterator[str]:
    """Numbers that contradict each other, which no search makes."""
    layers, counts = strategy.layers_per_stage, strategy.policy_counts
    if any(len(each) != strategy.pp for each in (layers, *counts)):
        yield f"layers_per_stage: {list(layers)} and policies need {strategy.pp} numbers each"
    if sum(layers) != context.model.num_blocks:
        yield f"layers_per_stage: {list(layers)} do not add up to {context.model.num_blocks}"
    batch = strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    if batch != context.job.global_batch:
        yield f"global_batch: {context.job.global_batch}; the strategy makes {batch}"


def _optimizer(context: Context, strategy: Strategy) -> Iterator[str]:
    name = context.traits.optimizer.name
    if strategy.offload != "none" and not name.startswith("adam"):
        yield f"offload: {strategy.offload} with optimizer {name}; only adam can be offloaded"
    if strategy.dp_replicate > 1 and name in LAYER_WISE:
        yield f"dp_replicate: {strategy.dp_replicate} with optimizer {name}; it has no instances"


def _recompute(context: Context, strategy: Strategy) -> Iterator[str]:
    selective, full, _ = strategy.policy_counts
    if any(selective) and any(full):
        yield "recomputation: some layers in full, others selectively; one policy holds everywhere"
    elif any(selective) and selective != strategy.layers_per_stage:
        yield (
            f"selective_layers_per_stage: {list(selective)} of {list(strategy.layers_per_stage)}; "
            "selective recomputation takes all layers"
        )
    elif any(full) and full != strategy.layers_per_stage:
        chunks = chunks_of_strategy(strategy)
        if uniform_block(chunks, full) is None:
            yield (
                f"recompute_layers_per_stage: {list(full)}; --recompute-num-layers is one number "
                f"for every chunk, and chunks hold {list(chunks)}"
            )
    if any(selective) and not selected_modules(context, strategy):
        yield "recompute_modules: none; selective recomputation needs at least one"


def _activations(strategy: Strategy) -> Iterator[str]:
    selective, full, offloaded = strategy.policy_counts
    if not any(offloaded):
        return
    if any(selective) or any(full):
        yield "offloaded_layers_per_stage: beside recomputation; Megatron-LM does one or the other"
    if strategy.pp > 1:
        yield "offloaded_layers_per_stage: with pipeline stages; only without"
    if offloaded == strategy.layers_per_stage:
        yield f"offloaded_layers_per_stage: all {sum(offloaded)} layers; one must stay"


def _mixture(context: Context, strategy: Strategy) -> Iterator[str]:
    moe = context.model.moe
    if moe is None:
        return
    if strategy.tp > 1 and not strategy.sequence_parallel:
        yield "sequence_parallel: off; a mixture with tensor parallelism needs it in training"
    if moe.expert_bias and strategy.etp > 1:
        yield f"etp: {strategy.etp} with biases in experts, which are not split"


def _overlap(context: Context, strategy: Strategy) -> Iterator[str]:
    overlap = context.traits.overlap
    batches = exchanges_beside_batches(context, strategy)
    if batches and any(strategy.policy_counts[1]):
        yield "recompute_layers_per_stage: beside overlapped expert exchange, which forbids it"
    if batches and any(strategy.policy_counts[0]) and "moe" in selected_modules(context, strategy):
        yield "recompute_modules: moe, beside overlapped expert exchange, which forbids it"
    if batches and strategy.pp > 1 and strategy.vpp == 1:
        yield "vpp: 1 with stages and overlapped expert exchange, which needs chunks"
    if overlap.pipeline_p2p_overlap == "none" and strategy.vpp > 1 and strategy.pp == 2:
        yield "pp: 2 with chunks; without overlapped transfers interleaving needs 3 stages"

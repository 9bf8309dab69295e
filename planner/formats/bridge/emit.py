"""Writes a plan as recipe overrides, one a line; what a recipe may set is always stated."""

import shlex
from collections.abc import Iterator

from planner.cost.context import Context
from planner.formats.bridge.keys import LAYOUT, OPTIONS, PRECISION, PRECISIONS, VIRTUAL
from planner.formats.format import Decided, Emitted, OutputFile
from planner.formats.megatron.choice import Choice
from planner.formats.megatron.reasons import layout_reasons, optimizer_reasons, refuse
from planner.formats.megatron.runtime import (
    environment,
    exchange_choices,
    exchanges_beside_batches,
)
from planner.formats.megatron.table import FSDP_STRATEGIES, decision_choices
from planner.spec.strategy import PLACEMENT_NAMES, Strategy

TITLE = "Megatron-Bridge"
FILE_NAME = "bridge.overrides"
VARIABLES = {
    "TRAIN_SCRIPT": "Megatron-Bridge's scripts/training/run_recipe.py",
    "RECIPE": "the recipe of the model, such as llama3_8b_pretrain_config",
}
_NEUTRAL = {
    "--context-parallel-size": "1",
    "--expert-model-parallel-size": "1",
    "--num-distributed-optimizer-instances": "1",
    "--data-parallel-sharding-strategy": FSDP_STRATEGIES[0],
    "--cpu-offloading-num-layers": "0",
    "--optimizer-offload-fraction": "1",
    "--sgd-momentum": "0.9",
}
_FLAGS = (
    "--sequence-parallel",
    "--use-tp-pp-dp-mapping",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--use-distributed-optimizer",
    "--use-megatron-fsdp",
    "--init-model-with-meta-device",
    "--optimizer-cpu-offload",
    "--use-precision-aware-optimizer",
    "--overlap-moe-expert-parallel-comm",
    "--delay-wgrad-compute",
)


def reasons(context: Context, strategy: Strategy) -> Iterator[str]:
    """Every decision that no override expresses."""
    yield from layout_reasons(context, strategy)
    yield from problems(context)
    states = context.traits.states
    if strategy.zero_stage > 1 and (states.zero2_gradient_bytes or states.gradient_bytes) != 2:
        yield "gradient_bytes: 4 under Megatron-FSDP; overrides cannot name its data types"
    if strategy.zero_stage > 1 and strategy.placement != PLACEMENT_NAMES[0]:
        yield f"placement: {strategy.placement} under Megatron-FSDP, which takes the usual order"


def problems(context: Context) -> Iterator[str]:
    """What no override expresses whatever the layout: precision and optimizer."""
    precision, states = context.job.precision, context.traits.states
    yield from optimizer_reasons(context)
    if precision not in PRECISIONS:
        yield f"precision: {precision}; allowed are {', '.join(PRECISIONS)}"
    if precision == "fp16" and (states.gradient_bytes, states.gradient_reduce_bytes) != (2, 2):
        given = f"planned with {states.gradient_bytes:g} and {states.gradient_reduce_bytes:g}"
        yield (
            f"precision: fp16; {PRECISIONS[precision]} holds and reduces gradients in 2 bytes, "
            f"{given}; --set traits.states.gradient_bytes=2 and gradient_reduce_bytes=2 plan for it"
        )
    if context.traits.optimizer.name == "adam-bf16":
        yield "optimizer: adam-bf16; overrides cannot name the data types of its states"


def overrides(context: Context, strategy: Strategy) -> list[tuple[str, str, str]]:
    """Key, value and reason of every override; raises ExpressError with every reason."""
    refuse(TITLE, reasons(context, strategy))
    stated = [*decision_choices(context, strategy), *exchange_choices(context, strategy)]
    choices = {choice.option: choice for choice in stated}
    found = [
        (key, *_stated(choices.get(option), option, key, strategy))
        for key, option in OPTIONS.items()
        if not key.startswith(_MODEL_SHAPE) and (option not in _BESIDE or option in choices)
    ]
    why = f"planned in {context.job.precision}"
    found.append((PRECISION, PRECISIONS[context.job.precision], why))
    if strategy.zero_stage > 1:
        beside = exchanges_beside_batches(context, strategy)
        found += [(*each, "") for each in _fully_sharded(strategy, is_double=not beside)]
    if any(strategy.offloaded_layers_per_stage):
        why = "saved activations go to the host, weights do not"
        found += [("model.cpu_offloading", "true", why)]
        found += [("model.cpu_offloading_weights", "false", why)]
    return found


_BESIDE = ("--ckpt-format", "--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute")
"""Options that are stated only where a plan needs them."""


def _fully_sharded(strategy: Strategy, *, is_double: bool) -> Iterator[tuple[str, str]]:
    """What recipes set beside Megatron-FSDP: megatron/bridge/perf_recipes/llama/gb200/llama3.py."""
    yield "ddp.fsdp_double_buffer", str(strategy.zero_stage == 3 and is_double).lower()
    yield "ddp.average_in_collective", "false"
    yield "ddp.keep_fp8_transpose_cache", "false"
    yield "model.gradient_accumulation_fusion", "false"


_MODEL_SHAPE = (
    "model.num_layers",
    "model.hidden_size",
    "model.ffn_hidden_size",
    "model.num_attention_heads",
    "model.num_moe_experts",
)


def _stated(choice: Choice | None, option: str, key: str, strategy: Strategy) -> tuple[str, str]:
    if key == VIRTUAL:
        is_one = strategy.vpp == 1
        return "null" if is_one else str(strategy.vpp), "" if is_one else "chunks per stage"
    if key == "model.expert_tensor_parallel_size":
        why = choice.why if choice else "experts are split as the other layers are"
        return str(strategy.etp), why
    if option in _FLAGS:
        return "true" if choice else "false", choice.why if choice else ""
    if choice is None:
        return _NEUTRAL.get(option, "null"), ""
    if key == "model.recompute_modules":
        return f"[{','.join(choice.words)}]", choice.why
    value = choice.words[0]
    return f"'{value}'" if key == LAYOUT else value, choice.why


def emit(context: Context, strategy: Strategy) -> Emitted:
    """The overrides of a plan; raises ExpressError with every reason."""
    found = overrides(context, strategy)
    words = [f"{key}={value}" for key, value, _ in found]
    return Emitted(
        files=(OutputFile(name=FILE_NAME, text="".join(f"{shlex.quote(w)}\n" for w in words)),),
        command=("${TRAIN_SCRIPT}", "--recipe", "${RECIPE}", *words),
        environment=environment(context, strategy),
        variables=VARIABLES,
        decided=tuple(Decided(key=key, value=value, why=why) for key, value, why in found if why),
    )

"""Writes a plan as recipe overrides, one a line; what a recipe may set is always stated."""

import shlex
from collections.abc import Iterator

from planner.cost.context import Context
from planner.frameworks.bridge.keys import LAYOUT, OPTIONS, PRECISION, PRECISIONS, VIRTUAL
from planner.frameworks.format import Decided, Emitted, OutputFile
from planner.frameworks.megatron.choice import Choice
from planner.frameworks.megatron.reasons import layout_reasons, refuse
from planner.frameworks.megatron.runtime import environment
from planner.frameworks.megatron.table import decision_choices
from planner.spec.strategy import Strategy

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
    "--optimizer-cpu-offload",
    "--use-precision-aware-optimizer",
)


def reasons(context: Context, strategy: Strategy) -> Iterator[str]:
    """Every decision that no override expresses."""
    yield from layout_reasons(context, strategy)
    if context.job.precision not in PRECISIONS:
        yield f"precision: {context.job.precision}; allowed are {', '.join(PRECISIONS)}"
    if context.traits.optimizer.name == "adam-bf16":
        yield "optimizer: adam-bf16; overrides cannot name the data types of its states"


def overrides(context: Context, strategy: Strategy) -> list[tuple[str, str, str]]:
    """Key, value and reason of every override; raises ExpressError with every reason."""
    refuse(TITLE, reasons(context, strategy))
    choices = {choice.option: choice for choice in decision_choices(context, strategy)}
    found = [
        (key, *_stated(choices.get(option), option, key, strategy))
        for key, option in OPTIONS.items()
        if not key.startswith(_MODEL_SHAPE)
    ]
    why = f"planned in {context.job.precision}"
    return [*found, (PRECISION, PRECISIONS[context.job.precision], why)]


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
        return str(strategy.tp), "experts are split as the other layers are"
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
    if any(strategy.offloaded_layers_per_stage):
        found.append(("model.cpu_offloading", "true", "saved activations go to the host"))
    words = [f"{key}={value}" for key, value, _ in found]
    return Emitted(
        files=(OutputFile(name=FILE_NAME, text="".join(f"{shlex.quote(w)}\n" for w in words)),),
        command=("${TRAIN_SCRIPT}", "--recipe", "${RECIPE}", *words),
        environment=environment(context, strategy),
        variables=VARIABLES,
        decided=tuple(Decided(key=key, value=value, why=why) for key, value, why in found if why),
    )

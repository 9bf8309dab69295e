"""An actor under Megatron: its keys as the options of Megatron-LM that say the same.

Sources: verl/trainer/config/engine/megatron.yaml, verl/utils/megatron_utils.py.
"""

from collections.abc import Iterator

from planner.formats.format import Value
from planner.formats.megatron.options import load_options, typed
from planner.formats.megatron.yaml_config import ALIASES
from planner.formats.settings import Settings, as_flag

SECTIONS = ("actor_rollout_ref.actor.megatron", "engine")
"""Of reinforcement learning, and of fine-tuning."""
_OPTIMIZER = ("actor_rollout_ref.actor.optim.override_optimizer_config", "optim")
_NAMES = {**ALIASES, "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank"}
SIZES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("virtual_pipeline_model_parallel_size", "sequence_parallel", "use_distributed_optimizer"),
)
_TRANSFORMER = (
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    "pipeline_model_parallel_layout",
)
_STATES = (
    *("optimizer_cpu_offload", "optimizer_offload_fraction"),
    "use_precision_aware_optimizer",
)


def option_of(name: str) -> str:
    """Megatron's option for a field."""
    return "--" + _NAMES.get(name, name).replace("_", "-")


def keys(section: str) -> dict[str, str]:
    """Options by the key of a section that says the same."""
    found = {f"{section}.{name}": option_of(name) for name in SIZES}
    inner = f"{section}.override_transformer_config"
    found |= {f"{inner}.{name}": option_of(name) for name in _TRANSFORMER}
    return found | {f"{head}.{name}": option_of(name) for head in _OPTIMIZER for name in _STATES}


def as_options(settings: Settings, section: str) -> dict[str, Value]:
    """The settings by Megatron's options; verl's defaults beside Megatron's stand in line 0."""
    found = dict(_usual(section))
    for key, option in keys(section).items():
        if key in settings:
            found[option] = _typed(option, settings[key])
    tensor = found.get("--tensor-model-parallel-size")
    if tensor is None or tensor.value in (None, 1):
        found.pop("--sequence-parallel", None)
    return {option: each for option, each in found.items() if each.value is not None}


def _usual(section: str) -> Iterator[tuple[str, Value]]:
    """Flags that verl sets where nothing is said: bf16, sequence and optimizer sharded."""
    for name in ("sequence_parallel", "use_distributed_optimizer"):
        yield option_of(name), Value(value=True, key=f"{section}.{name}")
    yield "--bf16", Value(value=True, key=f"{section}.dtype")


def _typed(option: str, each: Value) -> Value:
    """The value as the option has it; None: as without the option. A wrong one is none."""
    known = load_options()[option]
    if not known.takes_values:
        return Value(value=as_flag(each.value) or None, key=each.key, line=each.line)
    value = each.value
    if value is None:
        return each
    text = str(value).strip("[]").replace(" ", "").replace('"', "").replace("'", "")
    try:
        found = typed(known, text.split(",") if known.nargs else [text])
    except ValueError:
        found = None
    return Value(value=found, key=each.key, line=each.line)

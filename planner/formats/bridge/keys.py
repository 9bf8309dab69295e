"""Keys of Megatron-Bridge's configuration and the Megatron options that say the same.

Sources: Megatron-Bridge docs/megatron-lm-to-megatron-bridge.md, training/mixed_precision.py;
ConfigContainer with ``model`` a TransformerConfig of Megatron-Core. Of the part ``peft``, beside
which matrices adapters stand and of what rank: megatron/bridge/peft/lora.py.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from planner.formats.decision import which
from planner.formats.format import Located
from planner.formats.megatron.options import MTP, attributes, load_options, typed
from planner.formats.megatron.states import BF16_GRADIENTS
from planner.formats.megatron.states import FP32_GRADIENTS as ACCUMULATED
from planner.formats.megatron.states import PRECISIONS as WORDS
from planner.formats.settings import as_whole
from planner.spec.training import MAX_RANK, TARGETS, Target, Training

VIRTUAL = "model.virtual_pipeline_model_parallel_size"
LAYOUT = "model.pipeline_model_parallel_layout"
PRECISION = "mixed_precision"
# Stands in a configuration of mixed precision; ``ddp.grad_reduce_in_fp32`` is set from it.
FP32_GRADIENTS = "mixed_precision.grad_reduce_in_fp32"
# Stands among the settings where the command names a recipe, which sets what nothing overrides.
NAMED = "--recipe"
# Modules of Megatron's layers by what they project.
NAMES: Mapping[str, tuple[Target, ...]] = {
    "linear_qkv": ("q", "k", "v"),
    "linear_proj": ("o",),
    "linear_fc1": ("gate", "up"),
    "linear_fc2": ("down",),
}
PEFT, RANK, MODULES, DROPOUT = "peft", "peft.dim", "peft.target_modules", "peft.dropout"
SPECS = "dataset.offline_packing_specs"
CLASS = "megatron.bridge.peft.lora.LoRA"
NULL = ("null", "none", "")
# An override: its key, the text of its value, and why; without a reason it is not told.
Override: TypeAlias = tuple[str, str, str]
# Switches of LoRA that plans do not price.
UNPRICED = {
    "peft.a2a_experimental": "other collectives of adapters",
    "peft.sequence_parallel_input_regather": "an adapter's input is gathered twice",
    "peft.exclude_modules": "adapters of all modules but some",
}
# Those that decide something; of several for one option messages name the first.
KEYS = """
model.tensor_model_parallel_size model.sequence_parallel model.context_parallel_size
model.expert_model_parallel_size model.expert_tensor_parallel_size dist.use_tp_pp_dp_mapping
model.pipeline_model_parallel_size model.virtual_pipeline_model_parallel_size
model.mtp_num_layers
model.pipeline_model_parallel_layout model.num_layers_in_first_pipeline_stage
model.num_layers_in_last_pipeline_stage model.account_for_embedding_in_pipeline_split
model.account_for_loss_in_pipeline_split train.micro_batch_size train.global_batch_size
model.seq_length dataset.seq_length model.recompute_granularity model.recompute_method
model.recompute_num_layers model.recompute_modules model.cpu_offloading_num_layers
optimizer.optimizer optimizer.sgd_momentum optimizer.use_distributed_optimizer
ddp.use_distributed_optimizer dist.use_megatron_fsdp ddp.use_megatron_fsdp
ddp.data_parallel_sharding_strategy checkpoint.ckpt_format model.init_model_with_meta_device
ddp.num_distributed_optimizer_instances optimizer.optimizer_cpu_offload
optimizer.optimizer_offload_fraction optimizer.use_precision_aware_optimizer
comm_overlap.overlap_moe_expert_parallel_comm comm_overlap.delay_wgrad_compute
model.moe_expert_capacity_factor model.moe_pad_expert_input_to_capacity
model.num_layers model.hidden_size model.ffn_hidden_size model.num_attention_heads
model.num_moe_experts
"""
# What Megatron-LM's arguments call a field of the model; all others as Bridge does.
_NAMES = {
    "num_moe_experts": "num_experts",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}


def option_of(key: str) -> str:
    """Return the name that Megatron-LM's option for a key would have."""
    attribute = key.rpartition(".")[2]
    return "--" + _NAMES.get(attribute, attribute).replace("_", "-")


# Where several keys say the same, the last one in a file counts.
OPTIONS: Mapping[str, str] = {key: option_of(key) for key in KEYS.split()}
_KEYS = {option: key for key, option in reversed(list(OPTIONS.items()))}
# Names of mixed precision by precision; training/mixed_precision.py has none for fp4.
PRECISIONS: Mapping[str, str] = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "fp8_block": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
}
GROUPS = (
    "rng rerun_state_machine train validation model optimizer ddp scheduler dataset logger "
    "tokenizer checkpoint dist ft straggler nvrx_straggler profiling peft comm_overlap "
    "mixed_precision inprocess_restart tensor_inspect"
)
# Fields that only Bridge's own models have.
MODELS = (
    "share_embeddings_and_output_weights seq_len_interpolation_factor should_pad_vocab "
    "scatter_embedding_sequence_parallel parallel_output rope_scaling transformer_layer_spec "
    "hf_model_id"
)


def is_known(key: str) -> bool:
    """Return True if a key may be in Bridge's configuration, as far as it can be known."""
    group, _, attribute = key.partition(".")
    if group not in GROUPS.split():
        return False
    if key in OPTIONS or group != "model" or not attribute:
        return True
    name = attribute.partition(".")[0]
    return name in attributes() or name in MODELS.split()


def spelled(text: str) -> str:
    """A text about Megatron's options in Bridge's keys, where it has one."""
    return re.sub(r"--[a-z0-9-]+", lambda found: _KEYS.get(found[0], found[0]), text)


def switch(text: str) -> bool:
    """True or false; ValueError says that it is neither."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false; given {text[:60]!r}")
    return text.lower() == "true"


def option_value(key: str, text: str) -> object:
    """The value of the Megatron option a key stands for; None: as without it.

    Recipes train multi-token prediction where nothing is said: null is none of it.
    """
    option = load_options()[OPTIONS[key]]
    text = text.strip("'\"")
    if text.lower() in ("null", "none", ""):
        return 0 if OPTIONS[key] == MTP else None
    if not option.takes_values:
        return switch(text) or None
    words = [text]
    if option.nargs:
        words = text.strip("[]").replace(" ", "").split(",")
    return typed(option, words)


def as_options(settings: Mapping[str, Located]) -> dict[str, Located]:
    """The settings of a file by Megatron's options, which take a layout or a number of chunks.

    Those without a value are a recipe's, or a variable's, and not known.
    """
    found = {OPTIONS[key]: each for key, each in settings.items() if key in OPTIONS}
    found |= translated(settings)
    if LAYOUT in settings and settings[LAYOUT].value is not None:
        found.pop(OPTIONS[VIRTUAL], None)
    return found


def translated(settings: Mapping[str, Located]) -> dict[str, Located]:
    """The settings of a file by Megatron's options, each with the file's own key."""
    known = {key: each for key, each in settings.items() if each.value is not None}
    found = {OPTIONS[key]: each for key, each in known.items() if key in OPTIONS}
    place, fp32 = known.get(PRECISION), known.get(FP32_GRADIENTS)
    for precision, name in PRECISIONS.items():
        if place is not None and place.value == name:
            for option, value in WORDS[precision].items():
                found[option] = replace(place, value=value)
    if fp32 is not None:
        found[ACCUMULATED if fp32.value else BF16_GRADIENTS] = replace(fp32, value=True)
    if groups := settings.get("model.num_query_groups"):
        found["--num-query-groups"] = groups
        found["--group-query-attention"] = replace(groups, value=True)
    return found


def adapter_value(key: str, text: str) -> object:
    """Return what an override of ``peft`` sets; raise ValueError with what is wrong with it."""
    text = text.strip("'\"")
    if key == RANK:
        rank = as_whole(text)
        if rank is None or not 1 <= rank <= MAX_RANK:
            raise ValueError(f"must be a whole number from 1 to {MAX_RANK:,}; given {text[:60]!r}")
        return rank
    if key == MODULES:
        words = text.strip("[]").replace(" ", "").split(",")
        return tuple(word for word in words if word)
    return text


def read_adapters(recipe: str, settings: Mapping[str, Located]) -> tuple[Training | None, str]:
    """Return what overrides of a recipe train, and why plans do not price it, where they do not.

    None where nothing speaks of adapters.
    """
    given = {key: each.value for key, each in settings.items() if key.startswith(PEFT)}
    is_off = str(given.pop(PEFT, "given")).lower() in NULL
    if is_off or not (given or "_peft_" in recipe):
        return None, ""
    rank, modules = given.get(RANK), given.get(MODULES)
    named = modules if isinstance(modules, tuple) else ()
    kind = str(given.get("peft._target_", CLASS))
    refused = {f"peft._target_ {kind[:80]}: plans price {CLASS}": kind != CLASS}
    for key, what in UNPRICED.items():
        switch = str(given.get(key, "false")).lower()
        refused[f"{key}: {what}, which plans do not price"] = switch not in ("false", "[]", *NULL)
    for name in named:
        unknown = f"{MODULES}: unknown target {name[:60]!r}; plans price {', '.join(NAMES)}"
        refused[unknown] = name not in NAMES
    unpriced = next(which(refused), "")
    if not unpriced and isinstance(rank, int) and isinstance(modules, tuple):
        chosen = {target for name in modules for target in NAMES[name]}
        targets = tuple(target for target in TARGETS if target in chosen)
        training = Training(
            mode="lora",
            rank=rank,
            targets=targets,
        )
        return training, ""
    lacking = " and ".join(key for key in (RANK, MODULES) if key not in given)
    return None, unpriced or f"adapters are trained, and {lacking} left to the recipe"

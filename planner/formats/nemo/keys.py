"""Keys of NeMo's YAML and the options of Megatron-LM that say the same.

Sources: NeMo 1.23 and 2.0, nemo/collections/nlp/models/language_modeling/megatron_base_model.py
(build_transformer_config) and megatron_gpt_model.py, whose defaults differ from Megatron-LM's.
"""

import re
from collections.abc import Iterator, Mapping

from planner.formats.format import Value
from planner.formats.megatron.options import load_options, typed
from planner.formats.settings import Settings, as_flag, flag, given, whole, word

NAME = "nemo"
DEVICES, NODES, PRECISION = "trainer.devices", "trainer.num_nodes", "trainer.precision"
O2, CORE, ENGINE = "model.megatron_amp_O2", "model.mcore_gpt", "model.transformer_engine"
FLASH, FSDP, FP8 = "model.use_flash_attention", "model.fsdp", "model.fp8"
OPTIMIZER, REDUCED = "model.optim.name", "model.optim.grad_sync_dtype"
GROUPS, ADAPTERS = "model.num_query_groups", "model.peft.peft_scheme"
APEX, OF_CORE = "distributed_fused_adam", "mcore_distributed_optim"
SHARDED = (APEX, OF_CORE)
"""Names of ``optim`` that split the optimizer's states over data-parallel ranks."""
OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys((*SHARDED, "fused_adam", "megatron_fused_adam", "adam", "adamw"), "adam"),
    "sgd": "sgd",
}
DISTRIBUTED = "--use-distributed-optimizer"
_SIZES: Mapping[str, str] = {
    "tensor_model_parallel_size": "--tensor-model-parallel-size",
    "pipeline_model_parallel_size": "--pipeline-model-parallel-size",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "context_parallel_size": "--context-parallel-size",
    "expert_model_parallel_size": "--expert-model-parallel-size",
    "micro_batch_size": "--micro-batch-size",
    "global_batch_size": "--global-batch-size",
    "encoder_seq_length": "--seq-length",
    "sequence_parallel": "--sequence-parallel",
    "activations_checkpoint_granularity": "--recompute-granularity",
    "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers",
}
_MODEL: Mapping[str, str] = {
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "ffn_hidden_size": "--ffn-hidden-size",
    "kv_channels": "--kv-channels",
    "num_query_groups": "--num-query-groups",
    "max_position_embeddings": "--max-position-embeddings",
    "override_vocab_size": "--vocab-size",
    "qkv_bias": "--add-qkv-bias",
    "num_moe_experts": "--num-experts",
    "moe_router_topk": "--moe-router-topk",
    "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    "moe_expert_capacity_factor": "--moe-expert-capacity-factor",
    "moe_pad_expert_input_to_capacity": "--moe-pad-expert-input-to-capacity",
}
OPTIONS: Mapping[str, str] = {f"model.{k}": each for k, each in {**_SIZES, **_MODEL}.items()}
"""Options by the key that says the same, in Megatron-LM's values."""
CARRIED: Mapping[str, str] = {option: f"model.{key}" for key, option in _SIZES.items()}
"""Keys of decisions by option."""
_NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
_ACTIVATIONS = {"swiglu": "--swiglu", "squared-relu": "--squared-relu"}
_HALF = {"bf16": "--bf16", "bf16-mixed": "--bf16", "16": "--fp16", "16-mixed": "--fp16"}


def option_value(key: str, value: object) -> object:
    """The value of the option that a key stands for, None as without it; ValueError says why not.

    One chunk per stage is none.
    """
    option = load_options()[OPTIONS[key]]
    if value is None or (key.endswith("virtual_pipeline_model_parallel_size") and value == 1):
        return None
    if option.takes_values:
        text = str(value)
        return typed(option, [text.removesuffix(".0") if isinstance(value, float) else text])
    switch = as_flag(value)
    if switch is None:
        raise ValueError(f"must be true or false; given {str(value)[:60]!r}")
    return switch or None


def as_options(settings: Settings, unknown: frozenset[str] = frozenset()) -> dict[str, Value]:
    """The settings by Megatron's options, each with the file's own key; None: not known."""
    found = {
        OPTIONS[key]: each
        for key, each in settings.items()
        if key in OPTIONS and (each.value is not None or key in unknown)
    }
    found |= dict(_stated(settings))
    if whole(found, "--tensor-model-parallel-size", 1) == 1:
        found.pop("--sequence-parallel", None)
    return found


def _stated(settings: Settings) -> Iterator[tuple[str, Value]]:
    """What is said otherwise than by one option with the same value."""
    precision = word(settings, PRECISION)
    if precision in _HALF:
        yield _HALF[precision], _at(settings, PRECISION, value=True)
    if flag(settings, FP8):
        kind = "e4m3" if flag(settings, "model.fp8_e4m3") else "hybrid"
        yield "--fp8-format", _at(settings, FP8, kind)
    name = word(settings, OPTIMIZER, "fused_adam")
    if name in OPTIMIZERS:
        yield "--optimizer", _at(settings, OPTIMIZER, OPTIMIZERS[name])
    if name in SHARDED:
        yield DISTRIBUTED, _at(settings, OPTIMIZER, value=True)
        if word(settings, REDUCED, "fp32") == "bf16":
            yield "--grad-reduce-in-bf16", _at(settings, REDUCED, value=True)
    if "model.num_layers" in settings:
        yield from _described(settings)


def _described(settings: Settings) -> Iterator[tuple[str, Value]]:
    """The model's kind."""
    if given(settings, "model.ffn_hidden_size") is None and whole(settings, "model.hidden_size", 0):
        usual = 4 * whole(settings, "model.hidden_size", 0)
        yield "--ffn-hidden-size", _at(settings, "model.ffn_hidden_size", usual)
    norm = word(settings, "model.normalization", "layernorm").lower()
    yield "--normalization", _at(settings, "model.normalization", _NORMS.get(norm, "LayerNorm"))
    activation = activation_of(settings)
    if activation in _ACTIVATIONS:
        yield _ACTIVATIONS[activation], _at(settings, "model.activation", value=True)
    if given(settings, GROUPS) is not None:
        yield "--group-query-attention", _at(settings, GROUPS, value=True)
    if not flag(settings, "model.bias", default=True):
        yield "--disable-bias-linear", _at(settings, "model.bias", value=True)
    tied = "model.share_embeddings_and_output_weights"
    if not flag(settings, tied, default=True):
        yield "--untie-embeddings-and-output-weights", _at(settings, tied, value=True)
    position = "model.position_embedding_type"
    kind = word(settings, position, "learned_absolute")
    yield "--position-embedding-type", _at(settings, position, kind)
    kind = "model.tokenizer.type"
    if word(settings, "model.tokenizer.library") == "megatron" and given(settings, kind):
        yield "--tokenizer-type", _at(settings, kind, word(settings, kind))


def activation_of(settings: Settings) -> str:
    """The activation; fast ones are fused, and the same."""
    return word(settings, "model.activation", "gelu").lower().removeprefix("fast-")


def _at(settings: Settings, key: str, value: object) -> Value:
    found = settings.get(key)
    return Value(value=value, key=found.key if found else key, line=found.line if found else 0)


def spelled(text: str) -> str:
    """A text about Megatron's options in NeMo's keys, where it has one."""
    keys = {option: key for key, option in OPTIONS.items()}
    return re.sub(r"--[a-z0-9-]+", lambda found: keys.get(found[0], found[0]), text)

"""What NeMo refuses when a job starts, and rules of Megatron that its keys can break."""

from collections.abc import Mapping

from planner.formats.format import FormatRule, Value, World
from planner.formats.megatron.rules import RULES as OF_MEGATRON
from planner.formats.megatron.translated import translated
from planner.formats.nemo.keys import (
    APEX,
    CORE,
    FP8,
    FSDP,
    GROUPS,
    O2,
    OPTIMIZER,
    PRECISION,
    SHARDED,
    as_options,
    spelled,
)
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, flag, given, whole, word

_OWN = Rules()
_MODELS = "nemo/collections/nlp/models/language_modeling"
_GPT = f"{_MODELS}/megatron_gpt_model.py"
_BASE = f"{_MODELS}/megatron_base_model.py"
_CHUNKS = "model.virtual_pipeline_model_parallel_size"
_EXPERTS = "model.expert_model_parallel_size"
SHARED = (
    "degrees_divide_processes",
    "expert_degrees_divide_processes",
    "tp_divides_heads",
    "tp_fits_kv_heads",
    "pp_divides_layers",
    "chunks_divide_stage",
    "chunks_need_stages",
    "micro_batches_fill_chunks",
    "batch_divides",
    "cp_divides_sequence",
    "ep_divides_experts",
    "full_recompute_is_complete",
)


@_OWN(f"{_GPT} MegatronGPTModel.__init__")
def chunks_need_o2(settings: Settings, _: World) -> Said:
    """Virtual stages need main parameters beside those of 16 bits."""
    if whole(settings, _CHUNKS, 1) > 1 and not flag(settings, O2):
        yield _CHUNKS, f"given {whole(settings, _CHUNKS, 1)} without {O2} true; null, or both"


@_OWN(f"{_GPT} MegatronGPTModel.__init__")
def experts_need_o2(settings: Settings, _: World) -> Said:
    """Expert parallelism needs main parameters beside those of 16 bits."""
    if whole(settings, _EXPERTS, 1) > 1 and not flag(settings, O2):
        yield _EXPERTS, f"given {whole(settings, _EXPERTS, 1)} without {O2} true; 1, or both"


@_OWN(f"{_GPT} MegatronGPTModel.__init__")
def experts_need_megatron_s_optimizer(settings: Settings, _: World) -> Said:
    """Apex's distributed optimizer knows no expert parallelism."""
    if whole(settings, _EXPERTS, 1) > 1 and word(settings, OPTIMIZER) == APEX:
        text = f"given {APEX} with {_EXPERTS} {whole(settings, _EXPERTS, 1)}"
        yield OPTIMIZER, f"{text}; mcore_distributed_optim"


@_OWN(f"{_BASE} configure_optimizers")
def fp16_is_without_o2(settings: Settings, _: World) -> Said:
    """Main parameters beside fp16 need an optimizer that is distributed."""
    is_half = word(settings, PRECISION) in ("16", "16-mixed")
    if is_half and flag(settings, O2) and word(settings, OPTIMIZER, "fused_adam") not in SHARDED:
        yield O2, f"given true with {PRECISION} {word(settings, PRECISION)}; false, or bf16"


@_OWN(f"{_BASE} setup_optimization")
def o2_has_one_gradient_buffer(settings: Settings, _: World) -> Said:
    """A distributed optimizer beside main parameters takes gradients from one buffer."""
    key = "model.optim.contiguous_grad_buffer"
    is_off = given(settings, key) is False
    if is_off and flag(settings, O2) and word(settings, OPTIMIZER) in SHARDED:
        yield key, f"given false with {O2} true; true"


@_OWN(f"{_GPT} build_transformer_config")
def fp8_has_a_format(settings: Settings, _: World) -> Said:
    """Training in 8 bits says in which."""
    formats = ("model.fp8_e4m3", "model.fp8_hybrid")
    if flag(settings, FP8) and flag(settings, CORE) and not any(flag(settings, k) for k in formats):
        yield FP8, f"given true with neither {formats[0]} nor {formats[1]} true; one of them"


@_OWN(f"{_BASE} _validate_and_override_config")
def fsdp_is_without_fp8(settings: Settings, _: World) -> Said:
    """Torch's FSDP trains in 16 bits."""
    if flag(settings, FSDP) and flag(settings, FP8):
        yield FP8, f"given true with {FSDP} true; false"


@_OWN(f"{_GPT} model_provider_func")
def grouped_queries_need_megatron_core(settings: Settings, _: World) -> Said:
    """NeMo's own layers have as many keys as queries."""
    groups, heads = given(settings, GROUPS), given(settings, "model.num_attention_heads")
    is_own = CORE in settings and not flag(settings, CORE)
    if is_own and groups is not None and heads is not None and groups != heads:
        yield GROUPS, f"given {groups} with {CORE} false; null, or {heads}, or {CORE} true"


def _options(settings: Mapping[str, Value]) -> Mapping[str, Value]:
    unknown = frozenset(key for key, each in settings.items() if each.value is None)
    return as_options(settings, unknown & _DEGREES)


_DEGREES = frozenset(
    f"model.{name}_parallel_size"
    for name in ("tensor_model", "pipeline_model", "context", "expert_model")
)
RULES: tuple[FormatRule, ...] = (*_OWN, *translated(OF_MEGATRON, SHARED, _options, spelled))

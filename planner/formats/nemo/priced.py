"""What of a file of NeMo's plans price, and what keeps them from it."""

from collections.abc import Iterator, Mapping

from planner.formats.format import Value
from planner.formats.megatron import runtime
from planner.formats.nemo.keys import (
    ADAPTERS,
    APEX,
    ENGINE,
    FLASH,
    FSDP,
    O2,
    OPTIMIZER,
    OPTIMIZERS,
    PRECISION,
    activation_of,
    as_options,
)
from planner.formats.settings import Settings, as_number, as_whole, decided, flag, given, word
from planner.spec.traits import Setting

OTHER_MODELS: Mapping[str, str] = {
    "model.encoder": "an encoder beside the decoder",
    "model.bert_binary_head": "an encoder",
    "model.mm_cfg": "a vision tower beside the model",
    "model.vision": "a vision tower",
    "model.unet_config": "a diffusion model",
    "model.first_stage_config": "a diffusion model",
    "model.retro": "chunks that are retrieved",
    "model.hybrid_override_pattern": "state-space layers",
    "model.patch_dim": "a vision transformer",
    "model.speech": "a speech encoder",
    "model.perception": "a speech encoder",
}
"""Keys of models that are no decoder of one kind of layers."""
_BY_NAME = ("bert", "t5", "retro", "mamba", "griffin", "vit", "bart", "ul2", "hyena")
_PHASES = ("ppo", "dpo", "rm", "kto", "rs", "spin", "reinforce", "grpo", "knowledge_distillation")
"""Sections of the trainer in NeMo-Aligner beside which more is held than one model's states."""
_UNEVEN = (
    "model.activations_checkpoint_layers_per_pipeline",
    "model.num_micro_batches_with_partial_activation_checkpoints",
)
LENGTH = "model.encoder_seq_length"
_TRAINED = "model.data.train_ds"
PACKED = "packed_sequence"
FILLED = (PACKED, "pad_to_max_length")
"""Flags of fine-tuning's data after which every sequence is as long as it may be."""
_SIXTEEN = ("bf16", "bf16-mixed", "16", "16-mixed")


def other_model(settings: Settings) -> str:
    """What a model has beside, or in place of, a decoder; empty of decoders."""
    sections = _sections(settings)
    for key, why in OTHER_MODELS.items():
        if key in sections and (key not in settings or given(settings, key) is not None):
            return f"{key}: {why}"
    if "model.optim" not in sections:
        return "model.optim: nothing is trained"
    for key in ("name", "run.name", "exp_manager.name"):
        name = word(settings, key)
        if {*name.lower().split("_")} & {*_BY_NAME}:
            return f"{key} {name[:40]}: no decoder of one kind of layers"
    return ""


def _sections(settings: Settings) -> frozenset[str]:
    parts = (key.split(".") for key in settings)
    return frozenset(".".join(each[:size]) for each in parts for size in range(1, len(each) + 1))


def unpriced(settings: Settings) -> str:
    """Why plans say nothing of memory and time; empty where they do."""
    return other_model(settings) or next(_reasons(settings), "")


def _reasons(settings: Settings) -> Iterator[str]:
    sections = _sections(settings)
    for phase in _PHASES:
        if f"trainer.{phase}" in sections:
            yield f"trainer.{phase}: plans price pretraining and supervised fine-tuning"
    scheme = word(settings, ADAPTERS)
    if scheme.lower() not in ("", "null", "none"):
        yield f"{ADAPTERS} {scheme[:40]}: adapters under Megatron"
    yield from _of_states(settings)
    for key in _UNEVEN:
        if given(settings, key) not in (None, 0):
            yield f"{key}: recomputation that differs by stage or micro-batch"


def _of_states(settings: Settings) -> Iterator[str]:
    """Weights, gradients and optimizer that are held otherwise than Megatron holds them."""
    precision, name = word(settings, PRECISION, "bf16"), word(settings, OPTIMIZER, "fused_adam")
    if precision not in _SIXTEEN:
        yield f"{PRECISION} {precision[:40]}: plans price {', '.join(_SIXTEEN)}"
    elif not flag(settings, O2):
        yield f"{O2} false: weights in 32 bits that autocast rounds are not modelled"
    if flag(settings, FSDP):
        yield f"{FSDP} true: torch's FSDP around Megatron's layers is not modelled"
    if name not in OPTIMIZERS:
        yield f"{OPTIMIZER} {name[:40]}: plans price {', '.join(OPTIMIZERS)}"
    if flag(settings, "model.cpu_offloading"):
        yield "model.cpu_offloading true: weights on the host beside activations"


def traits_of(settings: Settings) -> Iterator[Setting]:
    """What kernels and overlaps a file asks for."""
    if not flag(settings, ENGINE) and not flag(settings, FLASH):
        yield "kernels.attention", "unfused"
    if (as_number(given(settings, "model.hidden_dropout")) or 0) > 0:
        yield "kernels.dropout", True
    if flag(settings, "model.ub_tp_comm_overlap") and flag(settings, "model.sequence_parallel"):
        yield "overlap.tensor_parallel_overlap", "ring"
    for key, trait in (
        ("model.optim.overlap_grad_sync", "overlap.overlaps_gradient_reduction"),
        ("model.optim.overlap_param_sync", "overlap.overlaps_parameter_gather"),
    ):
        if given(settings, key) is False:
            yield trait, False
    yield from runtime.traits_of(as_options(settings))


def supposes(settings: Settings) -> Iterator[str]:
    """What is taken otherwise than the file has it, in words."""
    if word(settings, OPTIMIZER) == APEX:
        yield f"{OPTIMIZER} {APEX} as Megatron's distributed optimizer, of as many bytes"
    if activation_of(settings) in ("geglu", "reglu"):
        yield f"model.activation {activation_of(settings)} as gated SiLU, of as many bytes"
    ramp = settings.get("model.rampup_batch_size")
    if ramp is not None and ramp.value:
        yield "the batch after its ramp"


def batching_of(settings: Settings) -> Value | None:
    """How fine-tuning puts documents together, as --documents names it; None where it does not."""
    if not any(each.startswith(f"{_TRAINED}.") for each in settings):
        return None
    if flag(settings, f"{_TRAINED}.{PACKED}"):
        return decided(settings, f"{_TRAINED}.{PACKED}", "packed")
    is_filled = any(flag(settings, f"{_TRAINED}.{each}") for each in FILLED)
    return None if is_filled else Value(value="padded", key=f"{_TRAINED}.{PACKED}")


def length_of(settings: Settings) -> tuple[Value | None, bool]:
    """Tokens of a sequence, and whether all have as many: those of fine-tuning seldom have."""
    data = _TRAINED
    tunes = any(each.startswith(f"{data}.") for each in settings)
    filled = any(flag(settings, f"{data}.{each}") for each in FILLED)
    for key in (LENGTH, f"{data}.max_seq_length"):
        if (as_whole(given(settings, key)) or 0) > 0:
            return settings[key], filled or not tunes
    return None, False

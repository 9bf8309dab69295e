"""Rules about what builds the model: required options, mixtures, attention, MTP."""

from planner.formats.megatron.options import MTP, SP, TP, is_own_script
from planner.formats.megatron.runtime import CAPACITY, PADS
from planner.formats.megatron.view import ARGUMENTS, CONFIG, MegatronView
from planner.formats.rules import Refused, Rules, Violations
from planner.formats.settings import as_number

REMOVED = {
    "--batch-size": "--micro-batch-size",
    "--warmup": "--lr-warmup-fraction",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--checkpoint-activations": "--recompute-activations",
}
# What has no default, and options that say the same; the first three describe a model.
REQUIRED = {
    "--num-layers": (
        "--encoder-num-layers",
        "--hybrid-layer-pattern",
        "--hybrid-override-pattern",
    ),
    "--hidden-size": (),
    "--num-attention-heads": (),
    "--max-position-embeddings": (),
    "--seq-length": ("--encoder-seq-length",),
    "--micro-batch-size": (),
}
# Ways of balancing that go with dropped tokens.
_LOSSES = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
SCORE = "--moe-router-score-function"
BALANCING = "--moe-router-load-balancing-type"

rule = Rules(MegatronView)


@rule(ARGUMENTS, says="is missing; Megatron has no default for it")
def required_options(file: MegatronView) -> list[str]:
    """A model that is described is described in full; other scripts may have defaults."""
    if not file.having(*list(REQUIRED)[:3]) or not is_own_script(file.word("script")):
        return []
    return [each for each, others in REQUIRED.items() if not file.settings.keys() & {each, *others}]


@rule(ARGUMENTS)
def removed_options(file: MegatronView) -> Violations:
    """Options that are still parsed but refused."""
    for option in file.having(*REMOVED):
        yield option, f"is no longer taken; allowed is {REMOVED[option]}"


@rule(
    ARGUMENTS,
    key="--train-samples",
    says="cannot stand beside --train-iters; allowed is one of them",
)
def train_length_given_once(file: MegatronView) -> bool:
    """Training lasts for iterations or for samples."""
    return file.has("--train-iters") and file.has("--train-samples")


@rule.unenforced(
    f"{ARGUMENTS} switches it off with a warning",
    key=SP,
    says=f"is switched off silently: {TP} is 1",
    severity="warning",
)
def sequence_parallel_needs_tp(file: MegatronView) -> bool:
    """Sequence parallelism has nothing to split with one tensor-parallel rank."""
    return file.flag(SP) and file.tp == 1


@rule.unenforced(
    "megatron/core/transformer/moe/moe_layer.py, in the first layer",
    key=TP,
    says=f"{{file.tp}} with experts needs {SP} in training",
)
def mixture_with_tp_needs_sequence_parallel(file: MegatronView) -> bool:
    """A mixture refuses to train with tensor parallelism alone."""
    return bool(file.num_experts and file.tp > 1 and not file.flag(SP))


@rule(
    ARGUMENTS,
    key="--tp-comm-overlap",
    says=f"needs {SP} and tensor parallelism; given tp {{file.tp}}",
)
def tp_overlap_needs_sequence_parallel(file: MegatronView) -> bool:
    """Only gathers and scatters of sequence parallelism can be overlapped."""
    return file.flag("--tp-comm-overlap") and (not file.flag(SP) or file.tp == 1)


@rule(
    CONFIG,
    key="--num-experts",
    says=(
        "experts with biases need --expert-tensor-parallel-size 1 or --disable-bias-linear; "
        "given {file.etp}"
    ),
)
def expert_bias_needs_whole_experts(file: MegatronView) -> bool:
    """Experts with biases are not split."""
    return file.has("--num-experts") and not file.flag("--disable-bias-linear") and file.etp > 1


@rule(CONFIG, key="--moe-router-topk", says="1 needs --moe-router-pre-softmax")
def single_expert_needs_pre_softmax(file: MegatronView) -> bool:
    """The softmax over one chosen expert has no gradient."""
    is_softmax = file.word(SCORE, "softmax") == "softmax"
    is_free = file.flag("--moe-router-pre-softmax") or "sinkhorn" in file.words(BALANCING)
    return file.number("--moe-router-topk") == 1 and is_softmax and not is_free


@rule(CONFIG)
def capacity_has_a_factor_and_losses(file: MegatronView) -> Violations:
    """Experts are padded to a capacity, and tokens are dropped beside balancing losses only."""
    factor = as_number(file[CAPACITY])
    has_factor = factor is not None and factor >= 0
    if file.flag(PADS) and not has_factor:
        yield PADS, f"needs {CAPACITY}"
    others = [each for each in file.words(BALANCING) if each not in _LOSSES]
    if has_factor and others:
        yield CAPACITY, f"needs {BALANCING} of {', '.join(_LOSSES)}; given {', '.join(others)}"


@rule(CONFIG, key="--moe-router-enable-expert-bias")
def balancing_offsets_need_sigmoid(file: MegatronView) -> Refused:
    """Offsets that balance the experts go with sigmoid scores."""
    score = file.word(SCORE, "softmax")
    is_other = file.flag("--moe-router-enable-expert-bias") and score not in (
        "sigmoid",
        "sqrtsoftplus",
    )
    return {f"needs {SCORE} sigmoid or sqrtsoftplus; given {score}": is_other}


@rule(
    CONFIG,
    key="--moe-shared-expert-overlap",
    says="needs --moe-token-dispatcher-type alltoall or flex; given allgather",
)
def shared_expert_overlap_needs_exchange(file: MegatronView) -> bool:
    """The shared expert hides an all-to-all."""
    has_shared = file.has("--moe-shared-expert-intermediate-size")
    overlaps = file.flag("--moe-shared-expert-overlap") and has_shared
    return file.dispatcher == "allgather" and overlaps


@rule(ARGUMENTS, key="--group-query-attention", says="cannot stand beside --multi-latent-attention")
def latent_attention_excludes_groups(file: MegatronView) -> bool:
    """Latent attention has no query groups."""
    return file.flag("--group-query-attention") and file.flag("--multi-latent-attention")


@rule(CONFIG, key="--squared-relu", says="needs --no-bias-gelu-fusion or --disable-bias-linear")
def squared_relu_excludes_fusion(file: MegatronView) -> bool:
    """The fused bias knows gelu and swiglu."""
    is_apart = file.flag("--no-bias-gelu-fusion") or file.flag("--disable-bias-linear")
    return file.flag("--squared-relu") and not is_apart


@rule(ARGUMENTS, key=MTP)
def mtp_shifts_positions(file: MegatronView) -> Refused:
    """Further tokens are shifted: positions are rotary, or there are none."""
    kind, count = file.word("--position-embedding-type", "learned_absolute"), file.number(MTP)
    is_rotary = file.flag("--use-rotary-position-embeddings") or kind in ("rope", "none")
    text = f"{count} needs --position-embedding-type rope or none; given {kind}"
    return {text: count and not is_rotary}


@rule.unenforced(
    "megatron/core/transformer/multi_token_prediction.py, in the first step",
    key="--recompute-num-layers",
    says=f"must be 1 beside {MTP}; given {{given}}",
)
def mtp_recomputes_single_layers(file: MegatronView) -> bool:
    """Layers of multi-token prediction are recomputed one by one."""
    how = file.word("--recompute-granularity"), file.word("--recompute-method")
    is_large = how == ("full", "uniform") and file.number("--recompute-num-layers") not in (None, 1)
    return bool(file.number(MTP)) and is_large

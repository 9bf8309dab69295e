"""Rules about what builds the model: required options, mixtures, attention, MTP."""

from planner.formats.megatron.options import MTP, is_own_script
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
    "--num-layers": ("--encoder-num-layers", "--hybrid-layer-pattern", "--hybrid-override-pattern"),
    "--hidden-size": (),
    "--num-attention-heads": (),
    "--max-position-embeddings": (),
    "--seq-length": ("--encoder-seq-length",),
    "--micro-batch-size": (),
}
# Ways of balancing that go with dropped tokens.
_LOSSES = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
_SCORE = "--moe-router-score-function"
_BALANCING = "--moe-router-load-balancing-type"
_UNIT = "--recompute-num-layers"

rule = Rules(MegatronView)


@rule(ARGUMENTS)
def required_options(file: MegatronView) -> list[str]:
    """Is missing; Megatron has no default for it."""
    # A model that is described is described in full; other scripts may have defaults.
    if not file.having(*list(REQUIRED)[:3]) or not is_own_script(file.word("script")):
        return []
    return [each for each, others in REQUIRED.items() if not file.settings.keys() & {each, *others}]


@rule(ARGUMENTS)
def removed_options(file: MegatronView) -> Violations:
    """Options that are still parsed but refused."""
    for option in file.having(*REMOVED):
        yield option, f"is no longer taken; allowed is {REMOVED[option]}"


@rule(ARGUMENTS, "--train-samples")
def train_length_given_once(file: MegatronView) -> bool:
    """Cannot stand beside --train-iters; allowed is one of them."""
    return file.has("--train-iters") and file.has("--train-samples")


@rule.unenforced(
    f"{ARGUMENTS} switches it off with a warning", "--sequence-parallel", severity="warning"
)
def sequence_parallel_needs_tp(file: MegatronView) -> bool:
    """Is switched off silently: --tensor-model-parallel-size is 1."""
    return file.flag("--sequence-parallel") and file.tp == 1


@rule.unenforced(
    "megatron/core/transformer/moe/moe_layer.py, in the first layer", "--tensor-model-parallel-size"
)
def mixture_with_tp_needs_sequence_parallel(file: MegatronView) -> bool:
    """{file.tp} with experts needs --sequence-parallel in training."""
    return bool(file.num_experts and file.tp > 1 and not file["--sequence-parallel"])


@rule(ARGUMENTS, "--tp-comm-overlap", on="--tp-comm-overlap")
def tp_overlap_needs_sequence_parallel(file: MegatronView) -> bool:
    """Needs --sequence-parallel and tensor parallelism; given tp {file.tp}."""
    return not file["--sequence-parallel"] or file.tp == 1


@rule(CONFIG, "--num-experts")
def expert_bias_needs_whole_experts(file: MegatronView) -> Refused:
    """Experts with biases are not split."""
    has_biases = file.has("--num-experts") and not file["--disable-bias-linear"]
    allowed = "experts with biases need --expert-tensor-parallel-size 1 or --disable-bias-linear"
    return {f"{allowed}; given {file.etp}": has_biases and file.etp > 1}


@rule(CONFIG, "--moe-router-topk")
def single_expert_needs_pre_softmax(file: MegatronView) -> bool:
    """1 needs --moe-router-pre-softmax."""
    # The softmax over one chosen expert has no gradient.
    is_softmax = file.word(_SCORE, "softmax") == "softmax"
    is_free = file.flag("--moe-router-pre-softmax") or "sinkhorn" in file.words(_BALANCING)
    return file.number("--moe-router-topk") == 1 and is_softmax and not is_free


@rule(CONFIG)
def capacity_has_a_factor_and_losses(file: MegatronView) -> Violations:
    """Experts are padded to a capacity, and tokens are dropped beside balancing losses only."""
    factor = as_number(file[CAPACITY])
    has_factor = factor is not None and factor >= 0
    if file.flag(PADS) and not has_factor:
        yield PADS, f"needs {CAPACITY}"
    others = [each for each in file.words(_BALANCING) if each not in _LOSSES]
    if has_factor and others:
        yield CAPACITY, f"needs {_BALANCING} of {', '.join(_LOSSES)}; given {', '.join(others)}"


@rule(CONFIG, "--moe-router-enable-expert-bias", on="--moe-router-enable-expert-bias")
def balancing_offsets_need_sigmoid(file: MegatronView) -> Refused:
    """Offsets that balance the experts go with sigmoid scores."""
    score, allowed = file.word(_SCORE, "softmax"), ("sigmoid", "sqrtsoftplus")
    return {f"needs {_SCORE} {' or '.join(allowed)}; given {score}": score not in allowed}


@rule(CONFIG, "--moe-shared-expert-overlap", on="--moe-shared-expert-overlap")
def shared_expert_overlap_needs_exchange(file: MegatronView) -> bool:
    """Needs --moe-token-dispatcher-type alltoall or flex; given allgather."""
    dispatcher = file.word("--moe-token-dispatcher-type", "allgather")
    return file.has("--moe-shared-expert-intermediate-size") and dispatcher == "allgather"


@rule(ARGUMENTS, "--group-query-attention", on="--group-query-attention")
def latent_attention_excludes_groups(file: MegatronView) -> bool:
    """Cannot stand beside --multi-latent-attention."""
    return file.flag("--multi-latent-attention")


@rule(CONFIG, "--squared-relu", on="--squared-relu")
def squared_relu_excludes_fusion(file: MegatronView) -> bool:
    """Needs --no-bias-gelu-fusion or --disable-bias-linear."""
    return not file["--no-bias-gelu-fusion"] and not file["--disable-bias-linear"]


@rule(ARGUMENTS, MTP)
def mtp_shifts_positions(file: MegatronView) -> Refused:
    """Further tokens are shifted: positions are rotary, or there are none."""
    kind, count = file.word("--position-embedding-type", "learned_absolute"), file.number(MTP)
    is_rotary = file.flag("--use-rotary-position-embeddings") or kind in ("rope", "none")
    text = f"{count} needs --position-embedding-type rope or none; given {kind}"
    return {text: count and not is_rotary}


@rule.unenforced("megatron/core/transformer/multi_token_prediction.py, in the first step", _UNIT)
def mtp_recomputes_single_layers(file: MegatronView) -> bool:
    """Must be 1 beside --mtp-num-layers; given {given}."""
    how = file.word("--recompute-granularity"), file.word("--recompute-method")
    is_large = how == ("full", "uniform") and file.number(_UNIT) not in (None, 1)
    return bool(file.number(MTP)) and is_large

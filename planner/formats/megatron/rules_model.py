"""Rules about what builds the model: required options, mixtures, attention, MTP."""

from planner.formats.megatron.layout import parse_layout
from planner.formats.megatron.options import LAYOUT, MTP, is_own_script
from planner.formats.megatron.runtime import CAPACITY, PADS
from planner.formats.megatron.view import MegatronView
from planner.formats.rules import Rules, Violations
from planner.formats.settings import as_number, given

SP = "--sequence-parallel"
REMOVED = {
    "--batch-size": "--micro-batch-size",
    "--warmup": "--lr-warmup-fraction",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--checkpoint-activations": "--recompute-activations",
}
REQUIRED = (
    "--num-layers",
    "--hidden-size",
    "--num-attention-heads",
    "--max-position-embeddings",
    "--seq-length",
    "--micro-batch-size",
)
_LOSSES = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
"""Ways of balancing that go with dropped tokens."""
_ARGUMENTS = "megatron/training/arguments.py"
_CONFIG = "megatron/core/transformer/transformer_config.py"
_LAYER = "megatron/core/transformer/moe/moe_layer.py, in the first layer"
UNIT = "--recompute-num-layers"

rule = Rules(MegatronView)


@rule(_ARGUMENTS)
def required_options(file: MegatronView) -> Violations:
    """A model that is described is described in full; other scripts may have defaults."""
    is_described = any(file.has(option) for option in REQUIRED[:3])
    if not is_described or not is_own_script(file.word("script")):
        return
    for option in REQUIRED:
        is_there = option in file.settings
        if option == "--seq-length":
            is_there = is_there or "--encoder-seq-length" in file.settings
        if option == "--num-layers":
            others = ("--encoder-num-layers", "--hybrid-layer-pattern", "--hybrid-override-pattern")
            is_there = is_there or any(other in file.settings for other in others)
        if not is_there:
            yield option, "is missing; Megatron has no default for it"


@rule(_ARGUMENTS)
def removed_options(file: MegatronView) -> Violations:
    """Options that are still parsed but refused."""
    for option, successor in REMOVED.items():
        if file.has(option):
            yield option, f"is no longer taken; allowed is {successor}"


@rule(
    _ARGUMENTS,
    key="--train-samples",
    says="cannot stand beside --train-iters; allowed is one of them",
)
def train_length_given_once(file: MegatronView) -> bool:
    """Training lasts for iterations or for samples."""
    iterations = "--train-iters"
    return file.has(iterations) and file.has("--train-samples")


@rule(
    f"{_ARGUMENTS} switches it off with a warning",
    key=SP,
    says="is switched off silently: --tensor-model-parallel-size is 1",
    enforced=False,
    severity="warning",
)
def sequence_parallel_needs_tp(file: MegatronView) -> bool:
    """With one tensor-parallel rank there is nothing to split."""
    return file.on(SP) and file.tp == 1


@rule(
    _LAYER,
    key="--tensor-model-parallel-size",
    says=f"{{file.tp}} with experts needs {SP} in training",
    enforced=False,
)
def mixture_with_tp_needs_sequence_parallel(file: MegatronView) -> bool:
    """A mixture refuses to train with tensor parallelism alone."""
    return bool(file.num_experts and file.tp > 1 and not file.on(SP))


@rule(
    _ARGUMENTS,
    key="--tp-comm-overlap",
    says=f"needs {SP} and tensor parallelism; given tp {{file.tp}}",
)
def tp_overlap_needs_sequence_parallel(file: MegatronView) -> bool:
    """Only gathers and scatters of sequence parallelism can be overlapped."""
    return file.on("--tp-comm-overlap") and (not file.on(SP) or file.tp == 1)


@rule(
    _CONFIG,
    key="--num-experts",
    says=(
        "experts with biases need --expert-tensor-parallel-size 1 or --disable-bias-linear; "
        "given {file.etp}"
    ),
)
def expert_bias_needs_whole_experts(file: MegatronView) -> bool:
    """Experts with biases are not split."""
    return file.has("--num-experts") and not file.on("--disable-bias-linear") and file.etp > 1


@rule(_CONFIG, key="--moe-router-topk", says="1 needs --moe-router-pre-softmax")
def single_expert_needs_pre_softmax(file: MegatronView) -> bool:
    """The softmax over one chosen expert has no gradient."""
    is_softmax = file.word("--moe-router-score-function", "softmax") == "softmax"
    balancing = file.words("--moe-router-load-balancing-type")
    free = file.on("--moe-router-pre-softmax") or "sinkhorn" in balancing
    return file.number("--moe-router-topk") == 1 and is_softmax and not free


@rule(_CONFIG)
def capacity_has_a_factor_and_losses(file: MegatronView) -> Violations:
    """Experts are padded to a capacity, and tokens are dropped beside balancing losses only."""
    factor = as_number(given(file.settings, CAPACITY))
    has_factor = factor is not None and factor >= 0
    if file.on(PADS) and not has_factor:
        yield PADS, f"needs {CAPACITY}"
    balancing = file.words("--moe-router-load-balancing-type")
    if has_factor and (other := [each for each in balancing if each not in _LOSSES]):
        allowed = ", ".join(_LOSSES)
        message = f"needs --moe-router-load-balancing-type of {allowed}; given {', '.join(other)}"
        yield CAPACITY, message


@rule(_CONFIG)
def balancing_offsets_need_sigmoid(file: MegatronView) -> Violations:
    """Offsets that balance the experts go with sigmoid scores."""
    option = "--moe-router-enable-expert-bias"
    score = file.word("--moe-router-score-function", "softmax")
    if file.on(option) and score not in ("sigmoid", "sqrtsoftplus"):
        yield option, f"needs --moe-router-score-function sigmoid or sqrtsoftplus; given {score}"


@rule(
    _CONFIG,
    key="--moe-shared-expert-overlap",
    says="needs --moe-token-dispatcher-type alltoall or flex; given allgather",
)
def shared_expert_overlap_needs_exchange(file: MegatronView) -> bool:
    """The shared expert hides an all-to-all."""
    given = dispatcher(file)
    has_shared = file.has("--moe-shared-expert-intermediate-size")
    return file.on("--moe-shared-expert-overlap") and has_shared and given == "allgather"


def dispatcher(file: MegatronView) -> str:
    """How tokens reach their experts."""
    return file.word("--moe-token-dispatcher-type", "allgather")


@rule(
    _ARGUMENTS, key="--group-query-attention", says="cannot stand beside --multi-latent-attention"
)
def latent_attention_excludes_groups(file: MegatronView) -> bool:
    """Latent attention has no query groups."""
    return file.on("--group-query-attention") and file.on("--multi-latent-attention")


@rule(_CONFIG, key="--squared-relu", says="needs --no-bias-gelu-fusion or --disable-bias-linear")
def squared_relu_excludes_fusion(file: MegatronView) -> bool:
    """The fused bias knows gelu and swiglu."""
    fused = not (file.on("--no-bias-gelu-fusion") or file.on("--disable-bias-linear"))
    return bool(file.on("--squared-relu") and fused)


@rule("megatron/training/arguments.py")
def mtp_shifts_positions(file: MegatronView) -> Violations:
    """Further tokens are shifted: positions are rotary, or there are none."""
    option = "--position-embedding-type"
    kind = file.word(option, "learned_absolute")
    if file.on("--use-rotary-position-embeddings"):
        kind = "rope"
    if file.number(MTP) and kind not in ("rope", "none"):
        yield MTP, f"{file.number(MTP)} needs {option} rope or none; given {kind}"


@rule("megatron/core/transformer/pipeline_parallel_layer_layout.py")
def layout_holds_mtp(file: MegatronView) -> Violations:
    """A layout names the layers of multi-token prediction, in one part behind all others."""
    try:
        parts = parse_layout(file.word(LAYOUT))
    except ValueError:
        return
    if not file.word(LAYOUT) or (MTP in file.settings and not file.has(MTP)):
        return
    number, flat = file.number(MTP) or 0, "".join(parts)
    if flat.count("m") != number:
        yield LAYOUT, f"holds {flat.count('m')} layers m; {MTP} is {number}"
    elif "t" in flat.partition("m")[2]:
        yield LAYOUT, "has layers t behind m; all layers m stand behind them"
    elif number not in (0, max(part.count("m") for part in parts)):
        yield LAYOUT, "has layers m in several parts; all stand in one"
    elif any("m" in part for part in parts[: -file.pp]):
        yield LAYOUT, "has layers m before a stage's last part; allowed is the last"


@rule("megatron/core/transformer/multi_token_prediction.py, in the first step", enforced=False)
def mtp_recomputes_single_layers(file: MegatronView) -> Violations:
    """Layers of multi-token prediction are recomputed one by one."""
    is_full = file.word("--recompute-granularity") == "full"
    is_uniform = file.word("--recompute-method") == "uniform"
    if file.number(MTP) and is_full and is_uniform and file.number(UNIT) not in (None, 1):
        yield UNIT, f"must be 1 beside {MTP}; given {file.number(UNIT)}"

"""Rules about what builds the model: required options, mixtures, attention."""

from collections.abc import Iterator

from planner.formats.megatron.facts import Breach, Facts, rule
from planner.formats.megatron.options import is_own_script
from planner.formats.megatron.runtime import CAPACITY, PADS
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


def required_options(facts: Facts) -> Iterator[Breach]:
    """A model that is described is described in full; other scripts may have defaults."""
    is_described = any(facts.given(option) for option in REQUIRED[:3])
    if not is_described or not is_own_script(facts.word("script")):
        return
    for option in REQUIRED:
        is_there = option in facts.settings
        if option == "--seq-length":
            is_there = is_there or "--encoder-seq-length" in facts.settings
        if option == "--num-layers":
            others = ("--encoder-num-layers", "--hybrid-layer-pattern", "--hybrid-override-pattern")
            is_there = is_there or any(other in facts.settings for other in others)
        if not is_there:
            yield option, "is missing; Megatron has no default for it"


def removed_options(facts: Facts) -> Iterator[Breach]:
    """Options that are still parsed but refused."""
    for option, successor in REMOVED.items():
        if facts.given(option):
            yield option, f"is no longer taken; allowed is {successor}"


def train_length_given_once(facts: Facts) -> Iterator[Breach]:
    """Training lasts for iterations or for samples."""
    iterations, samples = "--train-iters", "--train-samples"
    if facts.given(iterations) and facts.given(samples):
        yield samples, f"cannot stand beside {iterations}; allowed is one of them"


def sequence_parallel_needs_tp(facts: Facts) -> Iterator[Breach]:
    """With one tensor-parallel rank there is nothing to split."""
    if facts.on(SP) and facts.tp == 1:
        yield SP, "is switched off silently: --tensor-model-parallel-size is 1"


def mixture_with_tp_needs_sequence_parallel(facts: Facts) -> Iterator[Breach]:
    """A mixture refuses to train with tensor parallelism alone."""
    if facts.num_experts and facts.tp > 1 and not facts.on(SP):
        yield "--tensor-model-parallel-size", f"{facts.tp} with experts needs {SP} in training"


def tp_overlap_needs_sequence_parallel(facts: Facts) -> Iterator[Breach]:
    """Only gathers and scatters of sequence parallelism can be overlapped."""
    if facts.on("--tp-comm-overlap") and (not facts.on(SP) or facts.tp == 1):
        yield "--tp-comm-overlap", f"needs {SP} and tensor parallelism; given tp {facts.tp}"


def expert_bias_needs_whole_experts(facts: Facts) -> Iterator[Breach]:
    """Experts with biases are not split."""
    if facts.given("--num-experts") and not facts.on("--disable-bias-linear") and facts.etp > 1:
        yield (
            "--num-experts",
            (
                "experts with biases need --expert-tensor-parallel-size 1 or "
                f"--disable-bias-linear; given {facts.etp}"
            ),
        )


def single_expert_needs_pre_softmax(facts: Facts) -> Iterator[Breach]:
    """The softmax over one chosen expert has no gradient."""
    option = "--moe-router-topk"
    is_softmax = facts.word("--moe-router-score-function", "softmax") == "softmax"
    balancing = facts.words("--moe-router-load-balancing-type")
    free = facts.on("--moe-router-pre-softmax") or "sinkhorn" in balancing
    if facts.number(option) == 1 and is_softmax and not free:
        yield option, "1 needs --moe-router-pre-softmax"


def capacity_has_a_factor_and_losses(facts: Facts) -> Iterator[Breach]:
    """Experts are padded to a capacity, and tokens are dropped beside balancing losses only."""
    factor = as_number(given(facts.settings, CAPACITY))
    has_factor = factor is not None and factor >= 0
    if facts.on(PADS) and not has_factor:
        yield PADS, f"needs {CAPACITY}"
    balancing = facts.words("--moe-router-load-balancing-type")
    if has_factor and (other := [each for each in balancing if each not in _LOSSES]):
        allowed = ", ".join(_LOSSES)
        message = f"needs --moe-router-load-balancing-type of {allowed}; given {', '.join(other)}"
        yield CAPACITY, message


def balancing_offsets_need_sigmoid(facts: Facts) -> Iterator[Breach]:
    """Offsets that balance the experts go with sigmoid scores."""
    option = "--moe-router-enable-expert-bias"
    score = facts.word("--moe-router-score-function", "softmax")
    if facts.on(option) and score not in ("sigmoid", "sqrtsoftplus"):
        yield option, f"needs --moe-router-score-function sigmoid or sqrtsoftplus; given {score}"


def shared_expert_overlap_needs_exchange(facts: Facts) -> Iterator[Breach]:
    """The shared expert hides an all-to-all."""
    option, given = "--moe-shared-expert-overlap", dispatcher(facts)
    has_shared = facts.given("--moe-shared-expert-intermediate-size")
    if facts.on(option) and has_shared and given == "allgather":
        yield option, "needs --moe-token-dispatcher-type alltoall or flex; given allgather"


def dispatcher(facts: Facts) -> str:
    """How tokens reach their experts."""
    return facts.word("--moe-token-dispatcher-type", "allgather")


def latent_attention_excludes_groups(facts: Facts) -> Iterator[Breach]:
    """Latent attention has no query groups."""
    option = "--group-query-attention"
    if facts.on(option) and facts.on("--multi-latent-attention"):
        yield option, "cannot stand beside --multi-latent-attention"


def squared_relu_excludes_fusion(facts: Facts) -> Iterator[Breach]:
    """The fused bias knows gelu and swiglu."""
    fused = not (facts.on("--no-bias-gelu-fusion") or facts.on("--disable-bias-linear"))
    if facts.on("--squared-relu") and fused:
        yield "--squared-relu", "needs --no-bias-gelu-fusion or --disable-bias-linear"


RULES = (
    rule(required_options, _ARGUMENTS),
    rule(removed_options, _ARGUMENTS),
    rule(train_length_given_once, _ARGUMENTS),
    rule(
        sequence_parallel_needs_tp,
        f"{_ARGUMENTS} switches it off with a warning",
        enforced=False,
        severity="warning",
    ),
    rule(mixture_with_tp_needs_sequence_parallel, _LAYER, enforced=False),
    rule(tp_overlap_needs_sequence_parallel, _ARGUMENTS),
    rule(expert_bias_needs_whole_experts, _CONFIG),
    rule(single_expert_needs_pre_softmax, _CONFIG),
    rule(capacity_has_a_factor_and_losses, _CONFIG),
    rule(balancing_offsets_need_sigmoid, _CONFIG),
    rule(shared_expert_overlap_needs_exchange, _CONFIG),
    rule(latent_attention_excludes_groups, _ARGUMENTS),
    rule(squared_relu_excludes_fusion, _CONFIG),
)

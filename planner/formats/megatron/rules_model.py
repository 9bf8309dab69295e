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
_BALANCING = "--moe-router-load-balancing-type"

rule = Rules(MegatronView)


@rule(ARGUMENTS)
def required_options(file: MegatronView) -> list[str]:
    """Is missing; Megatron has no default for it."""
    # A model that is described is described in full; other scripts may have defaults.
    is_described = file.having(*list(REQUIRED)[:3])
    if not is_described or not is_own_script(file.word("script")):
        return []
    return [
        option
        for option, others in REQUIRED.items()
        if file.settings.keys().isdisjoint((option, *others))
    ]


@rule(ARGUMENTS)
def removed_options(file: MegatronView) -> Violations:
    """Options that are still parsed but refused."""
    for option in file.having(*REMOVED):
        yield option, f"is no longer taken; allowed is {REMOVED[option]}"


rule(
    ARGUMENTS,
    name="train_length_given_once",
    holds="Cannot stand beside --train-iters; allowed is one of them.",
    key="--train-samples",
    when=lambda file: file.has("--train-iters") and file.has("--train-samples"),
)
rule.unenforced(
    f"{ARGUMENTS} switches it off with a warning",
    name="sequence_parallel_needs_tp",
    holds="Is switched off silently: --tensor-model-parallel-size is 1.",
    key="--sequence-parallel",
    severity="warning",
    when=lambda file: file.flag("--sequence-parallel") and file.tp == 1,
)
rule.unenforced(
    "megatron/core/transformer/moe/moe_layer.py, in the first layer",
    name="mixture_with_tp_needs_sequence_parallel",
    holds="{file.tp} with experts needs --sequence-parallel in training.",
    key="--tensor-model-parallel-size",
    when=lambda file: file.num_experts > 0 and file.tp > 1 and not file["--sequence-parallel"],
)
rule(
    ARGUMENTS,
    name="tp_overlap_needs_sequence_parallel",
    holds="Needs --sequence-parallel and tensor parallelism; given tp {file.tp}.",
    key="--tp-comm-overlap",
    on="--tp-comm-overlap",
    when=lambda file: not file["--sequence-parallel"] or file.tp == 1,
)
rule(
    CONFIG,
    name="expert_bias_needs_whole_experts",
    holds="Experts with biases are not split.",
    key="--num-experts",
    when=lambda file: (
        file.has("--num-experts") and not file["--disable-bias-linear"] and file.etp > 1
    ),
    says="experts with biases need --expert-tensor-parallel-size 1 or --disable-bias-linear; "
    "given {file.etp}",
)
rule(
    CONFIG,
    name="single_expert_needs_pre_softmax",
    holds="1 needs --moe-router-pre-softmax.",
    key="--moe-router-topk",
    # The softmax over one chosen expert has no gradient.
    when=lambda file: (
        file.number("--moe-router-topk") == 1
        and file.router_score == "softmax"
        and not file.flag("--moe-router-pre-softmax")
        and "sinkhorn" not in file.words(_BALANCING)
    ),
)


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


rule(
    CONFIG,
    name="balancing_offsets_need_sigmoid",
    holds="Offsets that balance the experts go with sigmoid scores.",
    key="--moe-router-enable-expert-bias",
    on="--moe-router-enable-expert-bias",
    when=lambda file: file.router_score not in ("sigmoid", "sqrtsoftplus"),
    says="needs --moe-router-score-function sigmoid or sqrtsoftplus; given {file.router_score}",
)
rule(
    CONFIG,
    name="shared_expert_overlap_needs_exchange",
    holds="Needs --moe-token-dispatcher-type alltoall or flex; given allgather.",
    key="--moe-shared-expert-overlap",
    on="--moe-shared-expert-overlap",
    when=lambda file: (
        file.has("--moe-shared-expert-intermediate-size") and file.dispatcher == "allgather"
    ),
)
rule(
    ARGUMENTS,
    name="latent_attention_excludes_groups",
    holds="Cannot stand beside --multi-latent-attention.",
    key="--group-query-attention",
    on="--group-query-attention",
    when=lambda file: file.flag("--multi-latent-attention"),
)
rule(
    CONFIG,
    name="squared_relu_excludes_fusion",
    holds="Needs --no-bias-gelu-fusion or --disable-bias-linear.",
    key="--squared-relu",
    on="--squared-relu",
    when=lambda file: not file["--no-bias-gelu-fusion"] and not file["--disable-bias-linear"],
)


@rule(ARGUMENTS, MTP)
def mtp_shifts_positions(file: MegatronView) -> Refused:
    """Further tokens are shifted: positions are rotary, or there are none."""
    kind, count = file.word("--position-embedding-type", "learned_absolute"), file.number(MTP)
    is_rotary = file.flag("--use-rotary-position-embeddings") or kind in ("rope", "none")
    text = f"{count} needs --position-embedding-type rope or none; given {kind}"
    return {text: count and not is_rotary}


rule.unenforced(
    "megatron/core/transformer/multi_token_prediction.py, in the first step",
    name="mtp_recomputes_single_layers",
    holds="Must be 1 beside --mtp-num-layers; given {given}.",
    key="--recompute-num-layers",
    when=lambda file: (
        bool(file.number(MTP))
        and file.granularity == "full"
        and file.word("--recompute-method") == "uniform"
        and file.number("--recompute-num-layers") not in (None, 1)
    ),
)

"""Rules about degrees, stages, chunks and batch, and options that are required or removed."""

from collections.abc import Callable
from functools import partial
from math import prod

from planner.formats.decision import which
from planner.formats.megatron.options import (
    BATCH,
    CHUNK,
    CHUNKS,
    CP,
    EMBEDDING,
    FIRST,
    HIDDEN,
    LAST,
    LAYOUT,
    LOSS,
    MTP,
    PP,
    STEPS,
    TP,
    accounted,
    batches_in,
    is_own_script,
    layout_problem,
    parse_layout,
)
from planner.formats.megatron.view import ARGUMENTS, CONFIG, MegatronView
from planner.formats.rules import Refused, Rules, Violations, first_of

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
CP_TYPE = "--cp-comm-type"
CP_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
_STATE = "megatron/core/parallel_state.py"
EVAL_BATCH, EVAL_MICRO = "--eval-global-batch-size", "--eval-micro-batch-size"
RAMPUP, DECREASES = "--rampup-batch-size", "--decrease-batch-size-if-needed"
_SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
_BATCHES = "megatron/core/num_microbatches_calculator.py"
_LAYOUT = "megatron/core/transformer/pipeline_parallel_layer_layout.py"
_ATTENTION = "Transformer Engine's attention with context parallelism, in the first layer"

rule = Rules(MegatronView)
in_arguments, in_config = partial(rule, ARGUMENTS), partial(rule, CONFIG)


@rule(
    ARGUMENTS,
    says="tp x pp x cp = {file.model_ranks} must divide the processes; given {file.num_gpus}",
)
def degrees_divide_processes(file: MegatronView) -> list[str]:
    """Name the largest degree where all together do not divide the processes."""
    if file.num_gpus % file.model_ranks == 0:
        return []
    degrees = {TP: file.tp, PP: file.pp, CP: file.cp}
    return [max(degrees, key=degrees.__getitem__)]


rule(
    _STATE,
    "--expert-model-parallel-size",
    "expert_degrees_divide_processes",
    (
        "expert tensor parallelism {file.etp} x ep {file.ep} x pp {file.pp} must divide the "
        "processes; given {file.num_gpus}"
    ),
    lambda file: file.num_experts > 0 and file.num_gpus % file.expert_ranks > 0,
)
in_config(
    TP,
    "tp_divides_heads",
    "must divide the {file.num_heads} attention heads; given {file.tp}",
    lambda file: file.num_heads % file.tp > 0,
)
in_config(
    TP,
    "tp_fits_kv_heads",
    "must divide the {file.num_kv_heads} query groups or be a multiple; given {file.tp}",
    lambda file: (
        file.num_kv_heads > 0
        and file.num_kv_heads % file.tp > 0
        and file.tp % file.num_kv_heads > 0
    ),
)
rule.unenforced(
    "megatron/core/tensor_parallel/layers.py, when the model is built",
    TP,
    "tp_divides_ffn",
    "must divide the MLP's width {file.ffn_size}; given {file.tp}",
    lambda file: file.ffn_size % file.tp > 0,
)
in_arguments(
    "--num-attention-heads",
    "heads_divide_width",
    (
        "must divide --hidden-size {file.hidden_size} or come with --kv-channels; "
        "given {file.num_heads}"
    ),
    lambda file: (
        file.has("--num-attention-heads")
        and not file.has("--kv-channels")
        and file.num_heads > 0
        and file.hidden_size % file.num_heads > 0
    ),
)
in_arguments(
    PP,
    "pp_divides_layers",
    (
        "must divide {file.counted_layers} layers, embedding and loss counted where asked; "
        f"given {{file.pp}}, uneven stages need {LAYOUT}"
    ),
    lambda file: file.counted_layers % file.pp > 0 and not file.having(LAYOUT, CHUNKS, FIRST, LAST),
)


@in_arguments(CHUNK)
def chunk_divides_stage(file: MegatronView) -> Refused:
    """Chunks of the size given fill every stage."""
    size = file.number(CHUNK)
    layers, rest = divmod(file.counted_layers, file.pp)
    if size is None or not layers or rest:
        return {}
    is_wrong = size < 1 or layers % size
    return {f"must divide the {layers} layers of a stage; given {size}": is_wrong}


@rule.unenforced("megatron/core/transformer/transformer_block.py, when the model is built", CHUNKS)
def chunks_divide_stage(file: MegatronView) -> Refused:
    """Each stage splits into the number of chunks given."""
    count, layers = file.number(CHUNKS), file.counted_layers
    if not count or file.having(FIRST, LAST):
        return {}
    is_uneven = layers % (file.pp * count)
    return {f"pp {file.pp} x {count} chunks must divide {layers} layers; given {count}": is_uneven}


@in_arguments()
def one_way_to_interleave(file: MegatronView) -> Violations:
    """Chunk size, number of chunks, and layout exclude each other."""
    found = file.having(CHUNK, CHUNKS, LAYOUT)
    if len(found) > 1:
        yield found[-1], f"at most one of {CHUNK}, {CHUNKS}, {LAYOUT}; given {', '.join(found)}"


@rule(_LAYOUT, LAYOUT)
def layout_fits(file: MegatronView) -> Refused:
    """A layout names every layer once, in order, in a multiple of pp parts."""
    if not file.word(LAYOUT):
        return {}
    try:
        stages = parse_layout(file.word(LAYOUT))
    except ValueError as error:
        return {str(error): True}
    parts = f"must have a multiple of pp {file.pp} parts; given {len(stages)}"
    problem = layout_problem(stages, file.num_layers or None)
    return {parts: len(stages) % file.pp, problem or "": problem}


@rule(_LAYOUT, LAYOUT)
def layout_holds_mtp(file: MegatronView) -> Refused:
    """A layout names the layers of multi-token prediction, in one part behind all others."""
    try:
        parts = parse_layout(file.word(LAYOUT))
    except ValueError:
        return {}
    is_unknown = MTP in file.settings and not file.has(MTP)
    if is_unknown or not file.word(LAYOUT):
        return {}
    number, flat = file.number(MTP) or 0, "".join(parts)
    of_parts = [part.count("m") for part in parts]
    wrong = {
        f"holds {sum(of_parts)} layers m; {MTP} is {number}": sum(of_parts) != number,
        "has layers t behind m; all layers m stand behind them": "t" in flat.partition("m")[2],
        "has layers m in several parts; all stand in one": number not in (0, max(of_parts)),
        "has layers m before a stage's last part; allowed is the last": any(of_parts[: -file.pp]),
    }
    return first_of(wrong)


@in_config(LAYOUT)
def layout_stands_alone(file: MegatronView) -> Refused:
    """A layout leaves nothing to the other options of uneven stages."""
    found = file.having(FIRST, LAST, EMBEDDING, LOSS)
    return {f"cannot stand beside {', '.join(found)}": file.has(LAYOUT) and found}


rule(
    CONFIG,
    name="ends_or_accounted",
    holds="Layers of the ends, and embedding and loss as layers, exclude each other.",
    when=lambda file: file.having(FIRST, LAST)[:1] if any(accounted(file.settings)) else [],
    says=f"cannot stand beside {EMBEDDING} or {LOSS}",
)
in_arguments(
    CHUNK,
    "ends_take_number_of_chunks",
    f"cannot stand beside {FIRST} and {LAST}; allowed is {CHUNKS}",
    lambda file: file.has(CHUNK) and bool(file.having(FIRST, LAST)),
)


@in_config()
def ends_leave_even_middle(file: MegatronView) -> Violations:
    """The layers between first and last stage are split evenly, and all stages into the chunks."""
    given = file.having(FIRST, LAST)
    if not given or file.has(LAYOUT) or not file.num_layers:
        return
    ends = [file.number(end) or 0 for end in given]
    middle = file.pp - len(ends)
    rest = file.num_layers - sum(ends)
    vpp = file.number(CHUNKS) or 1
    wrong = {
        f"must be from 1 on; given {ends}": any(count < 1 for count in ends),
        f"leaves {rest} layers for {middle} stages between; they must be equal": (
            bool(rest) != bool(middle) or (middle > 0 and rest % middle)
        ),
        f"every stage must split into {vpp} chunks; given {ends}": (
            any(count % vpp for count in (*ends, rest // max(middle, 1)))
        ),
    }
    yield from ((given[0], text) for text in first_of(wrong))


@in_arguments(PP)
def chunks_need_stages(file: MegatronView) -> Refused:
    """Interleaving needs two stages, without overlapped transfers three."""
    least = 3 if file.flag("--no-overlap-p2p-communication") else 2
    is_short = file.vpp > 1 and file.pp < least
    return {f"{file.vpp} chunks per stage need {least} stages; given {file.pp}": is_short}


def _unfilled(file: MegatronView, batch: int, micro_batch: int) -> Refused:
    """What is wrong with the number of micro-batches of a batch under interleaving."""
    count, rest = divmod(batch, micro_batch * file.dp or 1)
    if file.vpp == 1 or not count * micro_batch * file.dp or rest:
        return {}
    group = file.number("--microbatch-group-size-per-virtual-pipeline-stage") or file.pp
    is_group, left = file.pp <= group <= count, count % group
    return {
        f"needs {group} micro-batches or more, groups of at least pp; given {count}": not is_group,
        f"{count} micro-batches leave {left} in the last group of {group}": (
            is_group and 0 < left < file.pp
        ),
    }


def _undivided(file: MegatronView, batch: int, micro_batch: int) -> Refused:
    each = micro_batch * file.dp
    what = f"a multiple of micro-batch {micro_batch} x dp {file.dp} = {each}"
    return {f"must be {what}; given {batch}": each and batch % each}


def _of_batches(file: MegatronView, ask: Callable[..., Refused]) -> Violations:
    """What is wrong with the batch, or one of a schedule, at the option that says it."""
    key = STEPS if file.has(STEPS) else BATCH
    for batch in file.batches:
        yield from ((key, text) for text in which(ask(file, batch, file.micro_batch)))


def _of_evaluation(file: MegatronView, ask: Callable[..., Refused]) -> Violations:
    """The same of the batch of evaluations, where it is another."""
    given = file.having(EVAL_BATCH, EVAL_MICRO)
    if given and file.number("--eval-iters") != 0:
        batch = file.number(EVAL_BATCH) or file.global_batch
        refused = ask(file, batch, file.number(EVAL_MICRO) or file.micro_batch)
        yield from ((given[0], text) for text in which(refused))


@rule(_SCHEDULES)
def micro_batches_fill_chunks(file: MegatronView) -> Violations:
    """Interleaved stages take micro-batches in groups of at least pp."""
    return _of_batches(file, _unfilled)


@rule.unenforced(f"{_SCHEDULES}, in the first evaluation")
def evaluation_fills_chunks(file: MegatronView) -> Violations:
    """Interleaved stages evaluate micro-batches in groups of at least pp, too."""
    return _of_evaluation(file, _unfilled)


@in_arguments()
def batch_divides(file: MegatronView) -> Violations:
    """Micro-batches of equal size make up the batch on every replica."""
    return iter(()) if file.flag(DECREASES) else _of_batches(file, _undivided)


@in_arguments()
def evaluation_divides(file: MegatronView) -> Violations:
    """Micro-batches of equal size make up the batch of an evaluation."""
    return _of_evaluation(file, _undivided)


@rule(_BATCHES, STEPS)
def batch_schedule_is_whole(file: MegatronView) -> Refused:
    """A schedule of batches starts at 0, grows, and says all batches."""
    if not file.has(STEPS):
        return {}
    try:
        starts = [tokens // max(1, file.seq_len) for tokens, _ in batches_in(file.settings)]
    except ValueError as error:
        return {str(error): True}
    others = file.having(BATCH, DECREASES)
    return {
        f"cannot stand beside {' and '.join(others)}": others,
        f"must begin at 0; given {starts[:1]}": starts[:1] != [0],
        "has two batches that begin in the same sequence": len({*starts}) < len(starts),
    }


rule.unenforced(
    _BATCHES,
    RAMPUP,
    "batch_ramp_is_ignored",
    f"is ignored: all iterations take --global-batch-size; {STEPS} says it today",
    lambda file: file.has(RAMPUP),
    severity="warning",
)


in_arguments(
    CP,
    "cp_divides_sequence",
    "2 x cp = 2 x {file.cp} must divide --seq-length; given {file.seq_len}",
    # One from the front and one from the back: under a causal mask all do the same work.
    lambda file: file.cp > 1 and file.seq_len % (2 * file.cp) > 0,
)


@in_arguments("--max-position-embeddings")
def positions_cover_sequence(file: MegatronView) -> Refused:
    """No sequence is longer than the positions."""
    given = "--encoder-seq-length" if file.has("--encoder-seq-length") else "--seq-length"
    most, length = file.number("--max-position-embeddings"), file.number(given) or 1
    is_short = most is not None and most < length
    return {f"must be at least {given} {length}; given {most}": is_short}


@in_arguments()
def hierarchy_makes_up_cp(file: MegatronView) -> Violations:
    """Two-level context parallelism needs its sizes, and they make up cp."""
    option = "--hierarchical-context-parallel-sizes"
    sizes = file.words(option)
    if sizes and prod(map(int, sizes)) != file.cp:
        yield option, f"must multiply to cp {file.cp}; given {' x '.join(sizes)}"
    elif not sizes and "a2a+p2p" in file.words(CP_TYPE):
        yield CP_TYPE, f"a2a+p2p needs {option}"


@rule.unenforced(_ATTENTION, CP_TYPE)
def heads_divide_exchange(file: MegatronView) -> Refused:
    """Context parallelism that exchanges heads splits the heads of a rank."""
    refused: dict[str, bool] = {}
    if "a2a" not in file.words(CP_TYPE):
        return refused
    for what, count in (("heads", file.num_heads), ("query groups", file.num_kv_heads)):
        own, rest = divmod(count, file.tp)
        needed = f"a2a: cp {file.cp} must divide the {own} {what} of a rank"
        refused[needed] = rest == 0 and own % file.cp > 0
    return refused


@rule.unenforced(_ATTENTION, CP_TYPE)
def exchange_is_known(file: MegatronView) -> Refused:
    """Keys and values pass between context-parallel ranks in a way that attention has."""
    is_used = file.cp > 1 and not file.has("--experimental-attention-variant")
    return {
        f"unknown {name}; allowed are {', '.join(CP_TYPES)}": is_used and name not in CP_TYPES
        for name in file.words(CP_TYPE)
    }


@in_config(CP_TYPE)
def exchange_fits_layers(file: MegatronView) -> Refused:
    """One way of context parallelism serves all layers, or every layer names its own."""
    count, layers = len(file.words(CP_TYPE)), file.num_layers
    is_other = file.cp > 1 and layers and count not in (0, 1, layers)
    return {f"must name 1 way or {layers}, one per layer; given {count}": is_other}


@in_arguments("--expert-model-parallel-size")
def ep_divides_experts(file: MegatronView) -> Refused:
    """Experts are shared out evenly."""
    ep, experts = file.ep, file.num_experts
    # Without a model nobody knows whether there are experts.
    knows_model = file.has("--num-layers") or "model.num_experts" in file.world.decisions
    is_needless = ep > 1 and knows_model and not experts
    return {
        f"needs experts, and the model has none; given {ep}": is_needless,
        f"must divide the {experts} experts; given {ep}": experts % ep,
    }


rule(
    _STATE,
    "--use-tp-pp-dp-mapping",
    "inner_stages_keep_dp",
    ("needs equal data parallelism of experts and the rest; given {file.expert_dp} and {file.dp}"),
    lambda file: file.pp > 1 and file.expert_dp != file.dp,
    on="--use-tp-pp-dp-mapping",
)


@rule(_STATE, "--num-distributed-optimizer-instances")
def instances_divide_dp(file: MegatronView) -> Refused:
    """Replicas of the sharding group divide dp x cp and the experts' dp."""
    count, ranks, expert_dp = file.instances, file.dp * file.cp, file.expert_dp
    return {
        f"must divide dp x cp {ranks}; given {count}": ranks % count,
        f"must divide experts' dp {expert_dp}; given {count}": expert_dp % count,
    }


@in_arguments()
def required_options(file: MegatronView) -> list[str]:
    """Is missing; Megatron has no default for it."""
    # A model that is described is described in full; other scripts may have defaults.
    is_described = file.having(*list(REQUIRED)[:3])
    if not is_described or HIDDEN in file.settings or not is_own_script(file["script"] or ""):
        return []
    return [
        option
        for option, others in REQUIRED.items()
        if file.settings.keys().isdisjoint((option, *others))
    ]


@in_arguments()
def removed_options(file: MegatronView) -> Violations:
    """Options that are still parsed but refused."""
    for option in file.having(*REMOVED):
        yield option, f"is no longer taken; allowed is {REMOVED[option]}"


in_arguments(
    "--train-samples",
    "train_length_given_once",
    "cannot stand beside --train-iters; allowed is one of them",
    lambda file: file.has("--train-iters") and file.has("--train-samples"),
)
rule.unenforced(
    f"{ARGUMENTS} switches it off with a warning",
    "--sequence-parallel",
    "sequence_parallel_needs_tp",
    "is switched off silently: --tensor-model-parallel-size is 1",
    lambda file: file.flag("--sequence-parallel") and file.tp == 1,
    severity="warning",
)
rule.unenforced(
    "megatron/core/transformer/moe/moe_layer.py, in the first layer",
    "--tensor-model-parallel-size",
    "mixture_with_tp_needs_sequence_parallel",
    "{file.tp} with experts needs --sequence-parallel in training",
    lambda file: file.num_experts > 0 and file.tp > 1 and not file["--sequence-parallel"],
)
in_arguments(
    "--tp-comm-overlap",
    "tp_overlap_needs_sequence_parallel",
    "needs --sequence-parallel and tensor parallelism; given tp {file.tp}",
    lambda file: not file["--sequence-parallel"] or file.tp == 1,
    on="--tp-comm-overlap",
)
in_config(
    "--num-experts",
    "expert_bias_needs_whole_experts",
    (
        "experts with biases need --expert-tensor-parallel-size 1 or --disable-bias-linear; "
        "given {file.etp}"
    ),
    lambda file: file.has("--num-experts") and not file["--disable-bias-linear"] and file.etp > 1,
)

"""Rules about degrees, stages, chunks and batch."""

from planner.formats.megatron.decisions_layout import BATCH
from planner.formats.megatron.layout import layout_problem, parse_layout
from planner.formats.megatron.options import (
    CHUNK,
    CHUNKS,
    EMBEDDING,
    FIRST,
    LAST,
    LAYOUT,
    LOSS,
    PP,
    TP,
    accounted,
    names,
)
from planner.formats.megatron.view import MegatronView
from planner.formats.rules import Rules, Violations

CP = "--context-parallel-size"
EP = "--expert-model-parallel-size"
CP_TYPE = "--cp-comm-type"
CP_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
INSTANCES = "--num-distributed-optimizer-instances"
_ARGUMENTS = "megatron/training/arguments.py"
_CONFIG = "megatron/core/transformer/transformer_config.py"
_STATE = "megatron/core/parallel_state.py"
_EXCHANGE = "Transformer Engine's attention with context parallelism, in the first layer"

rule = Rules(MegatronView)


@rule(_ARGUMENTS)
def degrees_divide_processes(file: MegatronView) -> Violations:
    """All degrees together, tp x pp x cp, divide the number of processes."""
    inner = file.tp * file.pp * file.cp
    if file.num_gpus and file.num_gpus % inner:
        option = max(((file.tp, TP), (file.pp, PP), (file.cp, CP)), key=lambda each: each[0])[1]
        yield option, f"tp x pp x cp = {inner} must divide the processes; given {file.num_gpus}"


@rule(
    _STATE,
    key=EP,
    says=(
        "expert tensor parallelism {file.etp} x ep {file.ep} x pp {file.pp} must divide the "
        "processes; given {file.num_gpus}"
    ),
)
def expert_degrees_divide_processes(file: MegatronView) -> bool:
    """Expert tensor parallelism x ep x pp divides the number of processes."""
    inner = file.etp * file.ep * file.pp
    return bool(file.num_experts and file.num_gpus % inner)


@rule(_CONFIG, key=TP, says="must divide the {file.num_heads} attention heads; given {file.tp}")
def tp_divides_heads(file: MegatronView) -> bool:
    """Attention heads are split whole."""
    return bool(file.num_heads % file.tp)


@rule(
    _CONFIG,
    key=TP,
    says="must divide the {file.num_kv_heads} query groups or be a multiple; given {file.tp}",
)
def tp_fits_kv_heads(file: MegatronView) -> bool:
    """Key and value heads are split whole or repeated equally often."""
    heads = file.num_kv_heads
    return bool(heads and heads % file.tp and file.tp % heads)


@rule("megatron/core/tensor_parallel/layers.py, when the model is built", enforced=False)
def tp_divides_ffn(file: MegatronView) -> Violations:
    """The MLP's width is split evenly."""
    width = file.size("--ffn-hidden-size", "model.ffn_size", 0)
    if width % file.tp:
        yield TP, f"must divide the MLP's width {width}; given {file.tp}"


@rule(_ARGUMENTS)
def heads_divide_width(file: MegatronView) -> Violations:
    """Without a head size of its own the width is split over the heads."""
    width = file.size("--hidden-size", "model.hidden_size", 0)
    if file.has("--kv-channels") or not file.has("--num-attention-heads"):
        return
    if file.num_heads and width % file.num_heads:
        message = f"must divide --hidden-size {width} or come with --kv-channels"
        yield "--num-attention-heads", f"{message}; given {file.num_heads}"


def _counted_layers(file: MegatronView) -> int:
    return file.num_layers + sum(accounted(file.settings))


def _has_ends(file: MegatronView) -> bool:
    return file.has(FIRST) or file.has(LAST)


@rule(_ARGUMENTS)
def pp_divides_layers(file: MegatronView) -> Violations:
    """Stages are equal unless a layout or the ends are given."""
    layers = _counted_layers(file)
    if file.has(LAYOUT) or file.has(CHUNKS) or _has_ends(file) or not file.num_layers:
        return
    if layers % file.pp:
        yield (
            PP,
            (
                f"must divide {layers} layers, embedding and loss counted where asked; given "
                f"{file.pp}, uneven stages need {LAYOUT}"
            ),
        )


@rule(_ARGUMENTS)
def chunk_divides_stage(file: MegatronView) -> Violations:
    """Chunks of the size given fill every stage."""
    size, layers = file.number(CHUNK), _counted_layers(file)
    if size is None or not file.num_layers or layers % file.pp:
        return
    if size < 1 or (layers // file.pp) % size:
        yield CHUNK, f"must divide the {layers // file.pp} layers of a stage; given {size}"


@rule("megatron/core/transformer/transformer_block.py, when the model is built", enforced=False)
def chunks_divide_stage(file: MegatronView) -> Violations:
    """Each stage splits into the number of chunks given."""
    count, layers = file.number(CHUNKS), _counted_layers(file)
    if not count or not file.num_layers or _has_ends(file):
        return
    if layers % (file.pp * count):
        yield CHUNKS, f"pp {file.pp} x {count} chunks must divide {layers} layers; given {count}"


@rule(_ARGUMENTS)
def one_way_to_interleave(file: MegatronView) -> Violations:
    """Chunk size, number of chunks, and layout exclude each other."""
    found = [option for option in (CHUNK, CHUNKS, LAYOUT) if file.has(option)]
    if len(found) > 1:
        yield found[-1], f"at most one of {CHUNK}, {CHUNKS}, {LAYOUT}; given {', '.join(found)}"


@rule("megatron/core/transformer/pipeline_parallel_layer_layout.py")
def layout_fits(file: MegatronView) -> Violations:
    """A layout names every layer once, in order, in a multiple of pp parts."""
    layout = file.word(LAYOUT)
    if not layout:
        return
    try:
        stages = parse_layout(layout)
    except ValueError as error:
        yield LAYOUT, str(error)
        return
    if len(stages) % file.pp:
        yield LAYOUT, f"must have a multiple of pp {file.pp} parts; given {len(stages)}"
    problem = layout_problem(stages, file.num_layers or None)
    if problem:
        yield LAYOUT, problem


@rule(_CONFIG)
def layout_stands_alone(file: MegatronView) -> Violations:
    """A layout leaves nothing to the other options of uneven stages."""
    found = [option for option in (FIRST, LAST, EMBEDDING, LOSS) if file.has(option)]
    if file.has(LAYOUT) and found:
        yield LAYOUT, f"cannot stand beside {', '.join(found)}"


@rule(_CONFIG)
def ends_or_accounted(file: MegatronView) -> Violations:
    """Layers of the ends, and embedding and loss as layers, exclude each other."""
    if _has_ends(file) and any(accounted(file.settings)):
        end = FIRST if file.has(FIRST) else LAST
        yield end, f"cannot stand beside {EMBEDDING} or {LOSS}"


@rule(_ARGUMENTS)
def ends_take_number_of_chunks(file: MegatronView) -> Violations:
    """With layers of the ends, chunks are given by number."""
    if _has_ends(file) and file.has(CHUNK):
        end = FIRST if file.has(FIRST) else LAST
        yield CHUNK, f"cannot stand beside {end}; allowed is {CHUNKS}"


@rule(_CONFIG)
def ends_leave_even_middle(file: MegatronView) -> Violations:
    """What the ends leave is split evenly, and all stages split into the chunks."""
    if not _has_ends(file) or file.has(LAYOUT) or not file.num_layers:
        return
    given = {end: file.number(end) for end in (FIRST, LAST) if file.has(end)}
    ends = {end: count for end, count in given.items() if count is not None}
    option, middle = next(iter(given)), file.pp - len(ends)
    rest, vpp = file.num_layers - sum(ends.values()), file.number(CHUNKS) or 1
    if any(count < 1 for count in ends.values()):
        yield option, f"must be from 1 on; given {list(ends.values())}"
    elif bool(rest) != bool(middle) or (middle > 0 and rest % middle):
        yield option, f"leaves {rest} layers for {middle} stages between; they must be equal"
    elif any(count % vpp for count in (*ends.values(), rest // middle if middle else 0)):
        yield option, f"every stage must split into {vpp} chunks; given {list(ends.values())}"


@rule(_ARGUMENTS)
def chunks_need_stages(file: MegatronView) -> Violations:
    """Interleaving needs two stages, without overlapped transfers three."""
    least = 3 if file.on("--no-overlap-p2p-communication") else 2
    if file.vpp > 1 and file.pp < least:
        yield PP, f"{file.vpp} chunks per stage need {least} stages; given {file.pp}"


@rule("megatron/core/pipeline_parallel/schedules.py")
def micro_batches_fill_chunks(file: MegatronView) -> Violations:
    """Interleaved stages take micro-batches in groups of at least pp."""
    micro, batch = (
        file.size("--micro-batch-size", "micro_batch", 0),
        file.size(BATCH, "global_batch", 0),
    )
    if file.vpp == 1 or not micro or not batch or not file.dp or batch % (micro * file.dp):
        return
    count = batch // (micro * file.dp)
    option = "--microbatch-group-size-per-virtual-pipeline-stage"
    group = file.number(option) or file.pp
    if not file.pp <= group <= count:
        yield BATCH, f"needs {group} micro-batches or more, groups of at least pp; given {count}"
    elif 0 < count % group < file.pp:
        yield BATCH, f"{count} micro-batches leave {count % group} in the last group of {group}"


@rule(_ARGUMENTS)
def batch_divides(file: MegatronView) -> Violations:
    """Micro-batches of equal size make up the batch on every replica."""
    micro, batch = (
        file.size("--micro-batch-size", "micro_batch", 0),
        file.size(BATCH, "global_batch", 0),
    )
    each = micro * file.dp
    if each and batch % each:
        message = f"must be a multiple of micro-batch {micro} x dp {file.dp} = {each}"
        yield BATCH, f"{message}; given {batch}"


@rule(_ARGUMENTS)
def cp_divides_sequence(file: MegatronView) -> Violations:
    """Each rank takes two pieces of the sequence."""
    length = file.size("--seq-length", "seq_len", 0)
    if file.cp > 1 and length % (2 * file.cp):
        yield CP, f"2 x cp = {2 * file.cp} must divide --seq-length; given {length}"


@rule(_ARGUMENTS)
def positions_cover_sequence(file: MegatronView) -> Violations:
    """No sequence is longer than the positions."""
    option = "--max-position-embeddings"
    most = file.number(option)
    given = "--encoder-seq-length" if file.has("--encoder-seq-length") else "--seq-length"
    length = file.size(given)
    if most is not None and most < length:
        yield option, f"must be at least {given} {length}; given {most}"


@rule(_ARGUMENTS)
def hierarchy_makes_up_cp(file: MegatronView) -> Violations:
    """Two-level context parallelism needs its sizes, and they make up cp."""
    option, product = "--hierarchical-context-parallel-sizes", 1
    sizes = names(file.settings, option)
    for size in sizes:
        product *= int(size)
    if sizes and product != file.cp:
        yield option, f"must multiply to cp {file.cp}; given {' x '.join(sizes)}"
    elif not sizes and "a2a+p2p" in file.words(CP_TYPE):
        yield CP_TYPE, f"a2a+p2p needs {option}"


@rule(_EXCHANGE, enforced=False)
def heads_divide_exchange(file: MegatronView) -> Violations:
    """Context parallelism that exchanges heads splits the heads of a rank."""
    if file.cp == 1 or "a2a" not in file.words(CP_TYPE):
        return
    for heads, what in ((file.num_heads, "heads"), (file.num_kv_heads, "query groups")):
        if heads and heads % file.tp == 0 and (heads // file.tp) % file.cp:
            own = heads // file.tp
            yield CP_TYPE, f"a2a: cp {file.cp} must divide the {own} {what} of a rank"


@rule(_EXCHANGE, enforced=False)
def exchange_is_known(file: MegatronView) -> Violations:
    """Keys and values pass between context-parallel ranks in a way that attention has."""
    if file.cp == 1 or file.has("--experimental-attention-variant"):
        return
    for name in dict.fromkeys(file.words(CP_TYPE)):
        if name not in CP_TYPES:
            yield CP_TYPE, f"unknown {name}; allowed are {', '.join(CP_TYPES)}"


@rule(_CONFIG)
def exchange_fits_layers(file: MegatronView) -> Violations:
    """One way of context parallelism serves all layers, or every layer names its own."""
    count = len(file.words(CP_TYPE))
    if file.cp > 1 and file.num_layers and count not in (0, 1, file.num_layers):
        yield CP_TYPE, f"must name 1 way or {file.num_layers}, one per layer; given {count}"


@rule(_ARGUMENTS)
def ep_divides_experts(file: MegatronView) -> Violations:
    """Experts are shared out evenly."""
    if file.ep > 1 and not file.num_experts:
        if file.knows_model:
            yield EP, f"needs experts, and the model has none; given {file.ep}"
    elif file.ep > 1 and file.num_experts % file.ep:
        yield EP, f"must divide the {file.num_experts} experts; given {file.ep}"


@rule(
    _STATE,
    key="--use-tp-pp-dp-mapping",
    says=(
        "needs equal data parallelism of experts and the rest; given {file.expert_dp} and {file.dp}"
    ),
)
def inner_stages_keep_dp(file: MegatronView) -> bool:
    """With stages inside data parallelism, experts have the same data parallelism."""
    return file.on("--use-tp-pp-dp-mapping") and file.pp > 1 and file.dp != file.expert_dp


@rule(_STATE)
def instances_divide_dp(file: MegatronView) -> Violations:
    """Replicas of the sharding group divide dp x cp and the experts' dp."""
    count = file.size(INSTANCES)
    for size, what in ((file.dp * file.cp, "dp x cp"), (file.expert_dp, "experts' dp")):
        if size and size % count:
            yield INSTANCES, f"must divide {what} {size}; given {count}"

"""Rules about degrees, stages, chunks and batch."""

from collections.abc import Iterator

from planner.formats.megatron.decisions_layout import BATCH
from planner.formats.megatron.facts import Breach, Facts, rule
from planner.formats.megatron.layout import layout_problem, parse_layout
from planner.formats.megatron.settings import (
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

CP = "--context-parallel-size"
EP = "--expert-model-parallel-size"
CP_TYPE = "--cp-comm-type"
CP_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
INSTANCES = "--num-distributed-optimizer-instances"
_ARGUMENTS = "megatron/training/arguments.py"
_CONFIG = "megatron/core/transformer/transformer_config.py"
_STATE = "megatron/core/parallel_state.py"
_EXCHANGE = "Transformer Engine's attention with context parallelism, in the first layer"


def degrees_divide_processes(facts: Facts) -> Iterator[Breach]:
    """All degrees together, tp x pp x cp, divide the number of processes."""
    inner = facts.tp * facts.pp * facts.cp
    if facts.num_gpus and facts.num_gpus % inner:
        option = max(((facts.tp, TP), (facts.pp, PP), (facts.cp, CP)), key=lambda each: each[0])[1]
        yield option, f"tp x pp x cp = {inner} must divide the processes; given {facts.num_gpus}"


def expert_degrees_divide_processes(facts: Facts) -> Iterator[Breach]:
    """Expert tensor parallelism x ep x pp divides the number of processes."""
    inner = facts.etp * facts.ep * facts.pp
    if facts.num_experts and facts.num_gpus % inner:
        yield (
            EP,
            (
                f"expert tensor parallelism {facts.etp} x ep {facts.ep} x pp {facts.pp} must "
                f"divide the processes; given {facts.num_gpus}"
            ),
        )


def tp_divides_heads(facts: Facts) -> Iterator[Breach]:
    """Attention heads are split whole."""
    if facts.num_heads % facts.tp:
        yield TP, f"must divide the {facts.num_heads} attention heads; given {facts.tp}"


def tp_fits_kv_heads(facts: Facts) -> Iterator[Breach]:
    """Key and value heads are split whole or repeated equally often."""
    heads = facts.num_kv_heads
    if heads and heads % facts.tp and facts.tp % heads:
        yield TP, f"must divide the {heads} query groups or be a multiple; given {facts.tp}"


def tp_divides_ffn(facts: Facts) -> Iterator[Breach]:
    """The MLP's width is split evenly."""
    width = facts.whole("--ffn-hidden-size", "model.ffn_size", 0)
    if width % facts.tp:
        yield TP, f"must divide the MLP's width {width}; given {facts.tp}"


def heads_divide_width(facts: Facts) -> Iterator[Breach]:
    """Without a head size of its own the width is split over the heads."""
    width = facts.whole("--hidden-size", "model.hidden_size", 0)
    if facts.given("--kv-channels") or not facts.given("--num-attention-heads"):
        return
    if facts.num_heads and width % facts.num_heads:
        message = f"must divide --hidden-size {width} or come with --kv-channels"
        yield "--num-attention-heads", f"{message}; given {facts.num_heads}"


def _counted_layers(facts: Facts) -> int:
    return facts.num_layers + sum(accounted(facts.settings))


def _has_ends(facts: Facts) -> bool:
    return facts.given(FIRST) or facts.given(LAST)


def pp_divides_layers(facts: Facts) -> Iterator[Breach]:
    """Stages are equal unless a layout or the ends are given."""
    layers = _counted_layers(facts)
    if facts.given(LAYOUT) or facts.given(CHUNKS) or _has_ends(facts) or not facts.num_layers:
        return
    if layers % facts.pp:
        yield (
            PP,
            (
                f"must divide {layers} layers, embedding and loss counted where asked; given "
                f"{facts.pp}, uneven stages need {LAYOUT}"
            ),
        )


def chunk_divides_stage(facts: Facts) -> Iterator[Breach]:
    """Chunks of the size given fill every stage."""
    size, layers = facts.number(CHUNK), _counted_layers(facts)
    if size is None or not facts.num_layers or layers % facts.pp:
        return
    if size < 1 or (layers // facts.pp) % size:
        yield CHUNK, f"must divide the {layers // facts.pp} layers of a stage; given {size}"


def chunks_divide_stage(facts: Facts) -> Iterator[Breach]:
    """Each stage splits into the number of chunks given."""
    count, layers = facts.number(CHUNKS), _counted_layers(facts)
    if not count or not facts.num_layers or _has_ends(facts):
        return
    if layers % (facts.pp * count):
        yield CHUNKS, f"pp {facts.pp} x {count} chunks must divide {layers} layers; given {count}"


def one_way_to_interleave(facts: Facts) -> Iterator[Breach]:
    """Chunk size, number of chunks, and layout exclude each other."""
    found = [option for option in (CHUNK, CHUNKS, LAYOUT) if facts.given(option)]
    if len(found) > 1:
        yield found[-1], f"at most one of {CHUNK}, {CHUNKS}, {LAYOUT}; given {', '.join(found)}"


def layout_fits(facts: Facts) -> Iterator[Breach]:
    """A layout names every layer once, in order, in a multiple of pp parts."""
    layout = facts.word(LAYOUT)
    if not layout:
        return
    try:
        stages = parse_layout(layout)
    except ValueError as error:
        yield LAYOUT, str(error)
        return
    if len(stages) % facts.pp:
        yield LAYOUT, f"must have a multiple of pp {facts.pp} parts; given {len(stages)}"
    problem = layout_problem(stages, facts.num_layers or None)
    if problem:
        yield LAYOUT, problem


def layout_stands_alone(facts: Facts) -> Iterator[Breach]:
    """A layout leaves nothing to the other options of uneven stages."""
    found = [option for option in (FIRST, LAST, EMBEDDING, LOSS) if facts.given(option)]
    if facts.given(LAYOUT) and found:
        yield LAYOUT, f"cannot stand beside {', '.join(found)}"


def ends_or_accounted(facts: Facts) -> Iterator[Breach]:
    """Layers of the ends, and embedding and loss as layers, exclude each other."""
    if _has_ends(facts) and any(accounted(facts.settings)):
        end = FIRST if facts.given(FIRST) else LAST
        yield end, f"cannot stand beside {EMBEDDING} or {LOSS}"


def ends_take_number_of_chunks(facts: Facts) -> Iterator[Breach]:
    """With layers of the ends, chunks are given by number."""
    if _has_ends(facts) and facts.given(CHUNK):
        end = FIRST if facts.given(FIRST) else LAST
        yield CHUNK, f"cannot stand beside {end}; allowed is {CHUNKS}"


def ends_leave_even_middle(facts: Facts) -> Iterator[Breach]:
    """What the ends leave is split evenly, and all stages split into the chunks."""
    if not _has_ends(facts) or facts.given(LAYOUT) or not facts.num_layers:
        return
    given = {end: facts.number(end) for end in (FIRST, LAST) if facts.given(end)}
    ends = {end: count for end, count in given.items() if count is not None}
    option, middle = next(iter(given)), facts.pp - len(ends)
    rest, vpp = facts.num_layers - sum(ends.values()), facts.number(CHUNKS) or 1
    if any(count < 1 for count in ends.values()):
        yield option, f"must be from 1 on; given {list(ends.values())}"
    elif bool(rest) != bool(middle) or (middle > 0 and rest % middle):
        yield option, f"leaves {rest} layers for {middle} stages between; they must be equal"
    elif any(count % vpp for count in (*ends.values(), rest // middle if middle else 0)):
        yield option, f"every stage must split into {vpp} chunks; given {list(ends.values())}"


def chunks_need_stages(facts: Facts) -> Iterator[Breach]:
    """Interleaving needs two stages, without overlapped transfers three."""
    least = 3 if facts.on("--no-overlap-p2p-communication") else 2
    if facts.vpp > 1 and facts.pp < least:
        yield PP, f"{facts.vpp} chunks per stage need {least} stages; given {facts.pp}"


def micro_batches_fill_chunks(facts: Facts) -> Iterator[Breach]:
    """Interleaved stages take micro-batches in groups of at least pp."""
    micro, batch = (
        facts.whole("--micro-batch-size", "micro_batch", 0),
        facts.whole(BATCH, "global_batch", 0),
    )
    if facts.vpp == 1 or not micro or not batch or not facts.dp or batch % (micro * facts.dp):
        return
    count = batch // (micro * facts.dp)
    option = "--microbatch-group-size-per-virtual-pipeline-stage"
    group = facts.number(option) or facts.pp
    if not facts.pp <= group <= count:
        yield BATCH, f"needs {group} micro-batches or more, groups of at least pp; given {count}"
    elif 0 < count % group < facts.pp:
        yield BATCH, f"{count} micro-batches leave {count % group} in the last group of {group}"


def batch_divides(facts: Facts) -> Iterator[Breach]:
    """Micro-batches of equal size make up the batch on every replica."""
    micro, batch = (
        facts.whole("--micro-batch-size", "micro_batch", 0),
        facts.whole(BATCH, "global_batch", 0),
    )
    each = micro * facts.dp
    if each and batch % each:
        message = f"must be a multiple of micro-batch {micro} x dp {facts.dp} = {each}"
        yield BATCH, f"{message}; given {batch}"


def cp_divides_sequence(facts: Facts) -> Iterator[Breach]:
    """Each rank takes two pieces of the sequence."""
    length = facts.whole("--seq-length", "seq_len", 0)
    if facts.cp > 1 and length % (2 * facts.cp):
        yield CP, f"2 x cp = {2 * facts.cp} must divide --seq-length; given {length}"


def positions_cover_sequence(facts: Facts) -> Iterator[Breach]:
    """No sequence is longer than the positions."""
    option = "--max-position-embeddings"
    most = facts.number(option)
    given = "--encoder-seq-length" if facts.given("--encoder-seq-length") else "--seq-length"
    length = facts.whole(given)
    if most is not None and most < length:
        yield option, f"must be at least {given} {length}; given {most}"


def hierarchy_makes_up_cp(facts: Facts) -> Iterator[Breach]:
    """Two-level context parallelism needs its sizes, and they make up cp."""
    option, product = "--hierarchical-context-parallel-sizes", 1
    sizes = names(facts.settings, option)
    for size in sizes:
        product *= int(size)
    if sizes and product != facts.cp:
        yield option, f"must multiply to cp {facts.cp}; given {' x '.join(sizes)}"
    elif not sizes and "a2a+p2p" in facts.words(CP_TYPE):
        yield CP_TYPE, f"a2a+p2p needs {option}"


def heads_divide_exchange(facts: Facts) -> Iterator[Breach]:
    """Context parallelism that exchanges heads splits the heads of a rank."""
    if facts.cp == 1 or "a2a" not in facts.words(CP_TYPE):
        return
    for heads, what in ((facts.num_heads, "heads"), (facts.num_kv_heads, "query groups")):
        if heads and heads % facts.tp == 0 and (heads // facts.tp) % facts.cp:
            own = heads // facts.tp
            yield CP_TYPE, f"a2a: cp {facts.cp} must divide the {own} {what} of a rank"


def exchange_is_known(facts: Facts) -> Iterator[Breach]:
    """Keys and values pass between context-parallel ranks in a way that attention has."""
    if facts.cp == 1 or facts.given("--experimental-attention-variant"):
        return
    for name in dict.fromkeys(facts.words(CP_TYPE)):
        if name not in CP_TYPES:
            yield CP_TYPE, f"unknown {name}; allowed are {', '.join(CP_TYPES)}"


def exchange_fits_layers(facts: Facts) -> Iterator[Breach]:
    """One way of context parallelism serves all layers, or every layer names its own."""
    count = len(facts.words(CP_TYPE))
    if facts.cp > 1 and facts.num_layers and count not in (0, 1, facts.num_layers):
        yield CP_TYPE, f"must name 1 way or {facts.num_layers}, one per layer; given {count}"


def ep_divides_experts(facts: Facts) -> Iterator[Breach]:
    """Experts are shared out evenly."""
    if facts.ep > 1 and not facts.num_experts:
        if facts.knows_model:
            yield EP, f"needs experts, and the model has none; given {facts.ep}"
    elif facts.ep > 1 and facts.num_experts % facts.ep:
        yield EP, f"must divide the {facts.num_experts} experts; given {facts.ep}"


def inner_stages_keep_dp(facts: Facts) -> Iterator[Breach]:
    """With stages inside data parallelism, experts have the same data parallelism."""
    option = "--use-tp-pp-dp-mapping"
    if facts.on(option) and facts.pp > 1 and facts.dp != facts.expert_dp:
        message = "needs equal data parallelism of experts and the rest"
        yield option, f"{message}; given {facts.expert_dp} and {facts.dp}"


def instances_divide_dp(facts: Facts) -> Iterator[Breach]:
    """Replicas of the sharding group divide dp x cp and the experts' dp."""
    count = facts.whole(INSTANCES)
    for size, what in ((facts.dp * facts.cp, "dp x cp"), (facts.expert_dp, "experts' dp")):
        if size and size % count:
            yield INSTANCES, f"must divide {what} {size}; given {count}"


RULES = (
    rule(degrees_divide_processes, _ARGUMENTS),
    rule(expert_degrees_divide_processes, _STATE),
    rule(tp_divides_heads, _CONFIG),
    rule(tp_fits_kv_heads, _CONFIG),
    rule(
        tp_divides_ffn,
        "megatron/core/tensor_parallel/layers.py, when the model is built",
        enforced=False,
    ),
    rule(heads_divide_width, _ARGUMENTS),
    rule(pp_divides_layers, _ARGUMENTS),
    rule(chunk_divides_stage, _ARGUMENTS),
    rule(
        chunks_divide_stage,
        "megatron/core/transformer/transformer_block.py, when the model is built",
        enforced=False,
    ),
    rule(one_way_to_interleave, _ARGUMENTS),
    rule(layout_fits, "megatron/core/transformer/pipeline_parallel_layer_layout.py"),
    rule(layout_stands_alone, _CONFIG),
    rule(ends_or_accounted, _CONFIG),
    rule(ends_take_number_of_chunks, _ARGUMENTS),
    rule(ends_leave_even_middle, _CONFIG),
    rule(chunks_need_stages, _ARGUMENTS),
    rule(micro_batches_fill_chunks, "megatron/core/pipeline_parallel/schedules.py"),
    rule(batch_divides, _ARGUMENTS),
    rule(cp_divides_sequence, _ARGUMENTS),
    rule(positions_cover_sequence, _ARGUMENTS),
    rule(hierarchy_makes_up_cp, _ARGUMENTS),
    rule(heads_divide_exchange, _EXCHANGE, enforced=False),
    rule(exchange_is_known, _EXCHANGE, enforced=False),
    rule(exchange_fits_layers, _CONFIG),
    rule(ep_divides_experts, _ARGUMENTS),
    rule(inner_stages_keep_dp, _STATE),
    rule(instances_divide_dp, _STATE),
)

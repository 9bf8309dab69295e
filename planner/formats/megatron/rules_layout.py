"""Rules about degrees, stages, chunks and batch."""

from math import prod

from planner.formats.megatron.layout import layout_problem, parse_layout
from planner.formats.megatron.options import (
    CHUNK,
    CHUNKS,
    CP,
    EMBEDDING,
    FIRST,
    LAST,
    LAYOUT,
    LOSS,
    MTP,
    PP,
    TP,
    accounted,
)
from planner.formats.megatron.view import ARGUMENTS, CONFIG, MegatronView
from planner.formats.rules import Refused, Rules, Violations, first_of

CP_TYPE = "--cp-comm-type"
CP_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
_STATE = "megatron/core/parallel_state.py"
_BLOCK = "megatron/core/transformer/transformer_block.py, when the model is built"
_LAYOUT = "megatron/core/transformer/pipeline_parallel_layer_layout.py"
_ATTENTION = "Transformer Engine's attention with context parallelism, in the first layer"

rule = Rules(MegatronView)


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
    name="expert_degrees_divide_processes",
    holds="Expert tensor parallelism x ep x pp divides the number of processes.",
    key="--expert-model-parallel-size",
    when=lambda file: file.num_experts > 0 and file.num_gpus % file.expert_ranks > 0,
    says="expert tensor parallelism {file.etp} x ep {file.ep} x pp {file.pp} must divide the "
    "processes; given {file.num_gpus}",
)
rule(
    CONFIG,
    name="tp_divides_heads",
    holds="Must divide the {file.num_heads} attention heads; given {file.tp}.",
    key=TP,
    when=lambda file: file.num_heads % file.tp > 0,
)
rule(
    CONFIG,
    name="tp_fits_kv_heads",
    holds="Must divide the {file.num_kv_heads} query groups or be a multiple; given {file.tp}.",
    key=TP,
    when=lambda file: (
        file.num_kv_heads > 0
        and file.num_kv_heads % file.tp > 0
        and file.tp % file.num_kv_heads > 0
    ),
)
rule.unenforced(
    "megatron/core/tensor_parallel/layers.py, when the model is built",
    name="tp_divides_ffn",
    holds="Must divide the MLP's width {file.ffn_size}; given {file.tp}.",
    key=TP,
    when=lambda file: file.ffn_size % file.tp > 0,
)
rule(
    ARGUMENTS,
    name="heads_divide_width",
    holds="The width is split over the heads unless a head size of its own is given.",
    key="--num-attention-heads",
    when=lambda file: (
        file.has("--num-attention-heads")
        and not file.has("--kv-channels")
        and file.num_heads > 0
        and file.hidden_size % file.num_heads > 0
    ),
    says="must divide --hidden-size {file.hidden_size} or come with --kv-channels; "
    "given {file.num_heads}",
)
rule(
    ARGUMENTS,
    name="pp_divides_layers",
    holds="Stages are equal unless a layout or the ends are given.",
    key=PP,
    when=lambda file: (
        file.counted_layers % file.pp > 0 and not file.having(LAYOUT, CHUNKS, FIRST, LAST)
    ),
    says="must divide {file.counted_layers} layers, embedding and loss counted where asked; "
    f"given {{file.pp}}, uneven stages need {LAYOUT}",
)


@rule(ARGUMENTS, CHUNK)
def chunk_divides_stage(file: MegatronView) -> Refused:
    """Chunks of the size given fill every stage."""
    size = file.number(CHUNK)
    layers, rest = divmod(file.counted_layers, file.pp)
    if size is None or not layers or rest:
        return {}
    is_wrong = size < 1 or layers % size
    return {f"must divide the {layers} layers of a stage; given {size}": is_wrong}


@rule.unenforced(_BLOCK, CHUNKS)
def chunks_divide_stage(file: MegatronView) -> Refused:
    """Each stage splits into the number of chunks given."""
    count, layers = file.number(CHUNKS), file.counted_layers
    if not count or file.having(FIRST, LAST):
        return {}
    is_uneven = layers % (file.pp * count)
    return {f"pp {file.pp} x {count} chunks must divide {layers} layers; given {count}": is_uneven}


@rule(ARGUMENTS)
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


@rule(CONFIG, LAYOUT)
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
rule(
    ARGUMENTS,
    name="ends_take_number_of_chunks",
    holds="Chunks are given by number if the first or last stage has its own layers.",
    key=CHUNK,
    when=lambda file: file.has(CHUNK) and bool(file.having(FIRST, LAST)),
    says=f"cannot stand beside {FIRST} and {LAST}; allowed is {CHUNKS}",
)


@rule(CONFIG)
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


@rule(ARGUMENTS, PP)
def chunks_need_stages(file: MegatronView) -> Refused:
    """Interleaving needs two stages, without overlapped transfers three."""
    least = 3 if file.flag("--no-overlap-p2p-communication") else 2
    is_short = file.vpp > 1 and file.pp < least
    return {f"{file.vpp} chunks per stage need {least} stages; given {file.pp}": is_short}


@rule("megatron/core/pipeline_parallel/schedules.py", "--global-batch-size")
def micro_batches_fill_chunks(file: MegatronView) -> Refused:
    """Interleaved stages take micro-batches in groups of at least pp."""
    count, rest = divmod(file.global_batch, file.micro_batch * file.dp or 1)
    if file.vpp == 1 or not count * file.micro_batch * file.dp or rest:
        return {}
    group = file.number("--microbatch-group-size-per-virtual-pipeline-stage") or file.pp
    is_group, left = file.pp <= group <= count, count % group
    return {
        f"needs {group} micro-batches or more, groups of at least pp; given {count}": not is_group,
        f"{count} micro-batches leave {left} in the last group of {group}": (
            is_group and 0 < left < file.pp
        ),
    }


@rule(ARGUMENTS, "--global-batch-size")
def batch_divides(file: MegatronView) -> Refused:
    """Micro-batches of equal size make up the batch on every replica."""
    each = file.micro_batch * file.dp
    what = f"a multiple of micro-batch {file.micro_batch} x dp {file.dp} = {each}"
    return {f"must be {what}; given {file.global_batch}": each and file.global_batch % each}


rule(
    ARGUMENTS,
    name="cp_divides_sequence",
    holds="Each rank takes two pieces of the sequence.",
    key=CP,
    # One from the front and one from the back: under a causal mask all do the same work.
    when=lambda file: file.cp > 1 and file.seq_len % (2 * file.cp) > 0,
    says="2 x cp = 2 x {file.cp} must divide --seq-length; given {file.seq_len}",
)


@rule(ARGUMENTS, "--max-position-embeddings")
def positions_cover_sequence(file: MegatronView) -> Refused:
    """No sequence is longer than the positions."""
    given = "--encoder-seq-length" if file.has("--encoder-seq-length") else "--seq-length"
    most, length = file.number("--max-position-embeddings"), file.number(given) or 1
    is_short = most is not None and most < length
    return {f"must be at least {given} {length}; given {most}": is_short}


@rule(ARGUMENTS)
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


@rule(CONFIG, CP_TYPE)
def exchange_fits_layers(file: MegatronView) -> Refused:
    """One way of context parallelism serves all layers, or every layer names its own."""
    count, layers = len(file.words(CP_TYPE)), file.num_layers
    is_other = file.cp > 1 and layers and count not in (0, 1, layers)
    return {f"must name 1 way or {layers}, one per layer; given {count}": is_other}


@rule(ARGUMENTS, "--expert-model-parallel-size")
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
    name="inner_stages_keep_dp",
    holds="Experts have the same data parallelism as the rest if stages lie inside data "
    "parallelism.",
    key="--use-tp-pp-dp-mapping",
    on="--use-tp-pp-dp-mapping",
    when=lambda file: file.pp > 1 and file.expert_dp != file.dp,
    says="needs equal data parallelism of experts and the rest; "
    "given {file.expert_dp} and {file.dp}",
)


@rule(_STATE, "--num-distributed-optimizer-instances")
def instances_divide_dp(file: MegatronView) -> Refused:
    """Replicas of the sharding group divide dp x cp and the experts' dp."""
    count, ranks, expert_dp = file.instances, file.dp * file.cp, file.expert_dp
    return {
        f"must divide dp x cp {ranks}; given {count}": ranks % count,
        f"must divide experts' dp {expert_dp}; given {count}": expert_dp % count,
    }

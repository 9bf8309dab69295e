"""Rules of Megatron-LM: those of ``rules.yaml``, and what no condition says."""

from collections.abc import Iterable
from functools import partial

from planner.documents.tree import load_own
from planner.formats.megatron.options import (
    BATCH,
    CHUNKS,
    CP,
    FIRST,
    HIDDEN,
    LAST,
    LAYOUT,
    MTP,
    PP,
    STEPS,
    TP,
    batches_in,
    is_own_script,
    layout_problem,
    parse_layout,
    parts_in,
)
from planner.formats.megatron.view import ARGUMENTS, CONFIG, Batch, MegatronView
from planner.formats.settings import Refused, Rules, Violations, first_of

# What has no default, and options that say the same; the first three describe a model.
REQUIRED = {
    "--num-layers": ("--encoder-num-layers", "--hybrid-layer-pattern", "--hybrid-override-pattern"),
    "--hidden-size": (),
    "--num-attention-heads": (),
    "--max-position-embeddings": (),
    "--seq-length": ("--encoder-seq-length",),
    "--micro-batch-size": (),
}
OFFLOADING, OFFLOADED = "--fine-grained-activation-offloading", "--offload-modules"
DECREASES = "--decrease-batch-size-if-needed"
_SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
_LAYOUT = "megatron/core/transformer/pipeline_parallel_layer_layout.py"

rule = Rules(MegatronView)

rule.add_table(load_own(__package__, "rules.yaml"))
in_arguments, in_config = partial(rule, ARGUMENTS), partial(rule, CONFIG)


@rule(ARGUMENTS)
def degrees_divide_processes(file: MegatronView) -> Violations:
    """Name the largest degree where all together do not divide the processes."""
    if file.num_gpus % file.model_ranks:
        degrees = {TP: file.tp, PP: file.pp, CP: file.cp}
        given = f"tp x pp x cp = {file.model_ranks}"
        key = max(degrees, key=degrees.__getitem__)
        yield key, f"{given} must divide the processes; given {file.num_gpus}"


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
    parts = parts_in(file.word(LAYOUT))
    is_unknown = MTP in file.settings and not file.has(MTP)
    if is_unknown or not (parts and file.word(LAYOUT)):
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


def _fill_chunks(file: MegatronView, batches: Iterable[Batch]) -> Violations:
    group = file.number("--microbatch-group-size-per-virtual-pipeline-stage") or file.pp
    for key, batch, micro_batch in batches:
        count, rest = divmod(batch, micro_batch * file.dp or 1)
        left = count % group
        if file.vpp == 1 or not count * micro_batch * file.dp or rest:
            continue
        if not file.pp <= group <= count:
            yield key, f"needs {group} micro-batches or more, groups of at least pp; given {count}"
        elif 0 < left < file.pp:
            yield key, f"{count} micro-batches leave {left} in the last group of {group}"


@rule(_SCHEDULES)
def micro_batches_fill_chunks(file: MegatronView) -> Violations:
    """Interleaved stages take micro-batches in groups of at least pp."""
    return _fill_chunks(file, file.batches)


@rule.unenforced(f"{_SCHEDULES}, in the first evaluation")
def evaluation_fills_chunks(file: MegatronView) -> Violations:
    """Interleaved stages evaluate micro-batches in groups of at least pp, too."""
    return _fill_chunks(file, file.evaluated if file.number("--eval-iters") != 0 else ())


@in_arguments()
def batch_divides(file: MegatronView) -> Violations:
    """Micro-batches of equal size make up a batch on every replica, of evaluations too."""
    for key, batch, micro_batch in (*file.batches, *file.evaluated):
        each = micro_batch * file.dp
        is_made_smaller = key == BATCH and file.flag(DECREASES)
        if each and batch % each and not is_made_smaller:
            what = f"a multiple of micro-batch {micro_batch} x dp {file.dp} = {each}"
            yield key, f"must be {what}; given {batch}"


@rule("megatron/core/num_microbatches_calculator.py", STEPS)
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


@in_arguments()
def required_options(file: MegatronView) -> Violations:
    """Is missing; Megatron has no default for it."""
    # A model that is described is described in full; other scripts may have defaults.
    is_described = file.having(*list(REQUIRED)[:3])
    if not is_described or HIDDEN in file.settings or not is_own_script(file["script"] or ""):
        return
    for option, others in REQUIRED.items():
        if file.settings.keys().isdisjoint((option, *others)):
            yield option, "is missing; Megatron has no default for it"


@rule(f"{ARGUMENTS}, {CONFIG}", OFFLOADING, on=OFFLOADING)
def fine_grained_offload_setup(file: MegatronView) -> Refused:
    """Offloading of modules needs Transformer Engine's first way of it, and modules."""
    is_set = not file.is_script or file.variable("NVTE_CPU_OFFLOAD_V1") == "1"
    return {
        "needs NVTE_CPU_OFFLOAD_V1=1 in the environment": not is_set,
        f"needs {OFFLOADED}": not file.words(OFFLOADED),
    }

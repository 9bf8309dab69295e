"""Plans in words: what was asked, what to run, what that takes and rests on."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.text import Text

from planner.answers.base import Plan
from planner.answers.software import assumptions_line
from planner.cost.context import Context
from planner.cost.estimate import Estimate, item_title
from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.cost.topology import group_of
from planner.frameworks.registry import CURRENT
from planner.notes import Note, NoteKind
from planner.report.sizing_words import job_text
from planner.search.space.interleaving import regular_layers
from planner.spec.strategy import OFFLOAD_POLICIES, STAGE_DEGREES, Strategy
from planner.units import GIB, TERA, format_count, format_seconds

SIXTEEN_BITS = ("bf16", "fp16")


def inputs_line(
    contexts: Sequence[Context],
    notes: Sequence[Note] = (),
    *,
    on: str = "",
    batch: str | None = None,
) -> str:
    """Return the question in one line; ``on``, ``batch``: other words for these parts of it."""
    context = contexts[0]
    if batch is None:
        is_assumed = any(note.is_assumed and note.subject == "global_batch" for note in notes)
        assumed = " (assumed)" if is_assumed else ""
        batch = f"batch {context.job.global_batch}{assumed} x {context.job.seq_len} tokens"
    software = [
        each.name if each.profile == CURRENT else f"{each.name} {each.profile}"
        for each in (context.traits for context in contexts)
    ]
    parts = [
        f"{context.model.name} on {on or context.cluster.name}",
        batch,
        f"{context.job.precision}{context.traits.training.suffix}",
        *software,
    ]
    return ", ".join(filter(None, parts))


def question_lines(
    line: str,
    notes: Iterable[Note],
    narrowed: Sequence[str] = (),
) -> list[Text]:
    """Return what was asked, and what was said of it that is no default."""
    only = [f"narrowed by {', '.join(narrowed)}"] if narrowed else []
    return [Text(line, "dim"), *map(Text, only), *note_lines(notes, assumed=False)]


def note_lines(notes: Iterable[Note], *, assumed: bool) -> list[Text]:
    """Return the lines of defaults if ``assumed``, else of the other notes on the question."""
    return [
        Text(f"{'assumed: ' * (note.kind is NoteKind.default)}{note.text}", "dim")
        for note in notes
        if note.is_assumed == assumed
    ]


def software_lines(contexts: Iterable[Context], plans: Sequence[Plan]) -> list[Text]:
    """Return which software the plans assume, by framework."""
    used = (
        (context, [plan.strategy for plan in plans if plan.framework == context.traits.name])
        for context in contexts
    )
    return [Text(assumptions_line(context, own), "dim") for context, own in used if own]


def _saved(plan: Plan) -> Iterator[str]:
    """What is recomputed, what states and activations are offloaded, and where to."""
    strategy = plan.strategy
    modules: tuple[str, ...] = ()
    if any(strategy.selective_layers_per_stage):
        modules = strategy.recompute_modules or plan.context.traits.recompute.selected
    named = f" ({', '.join(modules)})" if modules else ""
    usual = {
        "none": "no recomputation",
        "full": "full recomputation",
        "selective": f"selective recomputation{named}",
    }
    yield usual.get(strategy.recompute, f"recomputed {strategy.recompute}{named}")
    if strategy.offload != "none":
        what, _, where = strategy.offload.partition(":")
        share = f"{strategy.offload_percent}% of the " if strategy.offload_percent < 100 else ""
        yield f"{share}{what.replace('+', ' and ')} on the {where}"
    layers = strategy.layers_under
    yield from (
        policy.words.format(layers[name])
        for name, policy in OFFLOAD_POLICIES.items()
        if layers[name]
    )


def layout_words(plan: Plan) -> str:
    """The layout in words: ``DP 8 · TP 4``, then what is sharded, recomputed and offloaded."""
    strategy = plan.strategy
    degrees = (f"{name.upper()} {value}" for name, value in strategy.degrees.items() if value > 1)
    groups = f" in {strategy.dp_replicate} replicas" if strategy.dp_replicate > 1 else ""
    sharded = f"ZeRO-{strategy.zero_stage}{groups}" if strategy.zero_stage else "states not sharded"
    saved = ", ".join(_saved(plan))
    words = [
        " · ".join(degrees),
        "experts not split (ETP 1)" if strategy.etp == 1 < strategy.tp else "",
        f"schedule {strategy.schedule}" if strategy.schedule != "1f1b" else "",
        f"micro-batch {strategy.micro_batch}",
        # Nothing to say of states where nobody could share them.
        sharded if strategy.dp * strategy.cp > 1 else "",
        f"{saved}, no offload" if saved == "no recomputation" else saved,
        _uneven(strategy),
    ]
    return ", ".join(word for word in words if word)


def _uneven(strategy: Strategy) -> str:
    """Layers of every stage where the framework would split them otherwise."""
    layers = strategy.layers_per_stage
    is_even = len(set(layers)) == 1
    if is_even or layers == regular_layers(sum(layers), strategy.pp, strategy.vpp):
        return ""
    return f"stages of {runs_text(layers)} layers"


def runs_text(values: Iterable[object]) -> str:
    """Runs of equal values: ``7, 14 x 8, 7``."""
    runs = ((value, len(list(same))) for value, same in groupby(values))
    return ", ".join(f"{count} x {value}" if count > 1 else str(value) for value, count in runs)


def run_line(plan: Plan, *, of_gpus: int, names_framework: bool) -> str:
    """Return what to run: on which GPUs, parallelized how."""
    gpus, kind = plan.strategy.num_gpus, plan.context.cluster.accelerator.name
    place = f"{gpus:,} {kind}" if gpus == of_gpus else f"{gpus:,} of {of_gpus:,} {kind}"
    software = f" with {plan.framework}" if names_framework else ""
    return f"Run it on {place}{software}: {layout_words(plan)}."


def range_text(estimate: Estimate) -> str:
    """Lower to upper iteration time, a common unit named once."""
    ends = (estimate.iter_time_s_lower, estimate.iter_time_s_upper)
    texts = [format_seconds(end).split() for end in ends]
    (lower, unit), (upper, other) = texts
    return f"{lower} to {upper} {unit}" if unit == other else f"{lower} {unit} to {upper} {other}"


def range_line(estimate: Estimate) -> str:
    """Return where 80 % of runs of its regime would lie, in seconds and around the estimate."""
    ends = (estimate.iter_time_s_lower, estimate.iter_time_s_upper)
    low, high = (f"{100.0 * (end / estimate.iter_time_s - 1.0):+.0f} %" for end in ends)
    line = f"80 % interval {range_text(estimate)} ({low} to {high}; {estimate.regime})."
    if estimate.iter_time_s_lower < estimate.iter_time_s:
        return line
    return f"{line} At least nine of ten take longer than the estimate, which is the lower end."


def time_line(plan: Plan) -> str:
    """Return the time of an iteration if tuned, with the range of others' runs or of tuned ones."""
    made = plan.estimate
    words = ", 80 % of tuned runs" if plan.context.is_tuned else " if tuned, usually"
    return (
        f"{format_seconds(made.iter_time_s)} an iteration{words} {range_text(made)}, "
        f"{format_count(made.tokens_per_s)} tokens/s"
    )


def utilization_line(plan: Plan) -> str:
    """Return the utilization of the accelerators, by both figures that reports of runs state."""
    made, (peak, is_named, share) = plan.estimate, _peak(plan)
    low, high = 100.0 * share * made.mfu_lower, 100.0 * share * made.mfu_upper
    rate = made.model_flops_per_s_per_gpu / TERA
    over = f" of the {peak} peak" if is_named else ""
    return (
        f"MFU {share * made.mfu:.1%} (80 % interval {low:.1f} to {high:.1f} %){over}, "
        f"{rate:,.{0 if rate >= 100 else 1}f} model TFLOP/s a GPU"
    )


def _peak(plan: Plan) -> tuple[str, bool, float]:
    """The GEMMs whose peak an MFU is over, whether it is named, and what it is of ``mfu``.

    Of 16 bits where there are, unless runs may exceed that peak; named where the plan's are others.
    """
    accelerator, precision = plan.context.cluster.accelerator, plan.context.job.precision
    usual = usual_precision(accelerator)
    if plan.estimate.mfu_upper > 1.0 and precision != usual:
        own = peak_flops_per_s(accelerator, precision)
        return precision, True, peak_flops_per_s(accelerator, usual) / own
    if usual in SIXTEEN_BITS:
        return "16-bit", precision not in SIXTEEN_BITS, 1.0
    return usual, precision != usual, 1.0


def mfu_text(plan: Plan, *, full_square: bool = False) -> str:
    """Return the MFU, with the peak that it is over where that is not the usual one."""
    (peak, _, share), made = _peak(plan), plan.estimate
    own = share * (made.mfu_full_square if full_square else made.mfu)
    return f"{own:.1%}{'' if share == 1.0 else f' of {peak}'}"


def mfu_line(plan: Plan) -> str:
    """The convention of numerator and denominator, and what the other one would give."""
    estimate, accelerator = plan.estimate, plan.context.cluster.accelerator
    name, is_named, share = _peak(plan)
    peak = peak_flops_per_s(accelerator, usual_precision(accelerator)) / TERA / share
    also = f", also in {plan.context.job.precision}" if is_named and share == 1.0 else ""
    over = f"over the dense {name} peak ({peak:,.{0 if peak >= 10 else 3}f} TFLOP/s){also}"
    if estimate.mfu_full_square == estimate.mfu:
        return f"MFU: the whole attention square, {over}."
    windows = ", of windows what they see" if plan.context.model.windowed_share else ""
    return (
        f"MFU: the causal half of the attention square{windows}, {over}; with the whole square "
        f"{share * estimate.mfu_full_square:.1%}."
    )


def host_line(plan: Plan) -> str:
    """Return what offloading takes of a node's host memory or disks; empty where it does not."""
    node, memory = plan.context.cluster.node, plan.estimate.memory
    on_disks = ":nvme" in plan.strategy.offload
    there = node.nvme_bytes if on_disks else node.host_memory_bytes
    if not (memory.host_bytes and there):
        return ""
    taken = memory.ranks_per_node * memory.host_bytes
    where = "disks" if on_disks else "host memory"
    is_assumed = node.host_memory_note and not on_disks
    assumed = ", which is assumed (see --host-memory)" if is_assumed else ""
    return f"{taken / GIB:,.0f} of {there / GIB:,.0f} GiB of a node's {where}{assumed}"


def job_line(plan: Plan) -> str:
    """Return what the whole job takes; empty where its tokens are not given."""
    tokens = plan.context.job.total_tokens
    return f"{format_count(tokens)} tokens: {job_text(plan)}" if tokens else ""


def figure_lines(plan: Plan) -> list[str]:
    """Return the figures of a plan: time, utilization, memory, and what the job takes."""
    peak, hbm = plan.estimate.memory.peak_bytes, plan.estimate.memory.hbm_bytes
    free = plan.estimate.memory.free_bytes
    memory = f"peak memory {peak / GIB:,.1f} of {hbm / GIB:,.1f} GiB, {free / GIB:,.1f} free"
    found = (time_line(plan), utilization_line(plan), memory, host_line(plan), job_line(plan))
    return [line for line in found if line]


def costs_line(plan: Plan) -> str:
    """The largest items of a plan's time, recomputation summed up."""
    shares: dict[str, float] = {}
    estimate = plan.estimate
    for name, item in estimate.time.items():
        title = item_title(name)
        shares[title] = shares.get(title, 0.0) + item.exposed_s
    largest = sorted(shares.items(), key=lambda share: -share[1])
    total_s = estimate.iter_time_s
    parts = ", ".join(f"{seconds / total_s:.1%} {name}" for name, seconds in largest[:4])
    return (
        f"Plan 1 spends {parts}. With communication overlapped fully: "
        f"{format_seconds(estimate.iter_time_s_overlapped)}; not at all: "
        f"{format_seconds(estimate.iter_time_s_serial)}."
    )


def ground_lines(plan: Plan) -> list[str]:
    """Return what a plan rests on: costs, places, ranges, evidence."""
    from planner.answers.evidence import evidence

    return [
        costs_line(plan),
        f"Rank order {placement_line(plan.context, plan.strategy)}.",
        range_line(plan.estimate),
        mfu_line(plan),
        evidence(plan.context, plan.strategy).line(plan.context),
    ]


def placement_line(context: Context, strategy: Strategy) -> str:
    """Rank order: ``tp-cp-ep-dp-pp (inside out): tp 4 nvlink, dp 2 nvlink x 4 ib-ndr, ...``."""
    columns, cluster = strategy.columns(), context.cluster
    inner = [name for name in STAGE_DEGREES if name != "dp"]
    # Experts are shown where they may lie otherwise than the other layers.
    experts = ("etp", "ep") if strategy.ep > 1 else ()
    parts = []
    for axis in (*inner, "dp", "dp_replicate", "pp", *experts):
        group = group_of("dp_shard" if axis == "dp" else axis, columns, cluster)
        sizes = [1.0, *(float(inside[0]) for inside in group.members)]
        steps = [
            f"{inside / below:.3g} {level.name}"
            for below, inside, level in zip(sizes, sizes[1:], cluster.levels, strict=False)
            if inside > below
        ]
        if steps:
            parts.append(f"{axis} {' x '.join(steps)}")
    return f"{strategy.placement} (inside out): {', '.join(parts) or 'one GPU'}"

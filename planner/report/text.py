"""The terminal form of an answer: inputs, plans, frontier, costs, search."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table

from planner.frameworks.registry import CURRENT
from planner.plans.plan import Answer, Plan
from planner.report.assumptions import assumptions_line
from planner.report.catalog import describe_size
from planner.report.evidence import evidence_line, range_line, range_text
from planner.report.placement import placement_line
from planner.spec.strategy import Strategy
from planner.spec.traits import FrameworkTraits
from planner.units import GIB, format_count, format_seconds

WIDE_COLUMNS = 140
"""From this console width on, column titles are spelled out."""
TOP_COSTS = 4
MAX_LISTED_RULES = 6
MAX_FRONTIER_ROWS = 16
NARROW_LEGEND = (
    "v: virtual stages; Z: ZeRO stage; mb: micro-batch; redo: layers recomputed; "
    "offl: offloaded; fw: framework."
)
OFFLOAD_SHORT = {
    "activations:host": "act",
    "none": "-",
    "optimizer:host": "opt",
    "optimizer+parameters:host": "opt+par",
    "optimizer:nvme": "opt nvme",
    "optimizer+parameters:nvme": "opt+par nvme",
}
SCHEDULE_SHORT = {"zb-interleaved": "zb-int", "dualpipe-v": "dual-v"}
FRAMEWORK_SHORT = {"megatron": "meg", "deepspeed": "ds", "torchtitan": "tt", "accelerate": "acc"}
ITEM_TITLES = {
    "compute.gemm": "matrix products",
    "compute.attention": "attention",
    "compute.memory_bound": "element-wise kernels",
    "compute.launch": "kernel launches",
    "compute.embedding": "embedding",
    "compute.head_and_loss": "vocabulary head and loss",
    "tensor_parallel": "tensor-parallel communication",
    "context_parallel": "context-parallel communication",
    "expert_parallel": "expert all-to-all",
    "pipeline.bubble": "pipeline bubble",
    "pipeline.p2p": "pipeline transfers",
    "data_parallel": "gradient reduction and weight gather",
    "sharding.gather_and_reduce": "ZeRO-3 gathers",
    "optimizer_step": "optimizer step",
    "offload.parameters": "parameter offload",
    "offload.gradients": "gradient offload",
    "gradient_passes": "passes over gradients",
    "synchronisation": "waiting for the slowest accelerator",
    "tied_embedding": "tied-embedding reduction",
    "step_overhead": "per-step overhead",
}


def layout_axes(plans: Sequence[Plan]) -> list[str]:
    """Axes worth a place in the layout column: dp, tp, pp always, others where used."""
    optional = ("vpp", "cp", "ep")
    used = [axis for axis in optional if any(getattr(p.strategy, axis) > 1 for p in plans)]
    return ["dp", "tp", "pp", *used]


def layout(strategy: Strategy, axes: Sequence[str]) -> str:
    """Degrees joined by dots: ``32·4·8``."""
    return "·".join(str(getattr(strategy, axis)) for axis in axes)


def item_title(name: str) -> str:
    """A time item in words."""
    if name.startswith("recompute."):
        return "recomputation"
    return ITEM_TITLES.get(name, name)


def _recompute(strategy: Strategy, *, wide: bool) -> str:
    if strategy.recompute == "none":
        return "-"
    return strategy.recompute if wide else strategy.recompute.replace("selective", "sel")


def _saving_cells(strategy: Strategy) -> tuple[str, str]:
    return _recompute(strategy, wide=True), OFFLOAD_SHORT[strategy.offload]


def _table(columns: Sequence[tuple[str, JustifyMethod]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for title, justify in columns:
        table.add_column(title, justify=justify, no_wrap=True)
    return table


def _layout_title(axes: Sequence[str], *, wide: bool) -> str:
    return "·".join("v" if axis == "vpp" and not wide else axis for axis in axes)


Columns = list[tuple[str, JustifyMethod]]


def shows_schedule(plans: Sequence[Plan]) -> bool:
    """Whether some plan runs another schedule than 1F1B."""
    return any(plan.strategy.schedule != "1f1b" for plan in plans)


def _right(*titles: str) -> Columns:
    return [(title, "right") for title in titles]


def _left(*titles: str) -> Columns:
    return [(title, "left") for title in titles]


def _schedule_column(plans: Sequence[Plan], *, wide: bool) -> Columns:
    return _left("schedule" if wide else "sched") if shows_schedule(plans) else []


def _schedule(strategy: Strategy, *, wide: bool) -> str:
    return strategy.schedule if wide else SCHEDULE_SHORT.get(strategy.schedule, strategy.schedule)


def _framework_column(*, shown: bool, wide: bool) -> Columns:
    return [("framework" if wide else "fw", "left")] if shown else []


def _framework(plan: Plan, *, wide: bool) -> str:
    return plan.framework if wide else FRAMEWORK_SHORT.get(plan.framework, plan.framework)


def plans_table(plans: Sequence[Plan], *, wide: bool, with_framework: bool) -> Table:
    """The best plans, one a row."""
    axes = layout_axes(plans)
    usable = plans[0].estimate.memory.usable_bytes / GIB
    has_room = wide or not (with_framework or shows_schedule(plans))
    several_orders = len({plan.strategy.placement for plan in plans}) > 1
    columns: Columns = [
        ("#", "right"),
        *_framework_column(shown=with_framework, wide=wide),
        *(_right("GPUs") if wide else []),
        (_layout_title(axes, wide=wide), "left"),
        *_schedule_column(plans, wide=wide),
        *(_left("placed") if several_orders else []),
        ("ZeRO" if wide else "Z", "right"),
        ("micro-batch" if wide else "mb", "right"),
        ("recompute" if wide else "redo", "left"),
        ("offload" if wide else "offl", "left"),
        ("iteration" if wide else "iter", "right"),
        *(_right("80 % of runs") if wide and not with_framework else []),
        ("tokens/s/GPU" if wide else "tok/s\n/GPU", "right"),
        ("MFU", "right"),
        (f"peak GiB of {usable:.1f}" if wide else f"GiB of\n{usable:.1f}", "right"),
        *(_right("headroom" if wide else "free") if has_room else []),
    ]
    table = _table(columns)
    for rank, plan in enumerate(plans, start=1):
        estimate, strategy = plan.estimate, plan.strategy
        table.add_row(
            str(rank),
            *([_framework(plan, wide=wide)] if with_framework else []),
            *([f"{strategy.num_gpus:,}"] if wide else []),
            layout(strategy, axes),
            *([_schedule(strategy, wide=wide)] if shows_schedule(plans) else []),
            *([strategy.placement] if several_orders else []),
            str(strategy.zero_stage),
            str(strategy.micro_batch),
            _recompute(strategy, wide=wide),
            OFFLOAD_SHORT[strategy.offload],
            format_seconds(estimate.iter_time_s),
            *([range_text(estimate)] if wide and not with_framework else []),
            f"{estimate.tokens_per_s_per_gpu:,.0f}",
            f"{estimate.mfu:.1%}",
            f"{estimate.memory.peak_bytes / GIB:,.1f}",
            *([f"{plan.headroom_bytes / GIB:,.1f}"] if has_room else []),
        )
    return table


def shown_frontier(plans: Sequence[Plan]) -> list[Plan]:
    """At most MAX_FRONTIER_ROWS points, evenly spread over the frontier, both ends included."""
    if len(plans) <= MAX_FRONTIER_ROWS:
        return list(plans)
    step = (len(plans) - 1) / (MAX_FRONTIER_ROWS - 1)
    return [plans[round(i * step)] for i in range(MAX_FRONTIER_ROWS)]


def _days(seconds: float) -> str:
    """Days, with a decimal where there are fewer than a hundred."""
    days = seconds / 86400.0
    return f"{days:,.1f}" if days < 100.0 else f"{days:,.0f}"


def frontier_table(plans: Sequence[Plan], *, wide: bool, with_framework: bool) -> Table:
    """Least iteration time for each useful GPU count."""
    axes = layout_axes(plans)
    has_budget = any(plan.total_s() is not None for plan in plans)
    saves = not with_framework and any(p.strategy.offload != "none" for p in plans)
    has_price = any(plan.cost_usd() is not None for plan in plans)
    span = "" if has_budget else " per 1,000 iterations" if wide else "\n/1k it"
    columns: Columns = [
        ("GPUs", "right"),
        *_framework_column(shown=with_framework, wide=wide),
        (_layout_title(axes, wide=wide), "left"),
        *_schedule_column(plans, wide=wide),
        ("ZeRO" if wide else "Z", "right"),
        ("micro-batch" if wide else "mb", "right"),
        *(_left("recompute", "offload") if wide else _left("offl") if saves else []),
        ("iteration" if wide else "iter", "right"),
        ("tokens/s", "right"),
        ("MFU", "right"),
        (f"GPU-hours{span}" if wide else f"GPU-h{span}", "right"),
        *(_right("days") if has_budget else []),
        *(_right("USD" if wide else f"USD{span}") if has_price else []),
    ]
    table = _table(columns)
    for plan in plans:
        cost, total_s = plan.cost_usd(), plan.total_s()
        table.add_row(
            f"{plan.strategy.num_gpus:,}",
            *([_framework(plan, wide=wide)] if with_framework else []),
            layout(plan.strategy, axes),
            *([_schedule(plan.strategy, wide=wide)] if shows_schedule(plans) else []),
            str(plan.strategy.zero_stage),
            str(plan.strategy.micro_batch),
            *(_saving_cells(plan.strategy) if wide else []),
            *([OFFLOAD_SHORT[plan.strategy.offload]] if saves and not wide else []),
            format_seconds(plan.estimate.iter_time_s),
            f"{plan.estimate.tokens_per_s:,.0f}",
            f"{plan.estimate.mfu:.1%}",
            format_count(round(plan.gpu_hours())),
            *([_days(total_s or 0.0)] if has_budget else []),
            *(["-" if cost is None else format_count(round(cost))] if has_price else []),
        )
    return table


def costs_line(plan: Plan) -> str:
    """The winner's largest items of time, recomputation summed up."""
    shares: dict[str, float] = {}
    for name, item in plan.estimate.time.items():
        title = item_title(name)
        shares[title] = shares.get(title, 0.0) + item.exposed_s
    total = plan.estimate.iter_time_s
    largest = sorted(shares.items(), key=lambda share: -share[1])[:TOP_COSTS]
    parts = ", ".join(f"{seconds / total:.1%} {title}" for title, seconds in largest)
    estimate = plan.estimate
    return (
        f"Plan 1 spends {parts}. With communication overlapped fully: "
        f"{format_seconds(estimate.iter_time_s_overlapped)}; not at all: "
        f"{format_seconds(estimate.iter_time_s_serial)}."
    )


def search_line(answer: Answer) -> str:
    """What the search looked at and why most of it was set aside."""
    searches = answer.searches
    dropped = answer.dropped()
    listed = [f"{name} {count:,}" for name, count in list(dropped.items())[:MAX_LISTED_RULES]]
    if len(dropped) > MAX_LISTED_RULES:
        rest = sum(list(dropped.values())[MAX_LISTED_RULES:])
        listed.append(f"{len(dropped) - MAX_LISTED_RULES} other rules {rest:,}")
    proof = "proved optimal under the model" if answer.proved_optimal else "optimality NOT proved"
    return (
        f"Searched {sum(r.num_configurations for r in searches):,} configurations in "
        f"{answer.seconds:.2f} s; dropped: {', '.join(listed) or 'none'}; "
        f"{sum(r.num_fitting for r in searches):,} can fit; {proof}."
    )


def _software(traits: FrameworkTraits) -> str:
    return traits.name if traits.profile == CURRENT else f"{traits.name} {traits.profile}"


def assumptions_lines(answer: Answer) -> list[str]:
    """What software the plans of both tables assume, per framework among them."""
    plans = (*answer.plans, *answer.pareto)
    lines = []
    for context in answer.contexts:
        used = [plan.strategy for plan in plans if plan.framework == context.traits.name]
        lines += [assumptions_line(context, used)] if used else []
    return lines


def inputs_line(answer: Answer) -> str:
    """What was asked, in one line."""
    context = answer.contexts[0]
    job, cluster = context.job, context.cluster
    frameworks = ", ".join(_software(c.traits) for c in answer.contexts)
    budget = f", {format_count(job.total_tokens)} tokens in all" if job.total_tokens else ""
    return (
        f"{context.model.name} ({describe_size(context.model)}) on {cluster.name} "
        f"({cluster.num_accelerators:,} x {cluster.accelerator.name}), batch {job.global_batch} x "
        f"{job.seq_len} tokens, {job.precision}, {frameworks}{budget}"
    )


def print_notes(notes: Sequence[str], console: Console) -> None:
    """Say of every default that it is one."""
    for note in notes:
        stated = note.startswith(("assumed", "given", "hint"))
        console.print(note if stated else f"assumed: {note}", style="dim")


def print_answer(answer: Answer, console: Console) -> None:
    """Print inputs, plans, frontier, the winner's costs and the search."""
    wide = console.width >= WIDE_COLUMNS
    several = len(answer.contexts) > 1
    console.print(inputs_line(answer), style="bold")
    print_notes(answer.notes, console)
    gpus = answer.plans[0].strategy.num_gpus
    available = answer.contexts[0].cluster.num_accelerators
    console.print()
    console.print(f"Best plans on {gpus:,} GPUs", style="bold")
    if gpus < available:
        console.print(f"No legal layout that fits uses all {available:,}; {gpus:,} is the most.")
    console.print(plans_table(answer.plans, wide=wide, with_framework=several))
    fastest = answer.pareto[-1]
    if fastest.strategy.num_gpus < gpus:
        is_faster = fastest.estimate.iter_time_s <= answer.plans[0].estimate.iter_time_s
        console.print(
            f"{fastest.strategy.num_gpus:,} GPUs {'are no slower' if is_faster else 'come near'}: "
            f"{format_seconds(fastest.estimate.iter_time_s)} (see the next table)."
        )
    console.print("Fastest plan for each useful number of GPUs", style="bold")
    shown = shown_frontier(answer.pareto)
    console.print(frontier_table(shown, wide=wide, with_framework=several))
    if len(shown) < len(answer.pareto):
        console.print(
            f"{len(shown)} of {len(answer.pareto)} points shown; --format json or csv has all."
        )
    best = answer.plans[0]
    console.print(costs_line(best))
    console.print(f"Placed {placement_line(best.context, best.strategy)}.")
    console.print(range_line(best.estimate))
    console.print(evidence_line(best.context, best.strategy), markup=False)
    for line in assumptions_lines(answer):
        console.print(line, style="dim", markup=False)
    console.print(search_line(answer), style="dim")
    if not wide:
        console.print(NARROW_LEGEND, style="dim")

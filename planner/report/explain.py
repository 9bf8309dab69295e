"""Screens of `planner explain`: trees of memory and time, an item, the ledger of a layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from rich.tree import Tree

from planner.answers.explain import InputRow, ItemRow, MemoryAnswer, TimeTreeRow
from planner.answers.items import item_of, summary_of
from planner.answers.savings import Saving
from planner.answers.software import assumptions_line
from planner.cost.estimate import Estimate, MemoryEstimate
from planner.cost.ledger import LedgerItem, StageLedger
from planner.report.table import Column, Table, rich_table
from planner.spec.strategy import OFFLOAD_POLICIES, Strategy
from planner.units import GIB, format_bytes, format_seconds

FORMULA_COLUMNS = 120
"""From this console width on, leaves of a tree say how they are computed."""
WHOLE, LARGEST_WHOLE = 1e5, 1e16
"""Inputs between these are shown to the last digit, with thousands separators."""
SHOWN_ITEMS = 12
MOST_PEAKS = 8
WIDE_COLUMNS = 120
STATES = ("weights", "gradients", "optimizer")
NARROW_GROUPS = ("states", "activations", "transient")
STAGE_GROUPS = ("weights", "gradients", "optimizer", "activations", "transient", "overhead")
VERDICT_STYLES = {"fits": "bold green", "tight": "bold yellow"}
SHOWN_PARTS = 3
"""Of each group of items, the largest."""
SHOWN_SAVINGS = 5


@dataclass(frozen=True, kw_only=True)
class _Style:
    """How a tree shows its numbers, and whether leaves say what they are."""

    total: float
    formatter: Callable[[float], str]
    with_formulas: bool


def _leaf_note(path: str, style: _Style) -> str:
    item = item_of(path) if style.with_formulas else None
    return f"  {summary_of(item)}" if item else ""


def _grow(tree: Tree, items: Mapping[str, float], prefix: str, style: _Style) -> None:
    """Add items below ``tree`` by their dotted names, largest first."""
    groups: dict[str, dict[str, float]] = {}
    for name, value in items.items():
        head, _, rest = name.partition(".")
        groups.setdefault(head, {})[rest] = value
    for head, inner in sorted(groups.items(), key=lambda group: -sum(group[1].values())):
        value, path = sum(inner.values()), f"{prefix}.{head}"
        is_leaf = set(inner) == {""}
        note = _leaf_note(path, style) if is_leaf else ""
        line = f"{head}  {style.formatter(value)}  {value / style.total:.1%}"
        branch = tree.add(Text(line).append(note, style="dim"))
        if not is_leaf:
            _grow(branch, inner, path, style)


def _print_tree(
    title: str, section: str, items: Mapping[str, float], total: float, console: Console
) -> None:
    tree = Tree(title)
    formatter = format_bytes if section == "memory" else format_seconds
    wide = console.width >= FORMULA_COLUMNS
    _grow(tree, items, section, _Style(total=total, formatter=formatter, with_formulas=wide))
    console.print(tree)


def print_memory(estimate: Estimate, console: Console) -> None:
    """The memory tree of the fullest stage, then the peak of every stage."""
    memory = estimate.memory
    headroom = memory.hbm_bytes - memory.peak_bytes
    in_host = headroom >= 0 and memory.host_missing_bytes > 0
    verdict = f"{memory.verdict} in host memory" if in_host else memory.verdict
    title = (
        f"memory: {format_bytes(memory.peak_bytes)} of {format_bytes(memory.hbm_bytes)} "
        f"({verdict}: {format_bytes(abs(headroom))} {'free' if headroom >= 0 else 'missing'}"
        f", uncertain by {format_bytes(memory.uncertainty_bytes)}), "
        f"stage {memory.peak_stage}, {memory.moment}"
    )
    _print_tree(title, "memory", memory.items, memory.peak_bytes, console)
    if len(memory.stage_peak_bytes) > 1:
        peaks = ", ".join(format_bytes(value) for value in memory.stage_peak_bytes)
        console.print(f"peak by stage: {peaks}")
    if memory.host_bytes:
        console.print(host_line(memory))


def host_line(memory: MemoryEstimate) -> str:
    """What is offloaded, per rank and node, and what the node lacks for it."""
    ranks = memory.ranks_per_node
    line = f"offloaded per rank: {format_bytes(memory.host_bytes)}"
    if not memory.host_missing_bytes:
        return line
    needed, there = ranks * memory.host_bytes, ranks * memory.host_limit_bytes
    return (
        f"{line}; {format_bytes(needed)} per node of {ranks} rank{'s' * (ranks > 1)}, which has "
        f"{format_bytes(there)} to offload to: {format_bytes(needed - there)} missing"
    )


def print_time(schedule: str, tree: TimeTreeRow, console: Console) -> None:
    """The time tree (exposed seconds), how long resources are busy, the pipeline by simulation."""
    items = {item.name: item.exposed_s for item in tree.items}
    title = (
        f"time: {format_seconds(tree.iter_time_s)} per iteration "
        f"(slowest stage {tree.slowest_stage}; communication overlapped fully "
        f"{format_seconds(tree.iter_time_s_overlapped)}, not at all "
        f"{format_seconds(tree.iter_time_s_serial)})"
    )
    _print_tree(title, "time", items, tree.iter_time_s, console)
    for item in tree.items:
        if item.busy_s > item.exposed_s * 1.001:
            hidden = format_seconds(item.busy_s - item.exposed_s)
            console.print(
                f"{item.name}: busy {format_seconds(item.busy_s)}, of which {hidden} hidden"
            )
    if tree.pipeline is not None:
        work, simulated_s = tree.pipeline.formula_s, tree.pipeline.simulated_s
        console.print(
            f"pipeline ({schedule}): {format_seconds(work)} by formula, "
            f"{format_seconds(simulated_s)} by event simulation ({simulated_s / work - 1.0:+.1%})"
        )


def _shown(value: object) -> str:
    """An input in short: large numbers whole, others with six digits, parts as name=value."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,.0f}" if WHOLE <= abs(value) <= LARGEST_WHOLE else f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_shown(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
    return str(value)


def print_item(row: ItemRow, console: Console) -> None:
    """One item or group: value, share, inputs with their sources, formulas."""
    in_words = format_bytes if row.unit == "bytes" else format_seconds
    for leaf, value in row.values.items():
        console.print(f"{leaf}: {in_words(value)} ({value / row.total:.1%})", style="bold")
    if row.inputs:
        columns: list[Column[InputRow]] = [
            Column("input", lambda each: each.path, right=False, wraps=True),
            Column("value", lambda each: _shown(each.value), right=False, wraps=True),
            Column("source", lambda each: each.source, right=False, wraps=True),
        ]
        console.print(rich_table(Table(row.inputs, columns)))
    if row.text:
        console.print(f"\n{row.text}", markup=False)
    for formula in row.formulas:
        console.print(f"\n{formula.function}", style="bold")
        console.print(formula.text, markup=False)


def _dtype(item: LedgerItem) -> str:
    if not item.shape:
        return ""
    shape = " x ".join(f"{size:,}" for size in item.shape)
    copies = f"{item.copies:g} x " if item.copies != 1 else ""
    return f"{copies}[{shape}] of {item.element_bytes:.4g} B"


def print_ledger(ledger: StageLedger, console: Console, *, limit: int | None = None) -> None:
    """Items of one stage, largest first, with shape, bytes per element and lifetime."""
    columns: list[Column[LedgerItem]] = [
        Column("item", lambda item: item.name, right=False, wraps=True),
        Column("bytes", lambda item: format_bytes(item.num_bytes)),
        Column("share", lambda item: f"{item.num_bytes / ledger.peak_bytes:.1%}"),
        Column("tensors", _dtype, right=False, wraps=True),
    ]
    if console.width >= WIDE_COLUMNS:
        columns.append(Column("alive", lambda item: item.lifetime, right=False, wraps=True))
    shown = ledger.items if limit is None else ledger.items[:limit]
    console.print(rich_table(Table(shown, columns)))
    hidden = ledger.items[len(shown) :]
    if hidden:
        total = format_bytes(sum(item.num_bytes for item in hidden))
        console.print(f"and {len(hidden)} smaller items, {total} together (--all shows them)")


def _bytes_or_dash(number: float) -> str:
    """Bytes in words, ``-`` for none."""
    return format_bytes(number) if number else "-"


def _print_stages(answer: MemoryAnswer, console: Console) -> None:
    """One row per stage: groups of items, peak, moment, verdict."""
    memory = answer.estimate.memory
    wide = console.width >= WIDE_COLUMNS
    shown = (*(STAGE_GROUPS if wide else NARROW_GROUPS), "other")

    def groups_of(ledger: StageLedger) -> dict[str, float]:
        groups = dict.fromkeys(shown, 0.0)
        for item in ledger.items:
            head = item.name.partition(".")[0]
            head = head if wide or head not in STATES else "states"
            groups[head if head in groups else "other"] += item.num_bytes
        return groups

    def group_column(group: str) -> Column[StageLedger]:
        return Column(group, lambda ledger: _bytes_or_dash(groups_of(ledger)[group]))

    layers = answer.strategy.layers_per_stage
    columns: list[Column[StageLedger]] = [
        Column("stage", lambda ledger: str(ledger.stage), right=False),
        Column("layers", lambda ledger: str(layers[ledger.stage])),
        *map(group_column, shown),
        Column("peak", lambda ledger: format_bytes(ledger.peak_bytes)),
        Column("", lambda ledger: memory.verdict_at(ledger.peak_bytes), right=False, wraps=True),
    ]
    console.print(rich_table(Table(answer.ledgers, columns)))


def _verdict_of(saving: Saving, memory: MemoryEstimate) -> str:
    """Whether a change makes it fit; that it is the host that has no room, where that is so."""
    is_short = saving.verdict == "does not fit"
    in_device = saving.peak_bytes is not None and saving.peak_bytes <= memory.hbm_bytes
    return "host too small" if is_short and in_device else saving.verdict or ""


def _signed_bytes(number: float) -> str:
    return format_bytes(number) if number >= 0 else f"-{format_bytes(-number)}"


def _print_savings(savings: Sequence[Saving], memory: MemoryEstimate, console: Console) -> None:
    columns: list[Column[Saving]] = [
        Column("change", lambda saving: saving.change, right=False, wraps=True),
        Column("saves", lambda saving: _signed_bytes(saving.saved_bytes or 0.0)),
        Column("peak", lambda saving: format_bytes(saving.peak_bytes or 0.0)),
        Column("time per token", lambda saving: f"{(saving.time_factor or 1.0) - 1.0:+.1%}"),
        Column("", lambda saving: _verdict_of(saving, memory), right=False, wraps=True),
    ]
    possible = [saving for saving in savings if saving.peak_bytes is not None]
    console.print(rich_table(Table(possible, columns)))
    refused: dict[str, list[Saving]] = {}
    for saving in savings:
        if saving.refused:
            refused.setdefault(saving.refused, []).append(saving)
    if refused:
        console.print("not possible here:", style="dim")
    for rule, changes in refused.items():
        names = ", ".join(saving.change for saving in changes)
        whys = dict.fromkeys(saving.why.partition(": ")[2] or saving.why for saving in changes)
        console.print(f"  {names} ({rule}: {'; '.join(whys)})", style="dim", markup=False)


def _title(answer: MemoryAnswer) -> str:
    context = answer.context
    job, cluster = context.job, context.cluster
    return (
        f"{context.model.name} on {answer.strategy.num_gpus:,} of {cluster.num_accelerators:,} "
        f"{cluster.accelerator.name}, {context.traits.name} ({context.traits.profile}), "
        f"sequences of {job.seq_len}, {job.precision}{context.traits.training.suffix}"
    )


def _layout(strategy: Strategy) -> str:
    """Degrees and policies in one line; degrees of one are left out."""
    replicas = {"dp": strategy.dp, "dp_replicate": strategy.dp_replicate}
    outer = {name: number for name, number in replicas.items() if number > 1}
    degrees = [f"{name}={number}" for name, number in (outer | strategy.degrees).items()]
    num_layers, under = sum(strategy.layers_per_stage), strategy.layers_under
    policies = [
        f"ZeRO-{strategy.zero_stage}",
        f"micro-batch {strategy.micro_batch} x {strategy.num_micro_batches}",
        *([f"schedule {strategy.schedule}"] if strategy.schedule != "1f1b" else []),
        *(["sequence parallel"] if strategy.sequence_parallel else []),
        f"recompute {strategy.recompute}",
        f"offload {strategy.offload}",
        *([f"{strategy.offload_percent} % of it"] if strategy.offload_percent < 100 else []),
        *(
            policy.words.format(f"{under[name]}/{num_layers}")
            for name, policy in OFFLOAD_POLICIES.items()
            if under[name]
        ),
        f"placed {strategy.placement}",
    ]
    return ", ".join([" ".join(degrees) or "one GPU", *policies])


def verdict_line(memory: MemoryEstimate) -> str:
    """Whether it fits, and what is free or missing."""
    free = memory.hbm_bytes - memory.peak_bytes
    what = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} missing"
    in_host = " in host memory" if free >= 0 and memory.host_missing_bytes else ""
    return (
        f"{memory.peak_bytes / GIB:,.2f} of {memory.hbm_bytes / GIB:,.2f} GiB: "
        f"{memory.verdict}{in_host}, "
        f"{what}; published peaks are off by up to {format_bytes(memory.uncertainty_bytes)}."
    )


def fullest_line(answer: MemoryAnswer) -> str:
    """Where and when the peak is, and those of the other pipeline stages."""
    fullest = answer.ledgers[answer.estimate.memory.peak_stage]
    if len(answer.ledgers) == 1:
        return f"The peak is in the {fullest.moment}."
    peaks = ", ".join(f"{ledger.peak_bytes / GIB:,.1f}" for ledger in answer.ledgers[:MOST_PEAKS])
    more = ", ..." if len(answer.ledgers) > MOST_PEAKS else ""
    return (
        f"Fullest is pipeline stage {fullest.stage}, in the {fullest.moment}; GiB of all stages: "
        f"{peaks}{more}."
    )


def _groups_table(ledger: StageLedger) -> RichTable:
    """Groups of items, largest first, each with its largest parts."""
    groups: dict[str, dict[str, float]] = {}
    for item in ledger.items:
        head, _, rest = item.name.partition(".")
        parts = groups.setdefault(head, {})
        part = rest.partition(".")[0]
        parts[part] = parts.get(part, 0.0) + item.num_bytes
    largest_first = sorted(groups, key=lambda head: -sum(groups[head].values()))
    columns: list[Column[str]] = [
        Column("", lambda head: head.replace("_", " "), right=False),
        Column("", lambda head: format_bytes(sum(groups[head].values()))),
        Column("", lambda head: f"{sum(groups[head].values()) / ledger.peak_bytes:.1%}"),
        Column("", lambda head: _parts_text(groups[head]), right=False, wraps=True),
    ]
    return rich_table(Table(largest_first, columns))


def _parts_text(parts: Mapping[str, float]) -> str:
    if len(parts) < 2:
        return ""
    largest = sorted(parts.items(), key=lambda part: -part[1])[:SHOWN_PARTS]
    words = [f"{name.replace('_', ' ')} {size / GIB:,.2f}" for name, size in largest]
    return ", ".join([*words, *(["..."] if len(parts) > SHOWN_PARTS else [])])


def print_memory_answer(
    answer: MemoryAnswer, console: Console, *, show_all: bool, verbose: bool
) -> None:
    """Print whether it fits, what takes most, what would save; ``verbose``: all of it."""
    memory = answer.estimate.memory
    console.print(_title(answer), style="dim", markup=False)
    console.print(_layout(answer.strategy), style="dim", markup=False)
    for note in answer.notes if verbose else ():
        console.print(f"note: {note}", style="dim", markup=False)
    style = VERDICT_STYLES.get(memory.verdict, "bold red")
    console.print(verdict_line(memory), style=style, markup=False)
    console.print(fullest_line(answer), markup=False)
    if verbose:
        _print_whole(answer, console, show_all=show_all)
        return
    if memory.host_bytes:
        console.print(host_line(memory), markup=False)
    console.print(_groups_table(answer.ledgers[memory.peak_stage]))
    console.print("What would save how much", style="bold")
    possible = [saving for saving in answer.savings if saving.peak_bytes is not None]
    _print_savings(possible[:SHOWN_SAVINGS], memory, console)
    line = "-v adds every item and stage, all changes, assumptions; --all small items too."
    console.print(line, style="dim")


def _print_whole(answer: MemoryAnswer, console: Console, *, show_all: bool) -> None:
    """The tree, the fullest stage's ledger, all stages, all changes, what is assumed."""
    console.print()
    print_memory(answer.estimate, console)
    console.print(f"\nledger of stage {answer.estimate.memory.peak_stage}", style="bold")
    fullest = answer.ledgers[answer.estimate.memory.peak_stage]
    print_ledger(fullest, console, limit=None if show_all else SHOWN_ITEMS)
    if len(answer.ledgers) > 1:
        console.print("\nby stage", style="bold")
        _print_stages(answer, console)
    console.print("\nWhat would save how much", style="bold")
    _print_savings(answer.savings, answer.estimate.memory, console)
    console.print()
    line = assumptions_line(answer.context, [answer.strategy])
    console.print(line, style="dim", markup=False)

"""Screens of `planner explain`: trees of memory and time, an item, the ledger of a layout."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from planner.answers.explain import ExplainDocument, ItemRow, MemoryDocument, TimeTreeRow
from planner.answers.layout import short_layout
from planner.answers.software import assumptions_line
from planner.answers.variants import PricedChange
from planner.cost.context import Context
from planner.cost.estimate import Estimate, MemoryEstimate
from planner.cost.ledger import LedgerItem, StageLedger
from planner.report.table import ON_SCREEN, Column, Part, Table, show, show_first, text_table
from planner.report.words import inputs_line, range_line
from planner.spec.strategy import Strategy
from planner.units import GIB, format_bytes, format_seconds, plural

GROUPS = ("states", "activations", "transient", "overhead", "other")


def _grow(
    tree: Tree, items: Mapping[str, float], path: str, total: float, *, deep: bool = True
) -> None:
    """Add items below ``tree`` by dotted names, largest first; only groups unless ``deep``."""
    in_words = format_bytes if path == "memory" else format_seconds
    for head, inner in _grouped(items.items()):
        value = sum(inner.values())
        branch = tree.add(Text(f"{head}  {in_words(value)}  {value / total:.1%}"))
        if deep and set(inner) != {""}:
            _grow(branch, inner, path, total)


def _grouped(
    items: Iterable[tuple[str, float]],
) -> list[tuple[str, dict[str, float]]]:
    """Heads of dotted names, largest first, with the sizes of what stands behind them."""
    groups: dict[str, dict[str, float]] = {}
    for name, value in items:
        head, _, rest = name.partition(".")
        parts = groups.setdefault(head, {})
        parts[rest] = parts.get(rest, 0.0) + value
    return sorted(groups.items(), key=lambda group: -sum(group[1].values()))


def _memory_tree(memory: MemoryEstimate, *, deep: bool) -> list[Tree | str]:
    """The memory tree of the fullest stage, then the peak of every stage."""
    tree = Tree(
        f"memory: {format_bytes(memory.peak_bytes)} of {format_bytes(memory.hbm_bytes)} "
        f"({_verdict(memory, ':')}, uncertain by "
        f"{format_bytes(memory.uncertainty_bytes)}), "
        f"stage {memory.stage}, {memory.moment}"
    )
    _grow(tree, memory.items, "memory", memory.peak_bytes, deep=deep)
    peaks = ", ".join(format_bytes(value) for value in memory.stage_peak_bytes)
    by_stage = f"peak by stage: {peaks}" if len(memory.stage_peak_bytes) > 1 else ""
    return [tree, by_stage, _host_line(memory)]


def _verdict(memory: MemoryEstimate, then: str) -> str:
    """Whether it fits, perhaps as a matter of the host's memory; then what is free."""
    in_device, left = memory.hbm_bytes >= memory.peak_bytes, memory.free_bytes
    where = " in host memory" if in_device and memory.host_missing_bytes else ""
    free = f"{format_bytes(abs(left))} {'free' if left >= 0 else 'missing'}"
    return f"{memory.verdict}{where}{then} {free}"


def _host_line(memory: MemoryEstimate) -> str:
    """What is offloaded, per rank and node, and what the node lacks for it; empty of nothing."""
    if not memory.host_bytes:
        return ""
    ranks = memory.ranks_per_node
    line = f"offloaded per rank: {format_bytes(memory.host_bytes)}"
    if not memory.host_missing_bytes:
        return line
    needed, there = ranks * memory.host_bytes, ranks * memory.host_limit_bytes
    return (
        f"{line}; {format_bytes(needed)} per node of {ranks} rank{'s' * (ranks > 1)}, which has "
        f"{format_bytes(there)} to offload to: {format_bytes(needed - there)} missing"
    )


def _time_tree(schedule: str, tree: TimeTreeRow, *, deep: bool) -> Iterator[Tree | str]:
    """Exposed seconds, how long resources are busy, the pipeline by simulation."""
    root = Tree(
        f"time: {format_seconds(tree.iter_time_s)} per iteration "
        f"(slowest stage {tree.slowest_stage}; communication overlapped fully "
        f"{format_seconds(tree.iter_time_s_overlapped)}, not at all "
        f"{format_seconds(tree.iter_time_s_serial)})"
    )
    exposed_s = {name: item.exposed_s for name, item in tree.items.items()}
    _grow(root, exposed_s, "time", tree.iter_time_s, deep=deep)
    yield root
    for name, item in tree.items.items():
        if item.busy_s > item.exposed_s * 1.001:
            hidden = format_seconds(item.busy_s - item.exposed_s)
            yield f"{name}: busy {format_seconds(item.busy_s)}, of which {hidden} hidden"
    if tree.pipeline is not None:
        work, simulated_s = tree.pipeline.formula_s, tree.pipeline.simulated_s
        yield (
            f"pipeline ({schedule}): {format_seconds(work)} by formula, "
            f"{format_seconds(simulated_s)} by event simulation ({simulated_s / work - 1.0:+.1%})"
        )


def print_explained(
    document: ExplainDocument,
    context: Context,
    strategy: Strategy,
    result: Estimate,
    console: Console,
    *,
    show_all: bool = True,
) -> None:
    """Both trees, one of them, or an item with its formula; ``show_all``: all of it."""
    if document.item is not None:
        print_item(document.item, console, show_all=show_all)
        return
    deep = show_all or None in (document.memory, document.time)
    show(console, Text(_layout(strategy), "dim"))
    if document.memory is not None:
        show(console, *_memory_tree(result.memory, deep=deep))
    if document.time is not None:
        show(
            console,
            *_time_tree(strategy.schedule, document.time, deep=deep),
            range_line(result),
            document.evidence.line(context),
        )
    show(
        console,
        Text(assumptions_line(context, [strategy]), "dim"),
        "" if deep else Text("--all adds the parts of every item.", "dim"),
        "`planner explain PLAN ITEM` shows formula, inputs and source of an item.",
    )


def _layout(strategy: Strategy) -> str:
    sequence_parallel = ", sequence parallel" if strategy.sequence_parallel else ""
    return (
        f"{plural(strategy.num_gpus, 'GPU')}: {short_layout(strategy)}, "
        f"{strategy.num_micro_batches} micro-batch{'es' * (strategy.num_micro_batches > 1)}"
        f"{sequence_parallel}"
    )


def _shown(value: object) -> str:
    """An input in short: large numbers whole, others with six digits, parts as name=value."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,.0f}" if 1e5 <= abs(value) <= 1e16 else f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_shown(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
    return str(value)


def print_item(row: ItemRow, console: Console, *, show_all: bool = True) -> None:
    """One item or group: value, share, inputs with their sources, formulas."""
    in_words = format_bytes if row.unit == "bytes" else format_seconds
    titles = ("input", "value", "source")
    inputs = [(each.path, _shown(each.value), each.source) for each in row.inputs]
    formulas: list[Part] = [
        part
        for function, text in row.formulas.items()
        for part in (Text(f"\n{function}", "bold"), text)
    ]
    values = [
        Text(f"{leaf}: {in_words(value)} ({value / row.total:.1%})", "bold")
        for leaf, value in row.values.items()
    ]
    if not (show_all or any(row.values.values())):
        more = Text("None in this layout; --all shows its inputs and formulas.", "dim")
        show(console, *values, more)
        return
    show_first(
        console,
        None if show_all else ON_SCREEN,
        *values,
        text_table(titles, inputs, left=titles) if inputs else "",
        f"\n{row.text}" if row.text else "",
        *formulas,
    )


def ledger_table(ledger: StageLedger, most: int | None = None) -> Table[LedgerItem]:
    """Items of one stage, largest first, with shape, bytes per element and lifetime."""

    def tensors(item: LedgerItem) -> str:
        shape = " x ".join(f"{size:,}" for size in item.shape)
        copies = f"{item.copies:g} x " if item.copies != 1 else ""
        return f"{copies}[{shape}] of {item.element_bytes:.4g} B" if shape else ""

    columns = [
        Column[LedgerItem]("item", "name", right=False, wraps=True),
        Column("bytes", lambda item: format_bytes(item.num_bytes)),
        Column("share", lambda item: f"{item.num_bytes / ledger.peak_bytes:.1%}"),
        Column("tensors", tensors, right=False, wraps=True),
        Column("alive", "lifetime", right=False, wraps=True, spare=3),
    ]
    return Table(ledger.items[:most], columns)


def _stages(
    ledgers: Sequence[StageLedger], strategy: Strategy, memory: MemoryEstimate
) -> Table[Sequence[str]]:
    rows = []
    for ledger in ledgers:
        groups = dict.fromkeys(GROUPS, 0.0)
        for item in ledger.items:
            name = item.name.partition(".")[0]
            head = "states" if name in ("weights", "gradients", "optimizer") else name
            groups[head if head in groups else "other"] += item.num_bytes
        held = (format_bytes(size) if size else "-" for size in groups.values())
        peak, verdict = format_bytes(ledger.peak_bytes), memory.verdict_at(ledger.peak_bytes)
        stage = ledger.stage
        rows.append((str(stage), str(strategy.layers_per_stage[stage]), *held, peak, verdict))
    return text_table(("stage", "layers", *GROUPS, "peak", ""), rows, left=("",))


def _savings(savings: Sequence[PricedChange], memory: MemoryEstimate) -> Iterator[Part]:
    rows = []
    refused: dict[str, list[PricedChange]] = {}
    for saving in savings:
        if saving.refused:
            refused.setdefault(saving.refused, []).append(saving)
        if saving.peak_bytes is None:
            continue
        saved = saving.saved_bytes or 0.0
        saves = f"{'-' if saved < 0 else ''}{format_bytes(abs(saved))}"
        verdict: str = saving.verdict or ""
        if verdict == "does not fit" and saving.peak_bytes <= memory.hbm_bytes:
            # The device holds it, so it is the host that has no room.
            verdict = "host too small"
        change = f"{(saving.time_factor or 1.0) - 1.0:+.1%}"
        rows.append((saving.change, saves, format_bytes(saving.peak_bytes), change, verdict))
    yield text_table(("change", "saves", "peak", "time per token", ""), rows, left=("",))
    if refused:
        yield Text("not possible here:", "dim")
    for rule, changes in refused.items():
        names = ", ".join(saving.change for saving in changes)
        whys = [saving.why.partition(": ")[2] or saving.why for saving in changes]
        yield Text(f"  {names} ({rule}: {'; '.join(dict.fromkeys(whys))})", "dim")


def _groups(ledger: StageLedger) -> Table[Sequence[str]]:
    """Groups of items, largest first, each with its largest parts."""
    named = ((".".join(item.name.split(".")[:2]), item.num_bytes) for item in ledger.items)
    rows = []
    for head, parts in _grouped(named):
        size = sum(parts.values())
        largest = sorted(parts.items(), key=lambda part: -part[1])
        words = [f"{name.replace('_', ' ')} {own / GIB:,.2f}" for name, own in largest[:3]]
        share = f"{size / ledger.peak_bytes:.1%}"
        more = ["..."] if len(parts) > 3 else []
        said = ", ".join([*words, *more]) if len(parts) > 1 else ""
        rows.append((head.replace("_", " "), format_bytes(size), share, said))
    return text_table(
        ("", "bytes", "share", "largest parts, GiB"), rows, left=("largest parts, GiB",)
    )


def print_memory(
    document: MemoryDocument,
    context: Context,
    strategy: Strategy,
    memory: MemoryEstimate,
    ledgers: Sequence[StageLedger],
    console: Console,
    *,
    show_all: bool,
    verbose: bool,
) -> None:
    """Print whether it fits, what takes most, what would save; ``verbose``: all of it."""
    title = inputs_line([context], batch=f"sequences of {context.job.seq_len} tokens")
    verdict = (
        f"{memory.peak_bytes / GIB:,.2f} of {memory.hbm_bytes / GIB:,.2f} GiB: "
        f"{_verdict(memory, ',')}; published peaks are off by up to "
        f"{format_bytes(memory.uncertainty_bytes)}."
    )
    fullest = ledgers[memory.stage]
    peak = f"The peak is in the {fullest.moment}."
    several = len(ledgers) > 1
    if several:
        sizes = [f"{ledger.peak_bytes / GIB:,.1f}" for ledger in ledgers]
        sizes[8:] = ["..."] * (len(sizes) > 8)
        peak = (
            f"Fullest is pipeline stage {fullest.stage}, in the {fullest.moment}; GiB of all "
            f"stages: {', '.join(sizes)}."
        )
    styles = {"fits": "bold green", "tight": "bold yellow"}
    most = len(fullest.items) if show_all else 12
    hidden = fullest.items[most:]
    items = [
        Text(f"\nledger of stage {memory.stage}", "bold"),
        ledger_table(fullest, most),
        f"and {len(hidden)} smaller items (--all shows them)" if hidden else "",
        *((Text("\nby stage", "bold"), _stages(ledgers, strategy, memory)) if several else ()),
        Text(),
    ]
    possible = [saving for saving in document.savings if saving.peak_bytes is not None]
    savings = document.savings if verbose else possible[:5]
    more = "-v adds every item and stage, all changes, assumptions; --all small items too."
    assumed = assumptions_line(context, [strategy])
    show(
        console,
        Text(title, "dim"),
        Text(_layout(strategy), "dim"),
        *(Text(f"note: {note}", "dim") for note in document.notes if verbose),
        Text(verdict, styles.get(memory.verdict, "bold red")),
        peak,
        _host_line(memory),
        _groups(fullest),
        *(items if verbose else ()),
        Text("What would save how much", "bold"),
        *_savings(savings, memory),
        Text(f"\n{assumed}" if verbose else more, "dim"),
    )

"""Prints the memory of one configuration: tree, stages, and what would save how much."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table as RichTable

from planner.answers.rows import SoftwareRow
from planner.answers.savings import Saving
from planner.answers.software import assumptions_line
from planner.cost.estimate import MemoryEstimate
from planner.cost.ledger import LedgerItem, StageLedger
from planner.plans.memory import MemoryAnswer
from planner.report.document import serialise
from planner.report.explain import host_line, print_memory
from planner.report.table import Column, Table, rich_table
from planner.spec.strategy import MOVED, Strategy
from planner.units import GIB, format_bytes

SHOWN_ITEMS = 12
MOST_PEAKS = 8
WIDE_COLUMNS = 120
STATES = ("weights", "gradients", "optimizer")
NARROW_GROUPS = ("states", "activations", "transient")
STAGE_GROUPS = ("weights", "gradients", "optimizer", "activations", "transient", "overhead")


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
            for name, policy in MOVED.items()
            if under[name]
        ),
        f"placed {strategy.placement}",
    ]
    return ", ".join([" ".join(degrees) or "one GPU", *policies])


VERDICT_STYLES = {"fits": "bold green", "tight": "bold yellow"}
SHOWN_PARTS = 3
"""Of each group of items, the largest."""
SHOWN_SAVINGS = 5


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


def render_memory_json(answer: MemoryAnswer) -> str:
    """The same as JSON: base units, every stage's whole ledger."""
    memory = answer.estimate.memory
    body = {
        "model": answer.context.model.name,
        "cluster": answer.context.cluster.name,
        "framework": answer.context.traits.name,
        "profile": answer.context.traits.profile,
        "assumptions": SoftwareRow.of(answer.context.traits),
        "strategy": asdict(answer.strategy),
        "verdict": memory.verdict,
        "peak_bytes": memory.peak_bytes,
        "hbm_bytes": memory.hbm_bytes,
        "headroom_bytes": memory.hbm_bytes - memory.peak_bytes,
        "uncertainty_bytes": memory.uncertainty_bytes,
        "host_bytes": memory.host_bytes,
        "host_limit_bytes": memory.host_limit_bytes if memory.host_bytes else None,
        "stages": [
            {
                "stage": ledger.stage,
                "moment": ledger.moment,
                "peak_bytes": ledger.peak_bytes,
                "allocated_bytes": ledger.allocated_bytes,
                "verdict": memory.verdict_at(ledger.peak_bytes),
                "ledger": [asdict(item) for item in ledger.items],
            }
            for ledger in answer.ledgers
        ],
        "savings": [asdict(saving) for saving in answer.savings],
        "notes": [str(note) for note in answer.notes],
    }
    return serialise("memory", body)

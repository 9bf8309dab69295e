"""Lists and entries of the catalog for the terminal, and collectives on one of its networks."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from planner.answers import show as answers
from planner.catalog.hardware import FigureRow
from planner.layers.parameters import describe_size
from planner.report.table import (
    Column,
    Part,
    Table,
    pairs,
    show,
    show_first,
    text_table,
    whole,
)
from planner.units import GB, GIB, TERA, format_bytes, format_count, format_seconds, plural

if TYPE_CHECKING:
    from planner.answers.collective import AlgorithmRow, CollectiveAnswer, WayRow

# Rows of a list where not all are asked for, so that it fits a screen; of lists of several kinds.
MOST, MOST_OF_KINDS = 16, 12
NOTHING = "Nothing that all words apply to."
LEVEL_NAMES: list[Column[Any]] = [
    Column("level", "name", right=False, wraps=True),
    Column(
        "topology",
        lambda one: f"{one.topology.replace('_', ' ')} {' x '.join(map(str, one.dims))}".strip(),
        right=False,
        wraps=True,
    ),
]
LEVEL_RATES: list[Column[Any]] = [
    Column("GB/s", lambda level: f"{level.bytes_per_s / GB:.4g}"),
    Column("latency", lambda level: format_seconds(level.latency_s)),
    Column("reduces", lambda level: "yes" if level.reduces_in_network else "no", right=False),
]


def _known(value: float | None, unit: float, form: str) -> str:
    return "-" if value is None else format(value / unit, form)


def _rate(peaks: dict[str, float]) -> str:
    """Return the rate of bf16 GEMMs, else of the next best data type."""
    dtype = next(each for each in ("bf16", "fp16", "fp32") if each in peaks)
    named = "" if dtype == "bf16" else f" ({dtype})"
    return f"{peaks[dtype] / TERA:g}{named}"


def _gpus(row: answers.ListedRecipe) -> str:
    """GPUs as stated; in brackets the fewest that its degrees divide, where that is more."""
    if row.gpus is None:
        return f"({row.needed_gpus}+)"
    return str(row.gpus) if row.needed_gpus == row.gpus else f"{row.gpus} ({row.needed_gpus})"


def _lists(
    hint: str,
    *lists: tuple[Sequence[Any], list[Column[Any]], int, str],
) -> list[Part]:
    """Tables of the rows, each with how many were found in all; then the hint."""
    made: list[Part] = []
    for rows, columns, found, what in lists:
        many = f"{len(rows)} of {found}" if len(rows) < found else f"{found}"
        made += [Table(rows, columns, f"{many} {what}")] if rows else []
    is_cut = any(len(rows) < found for rows, _, found, _ in lists)
    return [*made, Text(f"{'--all lists all; ' if is_cut else ''}{hint}", "dim")]


def print_models(found: answers.Models, console: Console) -> None:
    """One line per model."""
    columns: list[Column[answers.ModelRow]] = [
        Column("model", "name", right=False),
        Column("params", lambda row: format_count(row.parameters)),
        Column("active", lambda row: format_count(row.active_parameters) if row.is_mixture else ""),
        Column("layers", "num_blocks"),
        Column("hidden", "hidden_size"),
        Column("vocab", "vocab_size"),
        Column("max seq", "max_seq_len"),
    ]
    hint = "`planner show models NAME` shows one with its sources." if found.found else NOTHING
    show(console, *_lists(hint, (found.models, columns, found.found, "models")))


def print_model(found: answers.Model, console: Console) -> None:
    """Shape, exact parameter counts and provenance of one model."""
    published, is_mixture = found.published_parameters, found.model.moe is not None
    known = {
        "parameters, exact": f"{found.parameters:,}",
        "multi-token prediction, exact": found.mtp_parameters and f"{found.mtp_parameters:,} more",
        "parameters, as published": published and f"{published / 1e9:g} billion",
        "active parameters, exact": is_mixture and f"{found.active_parameters:,}",
    }
    rows = [(name, text) for name, text in known.items() if text]
    rows += [(key, str(value)) for key, value in found.stated.items()]
    show(
        console,
        Text(f"{found.name}: {describe_size(found.model)}", "bold"),
        pairs(rows),
        f"basis: {found.basis}" if found.basis else "",
        whole(f"note: {found.note}") if found.note else "",
        *(whole(f"source: {source}") for source in found.sources),
    )


def print_hardware(found: answers.Hardware, console: Console) -> None:
    """Accelerators with their main rates, nodes with what they hold, fabrics and machines."""
    named: list[Column[Any]] = [
        Column("name", "name", right=False),
        Column("title", "title", right=False, wraps=True),
    ]
    accelerators: list[Column[answers.AcceleratorRow]] = [
        *named,
        Column("HBM GiB", lambda row: f"{row.hbm_bytes / GIB:g}"),
        Column("HBM GB/s", lambda row: f"{row.hbm_bytes_per_s / GB:g}"),
        Column("TFLOP/s dense", lambda row: _rate(row.peak_flops_per_s)),
    ]
    nodes: list[Column[answers.NodeRow]] = [
        named[0],
        Column("holds", lambda row: f"{row.gpus} x {row.accelerator}", right=False, wraps=True),
        Column("domain", "scale_up_gpus"),
        Column("net GB/s", lambda row: _known(row.network_bytes_per_s, GB, "g")),
        Column("host GiB", lambda row: _known(row.host_memory_bytes, GIB, ",.0f")),
        Column("USD/h", lambda row: _known(row.usd_per_hour, 1.0, ".2f")),
    ]
    hint = "`planner show hardware NAME` shows every figure with its basis and source."
    number = found.found
    lists = _lists(
        hint if any(number.values()) else NOTHING,
        (found.accelerators, accelerators, number["accelerators"], "accelerators"),
        (found.nodes, nodes, number["nodes"], "nodes"),
        (found.fabrics, named, number["fabrics"], "fabrics"),
        (found.machines, named, number["machines"], "machines"),
    )
    show(console, *lists)


def print_hardware_entry(
    found: answers.HardwareEntry | answers.Cluster, console: Console, most: int | None = None
) -> None:
    """Every figure of one entry with basis and source; of a cluster, the levels."""
    if isinstance(found, answers.Cluster):
        show(console, _levels(found.levels))
        return
    notes = [f"{row.name}: {row.note}" for row in found.figures if row.note]
    citations = list(dict.fromkeys(row.source for row in found.figures))

    def value(row: FigureRow) -> str:
        if isinstance(row.value, bool):
            return "yes" if row.value else "no"
        several = row.value if isinstance(row.value, tuple) else (row.value,)
        return ", ".join(f"{each:g}" for each in several)

    columns: list[Column[FigureRow]] = [
        Column("figure", "name", right=False),
        Column("value", value, wraps=True),
        Column("basis", "basis", right=False),
        Column("from", lambda row: f"[{citations.index(row.source) + 1}]", right=False),
    ]
    show_first(
        console,
        most,
        Text(f"{found.name}: {found.title}", "bold"),
        whole(found.note) if found.note else "",
        *(f"{key}: {value}" for key, value in found.texts.items()),
        Table(found.figures, columns),
        *notes,
        *(whole(f"[{index}] {text}") for index, text in enumerate(citations, start=1)),
        _levels(found.levels, of_node=found.kind == "node") if found.levels else "",
    )


def _levels(levels: Sequence[answers.Level], *, of_node: bool = False) -> Table[answers.Level]:
    """The network levels; the outermost of a node joins as many GPUs as a cluster has."""
    outermost = levels[-1] if of_node else None
    columns: list[Column[answers.Level]] = [
        *LEVEL_NAMES,
        Column("GPUs", lambda one: "all" if one is outermost else f"{one.num_accelerators:,}"),
        *LEVEL_RATES,
        Column("reached", lambda level: f"{level.efficiency_fraction:.0%}", spare=3),
        Column("oversubscribed", lambda level: f"{level.oversubscription:.3g}", spare=4),
    ]
    return Table(levels, columns, "network levels, per GPU and direction")


def print_detected(found: answers.Detected, console: Console) -> None:
    """Print what was detected, and what differs from the catalog and where it was seen."""
    title = (
        f"{found.num_nodes * found.num_gpus:,} x {found.accelerator}: "
        f"{plural(found.num_nodes, 'node')} of {found.num_gpus} (node {found.node} of the catalog)"
    )
    overrides = [
        (one.key, f"{one.value:.6g}", _known(one.catalog, 1.0, "g"), one.where)
        for one in found.overrides
    ]
    of_override = ("override", "value", "catalog", "seen in")
    show(
        console,
        Text(title, "bold"),
        text_table(of_override, overrides, left=("seen in",)) if overrides else "",
        f"What is not overridden is that of {found.node} in the catalog.",
        *(f"note: {note}" for note in found.notes),
    )


def recipes_line(found: answers.Recipes) -> str:
    """Return how many recipes there are, from which vendors, and how many are priced."""
    asked = f" for {' '.join(found.words)}" if found.words else ""
    rows = found.recipes
    if not rows:
        return f"No recipe{asked}."
    of_source = Counter((row.source.vendor, row.source.title) for row in rows)
    parts = [f"{count} of {vendor} ({title})" for (vendor, title), count in of_source.items()]
    text = f"{len(rows)} recipe{'s' if len(rows) > 1 else ''}{asked}: {', '.join(parts)}."
    reasons = [row.not_priced for row in rows if row.not_priced]
    return f"{text} {len(reasons)} listed only: {reasons[0]}." if reasons else text


def print_recipes(found: answers.Recipes, console: Console, most: int | None = None) -> None:
    """Print the number of recipes, and one line per recipe."""
    rows = found.recipes[:most]
    columns: list[Column[answers.ListedRecipe]] = [
        Column("recipe", "recipe", right=False),
        Column("GPUs", _gpus),
        Column("batch", "global_batch"),
        Column("length", "seq_len"),
        Column("layout", "summary", right=False, wraps=most is None),
    ]
    other = "In brackets: the GPUs that the degrees need, where more or not stated."
    hint = "`planner plan --like RECIPE` starts from one."
    show(
        console,
        recipes_line(found),
        other if any(row.needed_gpus != row.gpus for row in rows) else "",
        *(_lists(hint, (rows, columns, len(found.recipes), "recipes")) if rows else ()),
    )


def print_frameworks(found: answers.Frameworks, console: Console, most: int | None = None) -> None:
    """Every profile, and what it stands for."""
    hint = "`planner show frameworks FRAMEWORK/PROFILE` shows what it assumes, with sources."
    columns: list[Column[answers.ProfileRow]] = [
        Column("framework", "framework", right=False),
        Column("profile", "profile", right=False),
        Column("stands for", "title", right=False, wraps=most is None),
    ]
    listed = (found.profiles[:most], columns, len(found.profiles), "profiles")
    facts = "; ".join(f"{fact} {', '.join(each)}" for fact, each in found.facts.items())
    said = f"Facts of a run's software, --set FACT=CHOICE over any profile: {facts}."
    show(console, *_lists(hint, listed), Text(said))


def print_framework(found: answers.Framework, console: Console, most: int | None = None) -> None:
    """One profile: what it stands for, what it assumes, every trait with its source."""
    from planner.answers.software import shown_value

    title = f"{found.framework}, profile {found.profile}: {found.title}"
    changes, runs = "; ".join(found.differs_from_current), plural(found.runs, "published run")
    traits: list[Part] = []
    for trait in found.traits:
        value, before = shown_value(trait.value), shown_value(trait.current)
        note = "" if value == before else f"  (current: {before})"
        traits += [whole(f"{trait.name}={value}{note}"), whole(f"    {trait.source}", "dim")]
    modules, chosen = ", ".join(found.recompute_modules), ", ".join(found.selected_modules)
    show_first(
        console,
        most,
        Text(title, "bold"),
        f"{found.versions}; {runs} of {plural(found.sources, 'source')}",
        f"assumes {', '.join(found.software.values())}",
        f"differs from current in {changes}" if changes else "",
        f"recompute modules: {modules} (selected: {chosen})",
        *traits,
    )


def _count(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def print_collective(
    answer: "CollectiveAnswer", console: Console, *, verbose: bool = False
) -> None:
    """Print the time that plans use, then algorithms; ``verbose``: all, level by level."""
    title = (
        f"{answer.collective.replace('_', '-')} of {format_bytes(answer.bytes)} on "
        f"{answer.ranks} of {answer.accelerators} {answer.accelerator} ({answer.cluster})"
    )
    in_plans = ""
    if answer.plan_s is not None and answer.plan_busbw_bytes_per_s is not None:
        how = "measured" if answer.plan_is_measured else "no measurement of this group"
        busbw = answer.plan_busbw_bytes_per_s / GB
        in_plans = f"{format_seconds(answer.plan_s)} in plans, {busbw:.4g} GB/s of bus ({how})."
    has_levels = len(answer.levels) > 1
    has_steps = len(answer.crossovers) > 1 or len(answer.algorithms) > 1
    steps = [f"{c.algorithm} from {format_bytes(c.from_bytes)}" for c in answer.crossovers]
    most = len(answer.algorithms) if verbose else 6
    is_cut = len(answer.algorithms) > most or (has_levels and not verbose)
    levels = [*LEVEL_NAMES, Column[Any]("units", "members"), *LEVEL_RATES]
    algorithms: list[Column[AlgorithmRow]] = [
        Column("algorithm", "name", right=False),
        Column("time", lambda row: format_seconds(row.time_s)),
        Column("bus GB/s", lambda row: f"{row.busbw_bytes_per_s / GB:.4g}"),
        Column("rounds", lambda row: _count(row.rounds)),
        Column("sent per rank", lambda row: format_bytes(row.sent_bytes)),
        Column("bottleneck", "bottleneck", right=False),
    ]
    show(
        console,
        Text(title, "dim"),
        answer.note,
        Text(in_plans, "bold green") if in_plans else "",
        Table(answer.levels, levels),
        Table(answer.algorithms[:most], algorithms),
        _shares(answer) if verbose and has_levels else "",
        _ways(answer.ways) if answer.ways else "",
        f"fastest by size: {', '.join(steps)}" if has_steps else "",
        Text("-v adds slower algorithms, and each level's share of them.", "dim") if is_cut else "",
    )


def _ways(ways: "Sequence[WayRow]") -> "Table[WayRow]":
    columns: list[Column[WayRow]] = [
        Column("other way", "name", right=False),
        Column("time", lambda row: format_seconds(row.time_s)),
        Column(
            "exposed",
            lambda row: "" if row.exposed_s is None else format_seconds(row.exposed_s),
        ),
        Column(
            "sent",
            lambda row: "" if row.sent_bytes is None else format_bytes(row.sent_bytes),
        ),
        Column("what it does", "note", right=False, wraps=True),
    ]
    return Table(ways, columns)


def _shares(answer: "CollectiveAnswer") -> Table[Sequence[str]]:
    """Every algorithm's time, rounds and bytes on every level."""
    rows = [
        (
            row.name,
            share.name,
            format_seconds(share.time_s),
            _count(share.rounds),
            format_bytes(share.sent_bytes),
        )
        for row in answer.algorithms
        for share in row.levels
    ]
    return text_table(("algorithm", "level", "time", "rounds", "sent"), rows, left=("level",))

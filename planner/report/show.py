"""Lists and entries of the catalog for the terminal."""

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from planner.answers import show
from planner.answers.software import shown_value
from planner.catalog.detect import Override, Seen
from planner.catalog.hardware import FigureRow
from planner.layers.parameters import describe_size
from planner.report.table import Column, Table, rich_table
from planner.units import GB, GIB, TERA, US, format_count

R = TypeVar("R")

MOST = 20
"""Rows of a list where not all are asked for."""
WIDE = 120
"""Columns from which notes stand beside figures."""
NOTHING = "Nothing that all words apply to."
MODELS: list[Column[show.ModelRow]] = [
    Column("model", attrgetter("name"), right=False),
    Column("params", lambda row: format_count(row.parameters)),
    Column("active", lambda row: format_count(row.active_parameters) if row.is_mixture else ""),
    Column("layers", lambda row: str(row.num_blocks)),
    Column("hidden", lambda row: str(row.hidden_size)),
    Column("vocab", lambda row: str(row.vocab_size)),
    Column("max seq", lambda row: str(row.max_seq_len)),
]
NAMED: list[Column[show.NamedRow]] = [
    Column("name", attrgetter("name"), right=False),
    Column("title", attrgetter("title"), right=False, wraps=True),
]
ACCELERATORS: list[Column[show.AcceleratorRow]] = [
    Column("name", attrgetter("name"), right=False),
    Column("title", attrgetter("title"), right=False, wraps=True),
    Column("HBM GiB", lambda row: f"{row.hbm_bytes / GIB:g}"),
    Column("HBM GB/s", lambda row: f"{row.hbm_bytes_per_s / GB:g}"),
    Column("TFLOP/s dense", lambda row: _rate(row.peak_flops_per_s)),
]
NODES: list[Column[show.NodeRow]] = [
    Column("name", attrgetter("name"), right=False),
    Column("holds", lambda row: f"{row.gpus} x {row.accelerator}", right=False, wraps=True),
    Column("domain", lambda row: str(row.scale_up_gpus)),
    Column("net GB/s", lambda row: _known(row.network_bytes_per_s, GB, "g")),
    Column("host GiB", lambda row: _known(row.host_memory_bytes, GIB, ",.0f")),
    Column("USD/h", lambda row: _known(row.usd_per_hour, 1.0, ".2f")),
]
SEEN: list[Column[Seen]] = [
    Column("seen", attrgetter("what"), right=False, wraps=True),
    Column("value", attrgetter("value"), right=False, wraps=True),
    Column("where", attrgetter("where"), right=False, wraps=True),
]
OVERRIDES: list[Column[Override]] = [
    Column("override", attrgetter("key"), right=False, wraps=True),
    Column("value", lambda one: f"{one.value:.6g}"),
    Column("catalog", lambda one: _known(one.catalog, 1.0, "g")),
    Column("seen in", attrgetter("where"), right=False, wraps=True),
]
RECIPES: list[Column[show.ListedRecipe]] = [
    Column("recipe", attrgetter("recipe"), right=False),
    Column("GPUs", lambda row: _gpus(row)),
    Column("batch", lambda row: str(row.global_batch)),
    Column("length", lambda row: str(row.seq_len)),
    Column("layout", attrgetter("summary"), right=False, wraps=True),
]
PROFILES: list[Column[show.ProfileRow]] = [
    Column("framework", attrgetter("framework"), right=False),
    Column("profile", attrgetter("profile"), right=False),
    Column("stands for", lambda row: row.title, right=False, wraps=True),
]


def _known(value: float | None, unit: float, form: str) -> str:
    return "-" if value is None else format(value / unit, form)


def _rate(peaks: dict[str, float]) -> str:
    """Of bf16 products, else of the next best data type."""
    dtype = next(each for each in ("bf16", "fp16", "fp32") if each in peaks)
    return f"{peaks[dtype] / TERA:g}" + ("" if dtype == "bf16" else f" ({dtype})")


def _gpus(row: show.ListedRecipe) -> str:
    """GPUs as stated; in brackets the fewest that its degrees divide, where that is more."""
    if row.gpus is None:
        return f"({row.needed_gpus}+)"
    return str(row.gpus) if row.needed_gpus == row.gpus else f"{row.gpus} ({row.needed_gpus})"


def _listed(
    rows: Sequence[R], columns: list[Column[R]], found: int, what: str, console: Console
) -> None:
    """A table, and how many of those found are not in it."""
    if not rows:
        return
    title = f"{len(rows)} of {found} {what}" if len(rows) < found else f"{found} {what}"
    console.print(rich_table(Table(rows, columns, title)))


def _rest(is_cut: bool, kind: str, hint: str, console: Console) -> None:
    more = f"--all lists all, `planner show {kind} WORDS` those that words apply to; "
    console.print(f"{more if is_cut else ''}{hint}", style="dim")


def print_models(found: show.Models, console: Console) -> None:
    """One line per model."""
    if not found.found:
        console.print(NOTHING)
        return
    _listed(found.models, MODELS, found.found, "models", console)
    is_cut = len(found.models) < found.found
    _rest(is_cut, "models", "`planner show models NAME` shows one with its sources.", console)


def print_model(found: show.Model, console: Console) -> None:
    """Shape, exact parameter counts and provenance of one model."""
    console.print(f"{found.name}: {describe_size(found.model)}", style="bold")
    rows = [("parameters, exact", f"{found.parameters:,}")]
    if found.mtp_parameters:
        rows.append(("multi-token prediction, exact", f"{found.mtp_parameters:,} more"))
    if found.published_parameters is not None:
        rows.append(("parameters, as published", f"{found.published_parameters / 1e9:g} billion"))
    if found.model.moe is not None:
        rows.append(("active parameters, exact", f"{found.active_parameters:,}"))
    rows += [(key, str(value)) for key, value in found.stated.items()]
    columns: list[Column[tuple[str, str]]] = [
        Column("", itemgetter(0), right=False),
        Column("", itemgetter(1), right=False, wraps=True),
    ]
    console.print(rich_table(Table(rows, columns)))
    if found.basis is not None:
        console.print(f"basis: {found.basis}")
    if found.note:
        console.print(f"note: {found.note}", soft_wrap=True)
    for source in found.sources:
        console.print(f"source: {source}", soft_wrap=True)


def print_hardware(found: show.Hardware, console: Console) -> None:
    """Accelerators with their main rates, nodes with what they hold, fabrics and machines."""
    if not any(found.found.values()):
        console.print(NOTHING)
        return
    counts = found.found
    _listed(found.accelerators, ACCELERATORS, counts["accelerators"], "accelerators", console)
    _listed(found.nodes, NODES, counts["nodes"], "nodes", console)
    _listed(found.fabrics, NAMED, counts["fabrics"], "fabrics", console)
    _listed(found.machines, NAMED, counts["machines"], "machines", console)
    shown = (found.accelerators, found.nodes, found.fabrics, found.machines)
    hint = "`planner show hardware NAME` shows every figure with its basis and source."
    _rest(sum(map(len, shown)) < sum(counts.values()), "hardware", hint, console)


def print_hardware_entry(found: show.HardwareEntry | show.Cluster, console: Console) -> None:
    """Every figure of one entry with basis and source; of a cluster, the levels."""
    if isinstance(found, show.Cluster):
        _print_levels(found.levels, console)
        return
    console.print(f"{found.name}: {found.title}", style="bold")
    if found.note:
        console.print(found.note, soft_wrap=True)
    for key, value in found.texts.items():
        console.print(f"{key}: {value}")
    _print_figures(found.figures, console)
    if found.levels:
        _print_levels(found.levels, console, of_node=found.kind == "node")


def _print_figures(rows: Sequence[FigureRow], console: Console) -> None:
    """A line each; notes beside them where there is room, else below, by figure."""
    notes_beside = console.width >= WIDE
    citations = list(dict.fromkeys(row.source for row in rows))
    columns: list[Column[FigureRow]] = [
        Column("figure", attrgetter("name"), right=False),
        Column("value", lambda row: _figure(row.value), wraps=True),
        Column("basis", attrgetter("basis"), right=False),
        Column("from", lambda row: f"[{citations.index(row.source) + 1}]", right=False),
    ]
    if notes_beside:
        columns.append(Column("note", attrgetter("note"), right=False, wraps=True))
    console.print(rich_table(Table(rows, columns)))
    for row in rows:
        if row.note and not notes_beside:
            console.print(Text(f"{row.name}: {row.note}"))
    for index, citation in enumerate(citations, start=1):
        console.print(Text(f"[{index}] {citation}"), soft_wrap=True)


def _figure(value: float | bool | tuple[float, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(f"{each:g}" for each in (value if isinstance(value, tuple) else (value,)))


def _print_levels(levels: Sequence[show.Level], console: Console, *, of_node: bool = False) -> None:
    """The network levels; the outermost of a node joins as many GPUs as a cluster has."""

    def gpus(level: show.Level) -> str:
        return "all" if of_node and level is levels[-1] else f"{level.num_accelerators:,}"

    def topology(level: show.Level) -> str:
        return f"{level.topology.replace('_', ' ')} {' x '.join(map(str, level.dims))}".strip()

    columns: list[Column[show.Level]] = [
        Column("level", attrgetter("name"), right=False, wraps=True),
        Column("topology", topology, right=False, wraps=True),
        Column("GPUs", gpus),
        Column("GB/s", lambda level: f"{level.bytes_per_s / GB:.4g}"),
        Column("reached", lambda level: f"{level.efficiency_fraction:.0%}"),
        Column("µs", lambda level: f"{level.latency_s / US:.3g}"),
        Column("oversubscribed", lambda level: f"{level.oversubscription:.3g}"),
        Column("reduces", lambda level: "yes" if level.reduces_in_network else "no", right=False),
    ]
    console.print(rich_table(Table(levels, columns, "network levels, per GPU and direction")))


def print_detected(found: show.Detected, console: Console) -> None:
    """What was seen and where, what differs from the catalog, and what is the catalog's."""
    nodes = "node" if found.num_nodes == 1 else "nodes"
    console.print(
        f"{found.num_nodes * found.num_gpus:,} x {found.accelerator}: {found.num_nodes:,} {nodes} "
        f"of {found.num_gpus} (node {found.node} of the catalog)",
        style="bold",
    )
    console.print(rich_table(Table(found.seen, SEEN)))
    if found.overrides:
        console.print(rich_table(Table(found.overrides, OVERRIDES)))
    kept = "; ".join(found.kept)
    console.print(f"From the catalog, told by nothing: {kept}.", markup=False)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)


def recipes_line(found: show.Recipes) -> str:
    """How many recipes there are, of whom, and how many of them are priced."""
    asked = f" for {' '.join(found.words)}" if found.words else ""
    rows = found.recipes
    if not rows:
        return f"No recipe{asked}."
    by_source = {row.source.title: row.source.vendor for row in rows}
    parts = [
        f"{sum(row.source.title == title for row in rows)} of {vendor} ({title})"
        for title, vendor in by_source.items()
    ]
    text = f"{len(rows)} recipe{'s' if len(rows) > 1 else ''}{asked}: {', '.join(parts)}."
    reasons = [row.not_priced for row in rows if row.not_priced]
    return f"{text} {len(reasons)} listed only: {reasons[0]}." if reasons else text


def print_recipes(found: show.Recipes, console: Console, most: int | None = MOST) -> None:
    """How many there are, and one line per recipe."""
    console.print(recipes_line(found))
    if not found.recipes:
        return
    rows = found.recipes[:most]
    console.print(rich_table(Table(rows, RECIPES)))
    if any(row.needed_gpus != row.gpus for row in rows):
        console.print("In brackets: the GPUs that the degrees need, where more or not stated.")
    is_cut = len(rows) < len(found.recipes)
    _rest(is_cut, "recipes", "`planner plan --like RECIPE` starts from one.", console)


def print_frameworks(found: show.Frameworks, console: Console, most: int | None = MOST) -> None:
    """Every profile, and what it stands for."""
    rows = found.profiles[:most]
    _listed(rows, PROFILES, len(found.profiles), "profiles", console)
    more = "--all lists all; " if len(rows) < len(found.profiles) else ""
    hint = "`planner show frameworks FRAMEWORK/PROFILE` shows what it assumes, with sources."
    console.print(f"{more}{hint}", style="dim")


def print_framework(found: show.Framework, console: Console) -> None:
    """One profile: what it stands for, what it assumes, every trait with its source."""
    title = f"{found.framework}, profile {found.profile}: {found.title}"
    console.print(title, style="bold", markup=False)
    console.print(found.versions, markup=False)
    console.print(f"assumes {', '.join(found.software.values())}", markup=False)
    if found.differs_from_current:
        changes = "; ".join(found.differs_from_current)
        console.print(f"differs from current in {changes}", markup=False)
    console.print()
    for trait in found.traits:
        value, before = shown_value(trait.value), shown_value(trait.current)
        note = "" if value == before else f"  (current: {before})"
        console.print(f"{trait.name}={value}{note}", markup=False)
        console.print(f"    {trait.source}", style="dim", markup=False, soft_wrap=True)
    modules, chosen = ", ".join(found.recompute_modules), ", ".join(found.selected_modules)
    console.print(f"recompute modules: {modules} (selected: {chosen})", markup=False)

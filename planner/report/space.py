"""The forms of a search space: what each dimension may be, and how much that makes."""

from collections.abc import Sequence
from operator import itemgetter

from rich.console import Console
from rich.table import Table as RichTable

from planner.answers.rows import InputsRow, SpaceDocument, SpaceRow
from planner.notes import Note
from planner.report.document import serialise
from planner.report.table import Column, Table, rich_table
from planner.report.text import print_notes
from planner.search.space.count import SpaceCount
from planner.search.space.vocabulary import DIMENSIONS

MAX_LISTED_RULES = 6
MAX_SHOWN_DIGITS = 6


def large_number(number: int) -> str:
    """A whole number in words: in full up to a million, else ``about 10^45``."""
    digits = len(str(number))
    return f"{number:,}" if digits <= MAX_SHOWN_DIGITS + 1 else f"about 10^{digits - 1}"


def words(name: str, values: Sequence[int]) -> list[str]:
    """The values of a dimension by name."""
    return [DIMENSIONS[name].shown(value) for value in values]


def _runs(values: Sequence[int]) -> str:
    """Numbers with runs of neighbours joined: ``1-16, 20``."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(v) for v in run] for run in runs]
    return ", ".join(text for part in parts for text in part)


def _shown(name: str, values: Sequence[int]) -> str:
    if not values:
        return "none"
    return ", ".join(words(name, values)) if DIMENSIONS[name].words else _runs(values)


def _modules(space: SpaceCount) -> list[list[str]]:
    if not any("selective" in policy.kinds for policy in space.policies):
        return []
    selected = space.context.traits.recompute.selected
    return [list(chosen) for chosen in space.context.module_sets or (selected,) if chosen]


def _modules_text(space: SpaceCount) -> str:
    sets = _modules(space)
    names = sorted({name for chosen in sets for name in chosen})
    if len(sets) <= 1:
        return ", ".join(names) or "none"
    return f"{len(sets)} sets of {', '.join(names)}"


def space_table(space: SpaceCount) -> RichTable:
    """Every dimension with the values that legal strategies take."""
    rows = [(name, _shown(name, values)) for name, values in space.values.items()]
    said = [policy.in_words for policy in space.policies]
    rows.append(("activations", "; ".join(said) or "none"))
    rows.append(("selective: modules", _modules_text(space)))
    columns: list[Column[tuple[str, str]]] = [
        Column("dimension", itemgetter(0), right=False),
        Column("values of legal strategies", itemgetter(1), right=False, wraps=True),
    ]
    return rich_table(Table(rows, columns))


def _splits_line(space: SpaceCount) -> str:
    number = len(space.policies)
    policies = f"under {number} {'policy' if number == 1 else 'policies'} for their activations"
    return (
        f"Every split of {space.context.model.num_blocks} layers into stages, {policies}: "
        f"{large_number(space.num_splits)} in all (fewer where chunks interleave), none of them "
        "listed."
    )


def print_spaces(spaces: Sequence[SpaceCount], notes: Sequence[Note], console: Console) -> None:
    """Print the space of every framework."""
    print_notes(notes, console)
    for space in spaces:
        context = space.context
        title = (
            f"Search space of {context.model.name} on {context.cluster.name}, "
            f"{context.traits.name} {context.traits.profile}"
        )
        console.print(title, style="bold", markup=False)
        if space.narrowing.texts:
            console.print(f"narrowed by {', '.join(space.narrowing.texts)}", markup=False)
        console.print(space_table(space))
        console.print(
            f"{space.num_shapes:,} legal shapes (degrees, schedule, micro-batch); "
            f"{space.num_strategies:,} legal strategies (ZeRO, replicas, offload, placement)."
        )
        console.print(_splits_line(space))
        listed = list(space.dropped.items())[:MAX_LISTED_RULES]
        if listed:
            text = ", ".join(f"{name} {count:,}" for name, count in listed)
            console.print(f"Branches cut most by: {text}.", style="dim", markup=False)


def _space_row(space: SpaceCount) -> SpaceRow:
    return SpaceRow(
        framework=space.context.traits.name,
        profile=space.context.traits.profile,
        dimensions={
            name: words(name, values) if DIMENSIONS[name].words else list(values)
            for name, values in space.values.items()
        },
        layer_policies=[policy.in_words for policy in space.policies],
        module_sets=_modules(space),
        shapes=space.num_shapes,
        strategies=space.num_strategies,
        splits=str(space.num_splits),
        dropped=space.dropped,
    )


def render_spaces_json(spaces: Sequence[SpaceCount], notes: Sequence[Note]) -> str:
    """The spaces as JSON; the number of splits is text, as it may have many digits."""
    contexts = tuple(space.context for space in spaces)
    body = SpaceDocument(
        inputs=InputsRow.of(contexts, spaces[0].narrowing, tuple(notes)),
        spaces=[_space_row(space) for space in spaces],
    )
    return serialise("space", body)

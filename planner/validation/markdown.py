"""Pieces of the generated pages: tables, and fractions as percent."""

from collections.abc import Iterable, Sequence


def percent(value: float | None, *, signed: bool = False) -> str:
    """Format a fraction as percent with one decimal; a dash when unknown."""
    if value is None:
        return "-"
    return f"{100.0 * value:+.1f}" if signed else f"{100.0 * value:.1f}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table, the first column to the left, and an empty one."""
    rule = ["---" if index == 0 else "---:" for index in range(len(titles))]
    lines = [titles, rule, *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]

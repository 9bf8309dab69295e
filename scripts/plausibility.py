"""Regenerate docs/plausibility.md, or the lines of it whose name holds some words."""

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from planner.validation.plausibility import compared, page, read_set_ups, row_line
from planner.validation.recipe_plausibility import (
    compared_recipe,
    recipe_line,
    recipe_section,
    shown_recipes,
)
from planner.validation.records import read_records

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "validation"
PAGE = ROOT / "docs" / "plausibility.md"
Line = tuple[str, Callable[[], str]]
"""What a line is about, and how it is made."""


def made(lines: Iterable[Line], known: dict[str, str], only: str) -> list[str]:
    """The lines anew; those whose name does not hold ``only`` as they stand, where they do."""
    found: list[str] = []
    for name, make in lines:
        if only.lower() not in name.lower() and name in known:
            found.append(known[name])
            continue
        started = time.perf_counter()
        found.append(make())
        print(f"{time.perf_counter() - started:6.1f} s {found[-1]}", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Part of the names of the lines to make.")
    only = parser.parse_args().only
    records = {record.id: record for record in read_records(DATA / "published_runs.jsonl")}
    old = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    known = {line.split(" | ")[0].removeprefix("| "): line for line in old}
    rows = read_set_ups(DATA / "plausibility.yaml")
    set_ups = [(row.name, lambda row=row: row_line(compared(row, records))) for row in rows]
    recipes = [
        (one.recipe, lambda one=one: recipe_line(one, compared_recipe(one)))
        for one in shown_recipes()
    ]
    lines, recipe_lines = made(set_ups, known, only), made(recipes, known, only)
    PAGE.write_text(page(lines, recipe_section(recipe_lines)), encoding="utf-8")

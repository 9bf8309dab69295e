"""Markdown generated from the code: formulas by item, and the tables of rules and traits."""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from planner.answers import job
from planner.cost.estimate import ITEMS
from planner.frameworks.registry import FRAMEWORKS, trait_figures
from planner.search.ranking.penalties import PENALTIES, SIMPLICITY
from planner.search.space.legality import RULES
from planner.spec import traits as traits_module

SECTIONS: Mapping[str, str] = {
    "StateTraits": "states",
    "KernelTraits": "kernels",
    "OverlapTraits": "overlap",
    "OverheadTraits": "overheads",
    "OffloadTraits": "offload",
    "SupportTraits": "support",
}
"""Class in planner.spec.traits to section of a traits file."""


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars inside cells are escaped."""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def short_name(function: Callable[..., Any]) -> str:
    """Return module and name of a function, without the leading packages: ``kernels.gemm_s``."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def docstrings(functions: Iterable[Callable[..., Any]]) -> str:
    """Docstrings of functions, each once, under their short names."""
    return "\n\n".join(
        f"**{short_name(function)}**: {docstring_markdown(inspect.getdoc(function) or '')}"
        for function in dict.fromkeys(functions)
    )


def docstring_markdown(docstring: str) -> str:
    """Rewrite the markup of a docstring: ``code`` and roles become `code`."""
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", docstring)
    return text.replace("``", "`")


def summary(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring: what is computed, by which formula."""
    text = docstring_markdown(inspect.getdoc(function) or "")
    return " ".join(text.split("\n\n")[0].split())


def _functions() -> list[Callable[..., Any]]:
    """Every function an item names, once, in the order of the items."""
    return list(dict.fromkeys(function for item in ITEMS for function in item.functions))


def formulas_in_short() -> str:
    """The functions of every item, then what each computes, in a line."""
    items = table(
        ("item", "computed by"),
        (
            (
                f"`{item.address}`",
                " ".join([item.text, ", ".join(map(short_name, item.functions))]).strip(),
            )
            for item in ITEMS
        ),
    )
    functions = table(("function", "computes"), ((short_name(f), summary(f)) for f in _functions()))
    return f"{items}\n\n{functions}"


def formulas_text() -> str:
    """What every item reads, and the whole docstring of every function."""
    reads = table(
        ("item", "reads"),
        (
            (f"`{item.address}`", ", ".join(f"`{path}`" for path in dict.fromkeys(item.inputs)))
            for item in ITEMS
        ),
    )
    return f"{reads}\n\n{docstrings(_functions())}"


def job_text() -> str:
    """Every formula of a job with its worked example."""
    return docstrings(
        value
        for value in vars(job).values()
        if inspect.isfunction(value) and value.__module__ == job.__name__
    )


def rules_table() -> str:
    """Return every legality rule, in the order of the program: name, dimensions, meaning."""
    return table(
        ("rule", "asked about", "a layout is legal when"),
        (
            (f"`{rule.name}`", ", ".join(rule.needs), " ".join(rule.message.split()))
            for rule in RULES
        ),
    )


def penalties_table(*, reasons: bool = False) -> str:
    """Return every penalty and what makes a layout less simple; why on demand."""
    counted = [
        (name, f"x {one.factor:g}, {one.num_runs} runs", one.reason)
        for name, one in PENALTIES.items()
    ]
    counted += [(name, f"{one.steps:g} steps", one.reason) for name, one in SIMPLICITY.items()]
    rows = (
        (name.replace("_", " "), counts, *([reason] if reasons else []))
        for name, counts, reason in counted
    )
    return table(("mechanism", "counts", *(["why"] if reasons else [])), rows)


def trait_meanings() -> dict[str, str]:
    """Return what every trait means, by ``section.name``, in the order of the dataclasses."""
    source = inspect.getsource(traits_module)
    lines = source.splitlines()
    return {
        f"{SECTIONS[node.name]}.{field.target.id}": docstring_markdown(_comment(lines, field))
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name in SECTIONS
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _comment(lines: Sequence[str], field: ast.AnnAssign) -> str:
    """Return the comment beside a field, else those above it, as a sentence."""
    _, _, text = lines[(field.end_lineno or 0) - 1].partition("  # ")
    if not text:
        before = [line.strip() for line in reversed(lines[: field.lineno - 1])]
        above = list(takewhile(lambda line: line.startswith("#"), before))
        text = " ".join(line.removeprefix("#").strip() for line in reversed(above))
    first = text.partition(" ")[0]
    text = text[:1].upper() + text[1:] if first.rstrip(",:").isalpha() else text
    return text if not text or text.endswith(".") else f"{text}."


def _shown(value: object) -> str:
    """Return a trait's value in short: ``yes``, ``1e+09``, ``0, 1``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def traits_table() -> str:
    """Return the meaning of every trait and its value in the four profiles plans assume."""
    figures = {name: trait_figures(name) for name in FRAMEWORKS}
    rows = []
    for key, meaning in trait_meanings().items():
        section, _, name = key.partition(".")
        values = (_shown(figures[framework][section][name]["value"]) for framework in FRAMEWORKS)
        rows.append((f"`{key}`", meaning, *values))
    return table(("trait", "meaning", *FRAMEWORKS), rows)

"""Formulas of docs/job.md that come from the code: docstrings with the examples they compute."""

import inspect
from collections.abc import Callable, Iterator
from itertools import groupby
from types import ModuleType
from typing import Any

from planner.job import checkpoint, energy, failures, hints, tokens
from tools.formulas import docstring_markdown

TITLES: dict[ModuleType, str] = {
    checkpoint: "Checkpoints",
    failures: "Failures",
    energy: "Energy and carbon",
    tokens: "Input",
    hints: "Batch and learning rate",
}
PROMPT = ">>>"


def _functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The formulas of a module, in its order."""
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            yield name, value


def _is_example(paragraph: str) -> bool:
    return paragraph.startswith(PROMPT)


def _text(docstring: str) -> str:
    """A docstring with its examples set as code."""
    parts = []
    for is_example, group in groupby(docstring.split("\n\n"), key=_is_example):
        text = "\n\n".join(group)
        parts.append(f"```pycon\n{text}\n```" if is_example else docstring_markdown(text))
    return "\n\n".join(parts)


def job_formulas() -> str:
    """Every formula of a job with its worked example, by theme."""
    sections = []
    for module, title in TITLES.items():
        formulas = (
            f"**{name}**: {_text(inspect.getdoc(function) or '')}"
            for name, function in _functions(module)
        )
        sections.append("\n\n".join((f"### {title}", *formulas)))
    return "\n\n".join(sections)

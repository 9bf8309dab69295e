"""Formulas of docs/job.md that come from the code: docstrings with the examples they compute."""

import inspect
from itertools import groupby

from planner.answers import job
from tools.formulas import docstring_markdown

PROMPT = ">>>"


def _is_example(paragraph: str) -> bool:
    return paragraph.startswith(PROMPT)


def _text(docstring: str) -> str:
    """A docstring with its examples set as code."""
    parts = []
    for is_example, group in groupby(docstring.split("\n\n"), key=_is_example):
        text = "\n\n".join(group)
        parts.append(f"```pycon\n{text}\n```" if is_example else docstring_markdown(text))
    return "\n\n".join(parts)


def formulas_of_a_job() -> str:
    """Every formula of a job with its worked example."""
    return "\n\n".join(
        f"**{name}**: {_text(inspect.getdoc(value) or '')}"
        for name, value in vars(job).items()
        if inspect.isfunction(value)
        and value.__module__ == job.__name__
        and not name.startswith("_")
    )

"""Regenerate what in docs/ comes from the program.

``python -m tools.docs`` writes docs/formulas.md, the pictures, the JSON Schemas, and the tables
between ``generated`` markers. ``python -m tools.docs --outputs`` also runs the commands of the
console examples in README.md and docs/ and the cells of the notebook, and puts their present output
in place; an example with a line ``...`` is an excerpt and left alone.
"""

import argparse
import contextlib
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tools import kernel_docs, notebook
from tools.bucket_table import bucket_table
from tools.collective_docs import (
    algorithms_table,
    collective_formulas,
)
from tools.commands import PROMPT, is_ours, run
from tools.formulas import (
    formulas_page,
    penalties_table,
    rules_table,
    sources_tables,
    traits_table,
)
from tools.job_docs import formulas_of_a_job
from tools.limits import accuracy_in_words
from tools.pages import DATA, DOCS, ROOT, filled
from tools.parallelism import PICTURES
from tools.schedules import schedule_pictures, schedules_table
from tools.screen import screen_picture
from tools.time_docs import time_formulas

FITS = DATA / "kernels" / "fits.json"
MARKERS: dict[str, dict[str, Callable[[], str]]] = {
    "schedules.md": {"pictures": schedule_pictures, "table": schedules_table},
    "communication.md": {
        "algorithms": algorithms_table,
        "formulas": collective_formulas,
    },
    "job.md": {"formulas": formulas_of_a_job},
    "time.md": {"formulas": time_formulas},
    "search.md": {"rules": rules_table, "penalties": penalties_table},
    "overlap.md": {"buckets": bucket_table},
    "frameworks.md": {"traits": traits_table, "sources": sources_tables},
    "kernels.md": {
        "efficiency": kernel_docs.efficiency_table,
        "products": partial(kernel_docs.products_table, FITS),
        "training_products": partial(kernel_docs.training_products_table, FITS),
        "experts": partial(kernel_docs.experts_table, FITS),
        "training_attention": partial(kernel_docs.training_attention_table, FITS),
        "attention": partial(kernel_docs.attention_table, FITS),
    },
}
FOR_READERS_IN_A_HURRY = (ROOT / "README.md", ROOT / "skills" / "planner" / "SKILL.md")
FENCE = re.compile(r"^```(\w+)(?: +(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXIT_CODE = "echo $?"
SHOW = "cat "
EXCERPT = "..."


def generated() -> dict[Path, Callable[[], str]]:
    """Every page and picture with a generated part, and what makes it as it should be."""
    makers: dict[Path, Callable[[], str]] = {
        DOCS / "formulas.md": formulas_page,
        DOCS / "screen.svg": screen_picture,
    }
    for name, draw in PICTURES.items():
        makers[DOCS / f"parallelism-{name}.svg"] = draw
    for name, parts in MARKERS.items():
        makers[DOCS / name] = partial(filled, DOCS / name, parts)
    for path in FOR_READERS_IN_A_HURRY:
        makers[path] = partial(filled, path, {"accuracy": accuracy_in_words})
    return makers


@dataclass(kw_only=True)
class Step:
    """A file to write, or a command to run with the exit code its page states."""

    file: str = ""
    text: str = ""
    command: str = ""
    exit_code: int = 0
    output: list[str] = field(default_factory=list)


def _console(text: str) -> list[Step]:
    """Commands of a console block; ``$ echo $?`` states the code of the command before it."""
    steps: list[Step] = []
    for line in text.splitlines():
        if line.startswith(PROMPT):
            steps.append(Step(command=line.removeprefix(PROMPT)))
        elif steps:
            steps[-1].output.append(line)
    for step, check in itertools.pairwise(steps):
        if check.command == EXIT_CODE:
            step.exit_code = int(check.output[0])
    return steps


def steps_of(page: str) -> Iterator[Step]:
    """Files and commands of a page, in order; a block ``yaml NAME`` is a file of that name."""
    for language, name, text in FENCE.findall(page):
        if name:
            yield Step(file=name, text=text)
        elif language == "console":
            yield from _console(text)
        elif language == "sh":
            yield from (Step(command=line) for line in text.splitlines())


def prepare(folder: Path) -> None:
    """Give the commands of a page the files of a checkout that they name."""
    (folder / "tests").symlink_to(ROOT / "tests")


def _refreshed(block: str) -> str:
    """A console block with the present output of its commands."""
    if any(line == EXCERPT for line in block.splitlines()):
        for step in _console(block):
            if is_ours(step.command):
                run(step.command)
        return block
    lines, code = [], 0
    for step in _console(block):
        lines.append(f"{PROMPT}{step.command}")
        if is_ours(step.command):
            code, output = run(step.command)
            lines += [line.rstrip() for line in output.rstrip("\n").splitlines()]
        elif step.command.startswith(SHOW):
            lines += Path(step.command.removeprefix(SHOW)).read_text("utf-8").splitlines()
        else:
            lines += [str(code)] if step.command == EXIT_CODE else step.output
    return "\n".join(lines) + "\n"


def with_outputs(page: str) -> str:
    """The page with fresh console output; its files and commands act in a temporary folder."""

    def fresh(match: re.Match[str]) -> str:
        language, name, text = match.groups()
        if name:
            Path(name).write_text(text, encoding="utf-8")
        elif language == "console":
            return f"```console\n{_refreshed(text)}```"
        elif language == "sh":
            for line in filter(is_ours, text.splitlines()):
                run(line)
        return match[0]

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        prepare(Path(folder))
        return FENCE.sub(fresh, page)


def refresh() -> None:
    """Write every page anew, the console examples on demand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", action="store_true", help="refresh console examples too")
    if parser.parse_args().outputs:
        for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
            old = path.read_text(encoding="utf-8")
            new = with_outputs(old)
            if new != old:
                path.write_text(new, encoding="utf-8")
                print(path.name)
        notebook.refresh()
    for path, text in generated().items():
        path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    refresh()

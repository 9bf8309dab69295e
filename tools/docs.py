"""Regenerate what in docs/ comes from the program, or print what is too long for a page.

``python -m tools.docs`` writes the pictures and the parts of pages between ``generated`` markers.
``python -m tools.docs --outputs`` also runs the commands of the console examples in README.md and
docs/ and the cells of the notebook, and puts their present output in place: all of it, or as many
lines as stood above a last line ``...``. ``python -m tools.docs NAME`` prints a table: formulas,
job, collectives, rules, penalties, traits, format-rules, kernels.
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
from tools.collective_docs import collectives_text
from tools.commands import PROMPT, is_ours, run
from tools.format_rules import decisions_table, rules_in_short, rules_of_formats
from tools.formulas import (
    formulas_in_short,
    formulas_text,
    job_text,
    penalties_table,
    rules_table,
    traits_table,
)
from tools.limits import accuracy_in_words
from tools.pages import DATA, DOCS, ROOT, filled
from tools.parallelism import PICTURES
from tools.schedules import schedule_pictures, schedules_table
from tools.screen import screen_picture

FITS = DATA / "kernels" / "fits.json"
PRINTED: dict[str, Callable[[], str]] = {
    "formulas": formulas_text,
    "job": job_text,
    "collectives": collectives_text,
    "rules": rules_table,
    "penalties": partial(penalties_table, reasons=True),
    "traits": traits_table,
    "format-rules": rules_of_formats,
    "kernels": partial(kernel_docs.every_table, FITS),
}
"""What is printed on demand, by its name on the command line."""
MARKERS: dict[str, dict[str, Callable[[], str]]] = {
    "check.md": {"decisions": decisions_table},
    "search.md": {"penalties": penalties_table},
    "formats/deepspeed.md": rules_in_short("deepspeed"),
    "formats/megatron.md": rules_in_short("megatron", "megatron-swift", "bridge"),
    "formats/torchtitan.md": rules_in_short("torchtitan"),
    "formats/hugging-face.md": rules_in_short(
        "accelerate", "trainer", "llamafactory", "llamafactory-v1", "axolotl", "trl", "ms-swift"
    ),
    "how-it-works/formulas.md": {"formulas": formulas_in_short},
    "how-it-works/kernels.md": {
        "efficiency": kernel_docs.efficiency_table,
        "products": partial(kernel_docs.products_table, FITS),
    },
    "how-it-works/time.md": {"pictures": schedule_pictures, "table": schedules_table},
}
"""Generated parts of pages, in order."""
FOR_READERS_IN_A_HURRY = (ROOT / "README.md", ROOT / "skills" / "planner" / "SKILL.md")
FENCE = re.compile(r"^```(\w+)(?: +(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXIT_CODE = "echo $?"
SHOW = "cat "
EXCERPT = "..."


def generated() -> dict[Path, Callable[[], str]]:
    """Every page and picture with a generated part, and what makes it as it should be."""
    makers: dict[Path, Callable[[], str]] = {
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


def excerpt(output: str, shown: list[str]) -> list[str]:
    """Lines of an output: all, or as many as stand above a last line ``...``."""
    lines = [line.rstrip() for line in output.rstrip("\n").splitlines()]
    if shown[-1:] != [EXCERPT]:
        return lines
    return [*lines[: len(shown) - 1], EXCERPT]


def _refreshed(block: str) -> str:
    """A console block with the present output of its commands."""
    lines, code = [], 0
    for step in _console(block):
        lines.append(f"{PROMPT}{step.command}")
        if is_ours(step.command):
            code, output = run(step.command)
            lines += excerpt(output, step.output)
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


def main() -> None:
    """Print a table, or write every page anew, the console examples on demand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=PRINTED, help="print this instead")
    parser.add_argument("--outputs", action="store_true", help="refresh console examples too")
    asked = parser.parse_args()
    if asked.name:
        print(PRINTED[asked.name]())
        return
    if asked.outputs:
        for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
            old = path.read_text(encoding="utf-8")
            new = with_outputs(old)
            if new != old:
                path.write_text(new, encoding="utf-8")
                print(path.name)
        notebook.refresh()
    for path, text in generated().items():
        path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Rules of the formats of configuration files: in short for their pages, or as a table."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from planner.formats.accelerate import mapping as accelerate
from planner.formats.bridge import mapping as bridge
from planner.formats.decision import Table, nothing
from planner.formats.deepspeed import decisions as deepspeed
from planner.formats.format import DECISIONS, FormatRule
from planner.formats.megatron import mapping as megatron
from planner.formats.registry import format_names, load_format, own_texts
from planner.formats.torchtitan import mapping as torchtitan
from planner.formats.trainer import keys
from planner.formats.trainer import mapping as trainer
from planner.formats.trainer.format import CARRIED
from planner.formats.trainer.megatron import TOOL, spelled
from planner.spec.strategy import FIELDS
from tools.formulas import table

KINDS: dict[str, Callable[[FormatRule], bool]] = {
    "Refused at the start": lambda rule: rule.severity == "error" and rule.enforced,
    "Not refused, and the run fails later or ignores it": lambda rule: (
        rule.severity == "error" and not rule.enforced
    ),
    "Warnings and notes": lambda rule: rule.severity != "error",
}
"""Kinds of rules, in the words of the pages."""


def rules_in_short(*formats: str) -> dict[str, Callable[[], str]]:
    """Generated parts of a page on these formats, by the name of each part."""
    return {f"rules_{name.replace('-', '_')}": partial(_names, name) for name in formats}


def _names(name: str) -> str:
    lines = []
    for title, is_one in KINDS.items():
        found = [f"`{rule.name}`" for rule in load_format(name).rules if is_one(rule)]
        if found:
            lines.append(f"- {title}: {', '.join(found)}.")
    if others := own_texts("not_priced", name):
        named = "; ".join(f"`{key}`: {what}" for key, what in others.items())
        lines.append(f"- Not priced, and named in the answer: {named}.")
    return "\n".join(lines)


def rules_of_formats() -> str:
    """Every rule of every format: what must hold, whether the framework refuses it, source."""
    rows = (
        (
            f"`{name}.{rule.name}`",
            rule.severity,
            " ".join((rule.check.__doc__ or "").split()),
            "yes" if rule.enforced else "no",
            rule.source,
        )
        for name in format_names()
        for rule in load_format(name).rules
    )
    return table(("rule", "severity", "what must hold", "refused at the start", "source"), rows)


def _rows(sections: Iterator[Table]) -> Table:
    return [row for each in sections for row in each]


TABLES: Mapping[str, Table] = {
    "deepspeed": deepspeed.TABLE,
    "megatron": megatron.FILE,
    "megatron-swift": [
        row
        for row in megatron.TABLE
        # Its sequences are as long as packing makes them.
        if {"seq_len", *map(spelled, row.keys)} & {*row.names, *TOOL.keys.split()}
    ],
    "bridge": bridge.TABLE,
    "torchtitan": torchtitan.TABLE,
    "accelerate": _rows(each.table for each in accelerate.SECTIONS),
    "trainer": _rows(each.table for each in trainer.SECTIONS),
    "front ends": _rows(each.table for each in trainer.SECTIONS),
}
"""What each kind of file can say, by its decisions."""


def decisions_table() -> str:
    """What is read, what a repair edits, and what is neither, by kind of file."""
    by_marks: dict[tuple[str, ...], list[str]] = {}
    for name in DECISIONS[1:]:  # the number of GPUs is the launcher's
        marks = tuple(_mark(kind, rows, name) for kind, rows in TABLES.items())
        by_marks.setdefault(marks, []).append(f"`{name}`")
    lines = ((", ".join(names), *marks) for marks, names in by_marks.items())
    return table(("decision", *TABLES), lines)


def _mark(kind: str, rows: Table, name: str) -> str:
    # Its row is that of recomputation, which Megatron-SWIFT has.
    is_missing = kind == "megatron-swift" and name == "offloaded_layers_per_stage"
    own = [] if is_missing else [row for row in rows if name in row.names]
    written = {key for row in own if row.to is not nothing for key in row.keys}
    if kind == "front ends":
        written &= {*CARRIED, keys.STAGE}
    if written and name in FIELDS:
        return "edited"
    return "read" if any(row.of is not nothing for row in own) else "-"

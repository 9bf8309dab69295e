"""Rules of the formats of configuration files: in short for their pages, or as a table."""

from collections.abc import Callable
from functools import partial

from planner.formats.format import FormatRule
from planner.formats.registry import format_names, load_format, own_texts
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

"""Findings: what is to be said about a configuration file, each with its place in the file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Worst first."""
SHOWN = 8
"""Names that a message lists."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing said about a file: by which rule, where, and what is allowed there."""

    rule: str
    """Dotted name, such as ``megatron.tp_divides_heads`` or ``memory.fits``."""
    severity: Severity
    message: str
    """What is wrong, what was given, what is allowed."""
    path: str
    key: str = ""
    """As the file spells it: ``zero_optimization.stage``, ``--tensor-model-parallel-size``."""
    line: int = 0
    """From 1; 0: the file as a whole."""

    @property
    def kind(self) -> str:
        """The rule's name without the format it is of: ``unknown_key``, ``bad_value``."""
        return self.rule.rpartition(".")[2]

    def __str__(self) -> str:
        """Render as ``file:line::key: message``."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}::{self.key}: {self.message}" if self.key else f"{place}: {self.message}"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{rest}"

"""Figures of a machine that is stated whole, and the sections of a cluster file they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.calibrate.measured import Measured

DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A figure in the unit of its key, and where it stands in the cluster file."""

    path: tuple[str | int, ...]
    value: float | tuple[float, ...]
    deviation: float = 0.0
    """Relative."""
    num_points: int = 0
    """0: read from the system, or follows from others."""
    note: str = ""

    @property
    def key(self) -> str:
        """The path as people write it."""
        return ".".join(str(step) for step in self.path[1:])

    def figure(self, source: str) -> dict[str, Any]:
        """As a figure of hwdb."""
        is_assumed = self.note.startswith("assumed")
        points = f"{self.num_points} point{'s' * (self.num_points > 1)}"
        spread = f"+- {self.deviation:.1%}, {points}" if self.num_points else ""
        values = [round_to(each) for each in _tuple(self.value)]
        note = "; ".join(text for text in (spread, self.note) if text)
        return {
            "value": values if isinstance(self.value, tuple) else values[0],
            "basis": "assumed" if is_assumed else "measured",
            "source": source,
            **({"note": note} if note else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Value:
    """A figure that is to be given its place: one number, and how sure it is."""

    value: float
    deviation: float = 0.0
    num_points: int = 0
    note: str = ""

    def at(self, *path: str | int) -> Stated:
        """The figure at its place."""
        return Stated(
            path=path,
            value=self.value,
            deviation=self.deviation,
            num_points=self.num_points,
            note=self.note,
        )


def _tuple(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def round_to(value: float) -> float | int:
    """A value with few digits; a whole number stays one."""
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def median_of(rows: Sequence[Measured]) -> float:
    """Seconds, of rows that measured the same."""
    return float(np.median([row.time_s for row in rows]))


def sections(figures: Sequence[Stated], source: str) -> dict[str, Any]:
    """The figures as nested mappings; a step that is a number is a place in a list."""
    root: dict[str, Any] = {}
    for each in figures:
        section: Any = root
        for step, following in zip(each.path, each.path[1:], strict=False):
            empty: Any = [] if isinstance(following, int) else {}
            if isinstance(section, list) and isinstance(step, int):
                while len(section) <= step:
                    section.append({})
                section = section[step]
            else:
                section = section.setdefault(step, empty)
        is_plain = each.path[-1] == "num_ranks"
        section[each.path[-1]] = each.value if is_plain else each.figure(source)
    return root

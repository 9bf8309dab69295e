"""The constants that published runs helped to choose: where each stands, and how free it is.

They live in hwdb and in the frameworks' traits; ``constants.yaml`` lists them with what was
believed before the fit (prior and plausible range) and why. ``planner validate
--cross-validate`` fits them on half of the runs and scores the other half.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import TypeVar

from planner.cost.context import Context
from planner.documents.yaml_text import load_data

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One fitted figure of a Context."""

    name: str
    path: str
    """Dotted field of Context."""
    where: Mapping[str, tuple[str, ...]]
    """It applies to contexts whose fields have one of these values."""
    prior: float
    low: float
    high: float
    source: str
    """Of prior and range, not of the fit."""

    @property
    def sigma(self) -> float:
        """Standard deviation of the prior: the range is two of them to either side."""
        return (self.high - self.low) / 4.0

    def applies(self, context: Context) -> bool:
        """Whether the context has this constant."""
        return all(str(get(context, path)) in allowed for path, allowed in self.where.items())

    def value(self, context: Context) -> float:
        """The figure in force."""
        figure = get(context, self.path)
        assert isinstance(figure, (int, float)), self.path
        return float(figure)

    def set(self, context: Context, value: float) -> Context:
        """Return the context with another figure; unchanged where the constant does not apply."""
        if not self.applies(context):
            return context
        return _put(context, self.path.split("."), value)


def get(record: object, path: str) -> object:
    """Follow a dotted path through nested dataclasses."""
    return reduce(getattr, path.split("."), record)


def _put(record: T, path: list[str], value: float) -> T:
    name, *rest = path
    inner = _put(getattr(record, name), rest, value) if rest else value
    return replace(record, **{name: inner})  # type: ignore[type-var]


@cache
def load_constants() -> tuple[Constant, ...]:
    """Return the list of constants.yaml."""
    return tuple(
        Constant(
            name=name,
            path=entry["path"],
            where={path: tuple(map(str, values)) for path, values in entry["where"].items()},
            prior=float(entry["prior"]),
            low=float(entry["range"][0]),
            high=float(entry["range"][1]),
            source=entry["source"],
        )
        for name, entry in load_data(__package__, "constants.yaml").items()
    )

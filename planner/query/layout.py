"""One layout, as options give it where nothing is searched."""

from typing import Any, Literal

from planner.errors import InputError
from planner.limits import brief
from planner.notes import COMMAND_LINE, Problems
from planner.query.options import OPTIONS
from planner.query.query import Query
from planner.spec.strategy import STRATEGY_FIELDS

OF_LAYOUT = tuple(name for name, option in OPTIONS.items() if option.of == "layout")


def one_layout(query: Query, problems: Problems) -> dict[str, Any]:
    """Return the values that the options of the layout give, by name; one of each."""
    found: dict[str, Any] = {}
    for name in OF_LAYOUT:
        said = query.get(name)
        if said is None or said == ():
            continue
        text = ",".join(said) if isinstance(said, tuple) else said
        if name not in STRATEGY_FIELDS or STRATEGY_FIELDS[name].value_type is not int:
            found[name] = text
        else:
            value = problems.parsed(OPTIONS[name].flag, text, _whole)
            found |= {} if value is None else {name: value}
    return found


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be one whole number here; given {brief(text)}") from None


def without_layout(query: Query) -> Query:
    """Return the question with its layout left open."""
    return query.with_(**dict.fromkeys(OF_LAYOUT))


def read_layers(text: str | None) -> tuple[int, ...] | None:
    """Read layers of every stage from ``10,11,11,10``."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"needs one whole number per stage, such as 10,11,11,10; given {brief(text)}"
        raise InputError.single(COMMAND_LINE, "--layers-per-stage", message) from None


def parse_offloaded_layers(text: str) -> int | Literal["all"]:
    """Read layers per stage whose activations are offloaded, from ``12`` or ``all``."""
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        message = f"must be all, or a whole number of layers per stage; given {brief(text)}"
        raise ValueError(message) from None

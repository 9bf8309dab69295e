"""Construction of document rows: by hand, from a dataclass, or from an answer's properties.

Docstrings of fields are their descriptions in JSON Schemas.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform, get_type_hints

from planner.spec.strategy import FIELDS, LayoutFields

Made = TypeVar("Made")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Row:
    """An object of a document: a dataclass of its fields, frozen, made by keyword."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    # The name is pydantic's, which makes schemas of rows.
    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        """Every kind of row is such a dataclass."""
        dataclass(frozen=True, kw_only=True)(cls)


def row_of(
    more: Mapping[str, Any] = MappingProxyType({}),
    *,
    derived: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    about: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[type[Made]], type[Made]]:
    """Make of a class derived from a dataclass a row: its public fields, properties, and more.

    Decisions of a layout have their words, other fields what ``about`` says of them.
    """

    def made(stated: type[Made]) -> type[Made]:
        like = stated.__bases__[0]
        every = {**get_type_hints(like), **more}
        names = [each.name for each in fields(like) if not each.name.startswith("_")]
        left_out = (*leave_out, *more)
        known = {name: _property(like, name) for name in derived}
        for name in (*(name for name in names if name not in left_out), *more):
            hint, words = every[name], about.get(name, "")
            if issubclass(like, LayoutFields) and name not in more:
                decision = FIELDS[name]
                words = decision.about
                hint = decision.value_type if isinstance(hint, TypeVar) else hint
                # Literal of values known at run time only.
                hint = Literal.__getitem__(tuple(decision.words)) if decision.words else hint
            known[name] = hint, field(metadata={"description": words} if words else {})
        return _made(stated, stated.__name__, Row, known)

    return made


def _made(
    stated: type[Made],
    name: str,
    base: type,
    known: Mapping[str, tuple[Any, Any]],
) -> type[Made]:
    """The stated class made anew, with these hints and fields of a dataclass."""
    parts: dict[str, Any] = {key: own for key, (_, own) in known.items()}
    parts |= {"__doc__": stated.__doc__, "__module__": stated.__module__}
    hints = {key: hint for key, (hint, _) in known.items()}
    made: type[Made] = type(name, (base,), {**parts, "__annotations__": hints})
    return made


def _property(kind: type, name: str) -> tuple[Any, Any]:
    """A property as a field of a row, its docstring as the description."""
    found = getattr(kind, name)
    getter = getattr(found, "fget", None) or found.func
    return get_type_hints(getter)["return"], field(metadata={"description": getter.__doc__})


def property_row(
    kind: type, *, leave_out: Sequence[str] = ()
) -> Callable[[type[Made]], type[Made]]:
    """Make of a row one with what an answer's public properties state, under their names."""
    known = {
        name: _property(kind, name)
        for name, each in vars(kind).items()
        if isinstance(each, property | cached_property)
        and not name.startswith("_")
        and name not in leave_out
    }
    return lambda stated: _made(stated, f"{kind.__name__}Row", stated, known)


def row_from(row: type[Made], answer: object, **more: object) -> Made:
    """An answer's figures as its row holds them, and ``more``."""
    return row(**field_values(row, answer) | more)


def field_values(row: type, answer: object) -> dict[str, Any]:
    """Return the values an answer has for a row's fields, by name."""
    names = [each.name for each in fields(row)]
    return {name: getattr(answer, name) for name in names if hasattr(answer, name)}

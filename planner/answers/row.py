"""Construction of document rows: by hand, from a dataclass, or from an answer's properties.

Docstrings of fields are their descriptions in JSON Schemas.
"""

from collections.abc import Mapping, Sequence
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
    name: str,
    like: type,
    more: Mapping[str, Any] = MappingProxyType({}),
    *,
    derived: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    about: Mapping[str, str] = MappingProxyType({}),
) -> Any:  # noqa: ANN401 - a type made here
    """A row with the public fields of a dataclass, properties derived from them, and more.

    Decisions of a layout have their words, other fields what ``about`` says of them.
    """
    hints = get_type_hints(like)
    made = [_property(like, each) for each in derived]
    for each in fields(like):
        if each.name.startswith("_") or each.name in (*leave_out, *more):
            continue
        hint = hints[each.name]
        words = about.get(each.name, "")
        if issubclass(like, LayoutFields):
            decision = FIELDS[each.name]
            words = decision.about
            hint = decision.value_type if isinstance(hint, TypeVar) else hint
            # Literal of values known at run time only.
            hint = Literal.__getitem__(tuple(decision.words)) if decision.words else hint
        described = {"description": words} if words else {}
        made.append((each.name, hint, field(metadata=described)))
    for key, hint in more.items():
        described = {"description": about[key]} if key in about else {}
        made.append((key, hint, field(metadata=described)))
    return _made(name, Row, made)


def _made(name: str, base: type, fields: Sequence[tuple[str, Any, Any]]) -> type:
    hints = {key: hint for key, hint, _ in fields}
    defaults = {key: own for key, _, own in fields}
    return type(name, (base,), {"__annotations__": hints, **defaults})


def _property(kind: type, name: str) -> tuple[str, Any, Any]:
    """A property as a field of a row, its docstring as the description."""
    found = getattr(kind, name)
    getter = getattr(found, "fget", None) or found.func
    hint = get_type_hints(getter)["return"]
    return name, hint, field(metadata={"description": getter.__doc__})


def property_row(kind: type, base: type = Row, *, leave_out: Sequence[str] = ()) -> Any:  # noqa: ANN401 - a type made here
    """The row of what an answer's public properties state, under their names."""
    made = []
    for name, each in vars(kind).items():
        is_public = not name.startswith("_") and name not in leave_out
        if is_public and isinstance(each, property | cached_property):
            made.append(_property(kind, name))
    return _made(f"{kind.__name__}Row", base, made)


def row_from(row: type[Made], answer: object, **more: object) -> Made:
    """An answer's figures as its row holds them, and ``more``."""
    return row(**field_values(row, answer) | more)


def field_values(row: type, answer: object) -> dict[str, Any]:
    """Return the values an answer has for a row's fields, by name."""
    names = [each.name for each in fields(row)]
    return {name: getattr(answer, name) for name in names if hasattr(answer, name)}

"""How rows of documents are made: by hand, of a dataclass, or of an answer's properties.

Docstrings of fields are their descriptions in JSON Schemas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from planner.spec.strategy import FieldSpec


@dataclass(frozen=True, kw_only=True)
class Row:
    """An object of a document."""

    # The name is pydantic's, which makes schemas of rows.
    __pydantic_config__ = {"use_attribute_docstrings": True}  # noqa: RUF012


def row_of(
    name: str,
    like: type,
    more: Mapping[str, Any] = MappingProxyType({}),
    *,
    leave_out: Sequence[str] = (),
) -> Any:  # noqa: ANN401 - a type made here
    """A row with the fields of a dataclass, and more; decisions of a layout with their words."""
    hints = get_type_hints(like, include_extras=True)
    made: list[Any] = []
    for each in (each for each in fields(like) if each.name not in leave_out):
        hint, about = hints[each.name], ""
        for decision in getattr(hint, "__metadata__", ()):
            if isinstance(decision, FieldSpec):
                hint, about = get_args(hint)[0], decision.about
                hint = decision.value_type if isinstance(hint, TypeVar) else hint
                # Literal of values known at run time only.
                hint = Literal.__getitem__(tuple(decision.words)) if decision.words else hint
        made.append((each.name, hint, field(metadata={"description": about} if about else {})))
    made += [(key, hint, field()) for key, hint in more.items()]
    return make_dataclass(name, made, frozen=True, kw_only=True)


def told_by(kind: type, base: type = Row, *, leave_out: Sequence[str] = ()) -> Any:  # noqa: ANN401 - a type made here
    """The row of what an answer's public properties state, under their names."""
    made: list[Any] = []
    for name, each in vars(kind).items():
        getter = getattr(each, "fget", None) or getattr(each, "func", None)
        if getter is not None and not name.startswith("_") and name not in leave_out:
            about = field(metadata={"description": getter.__doc__})
            made.append((name, get_type_hints(getter)["return"], about))
    return make_dataclass(f"{kind.__name__}Row", made, bases=(base,), frozen=True, kw_only=True)


def told(row: type, answer: object, **more: object) -> Any:  # noqa: ANN401 - a row of the class
    """An answer's figures as its row holds them, and ``more``."""
    known = [each.name for each in fields(row) if each.name not in more]
    return row(**{name: getattr(answer, name) for name in known}, **more)

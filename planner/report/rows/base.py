"""What rows of JSON documents are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema
from typing_extensions import TypedDict

from planner.spec.strategy import FieldSpec

# Docstrings of fields are their descriptions in the schema; other fields are refused.
CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Row(TypedDict):
    """An object of a document."""

    __pydantic_config__ = CONFIG  # type: ignore[misc]


# Compared by identity, as annotations in unions must be hashable and mappings are not.
@dataclass(frozen=True, eq=False)
class FieldsOf:
    """An object with the fields of a dataclass, as ``asdict`` makes them, and more."""

    name: str
    like: type
    without: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 - the annotation that this stands behind
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """The schema of the object in place of that of a mapping."""
        hints = get_type_hints(self.like, include_extras=True)
        made: dict[str, Any] = {
            each.name: _field(hints[each.name])
            for each in fields(self.like)
            if each.name not in self.without
        }
        made |= {key: (hint, ...) for key, hint in self.more.items()}
        return handler(create_model(self.name, __config__=CONFIG, **made))


def _field(hint: Any) -> tuple[Any, Any]:  # noqa: ANN401 - any annotation
    """Type and description of a field; of a decision of a layout, as the decision says them."""
    for each in getattr(hint, "__metadata__", ()):
        if isinstance(each, FieldSpec):
            plain = get_args(hint)[0]
            value = each.value_type if isinstance(plain, TypeVar) else plain
            # Literal of values known at run time only.
            words = Literal.__getitem__(tuple(each.words)) if each.words else value
            return words, Field(description=each.about)
    return hint, ...

"""Edits of a JSON text with comments: what is not edited stays as it was written."""

import json
import re
from collections.abc import Mapping

from planner.documents.edit import Editor, Pair, Splice
from planner.documents.json_nodes import Plain
from planner.documents.nodes import Node
from planner.documents.tree import Tree, parsed_object

STEP = "  "
_LINE_END = re.compile(r"[ \t]*(\r?\n)")


def json_text(value: Plain, indent: str = "", newline: str = "\n") -> str:
    """Write a value: one member of an object to a line, arrays on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    inner = indent + STEP
    lines = (f"{inner}{json.dumps(k)}: {json_text(v, inner, newline)}" for k, v in value.items())
    return "{" + newline + f",{newline}".join(lines) + newline + indent + "}"


def written(values: Mapping[str, Plain]) -> str:
    """A new text that holds values by their keys, of which those with dots are in objects."""
    root: dict[str, Plain] = {}
    for key, value in values.items():
        *above, name = key.split(".")
        place = root
        for each in above:
            place = place.setdefault(each, {})
        place[name] = value
    return json_text(root) + "\n"


def edited(where: str, text: str, changes: Mapping[tuple[str, ...], Plain]) -> str:
    """The text of an object with changes (:meth:`Editor.changed`); raises InputError.

    What is no object on the way to a key is replaced by one.
    """
    return _JsonEditor(where, text).changed(changes.items())


class _JsonEditor(Editor):
    def read(self) -> Tree:
        return parsed_object(self.where, self.text)

    def written(self, value: Plain, indent: str | None = None) -> str:
        return json.dumps(value) if indent is None else json_text(value, indent, self.newline)

    def without(self, mapping: Node, pair: Pair) -> list[Splice]:
        """Take out a member, its comma, and its line if nothing else is on it."""
        key, item = pair
        index, comma = mapping.pairs.index(pair), self.comma_behind(item)
        start, end = key.start, item.end
        if comma >= 0 and not self.text[end:comma].strip(" \t"):
            end = comma + 1
        indent, line_end = self.indent_of(start), _LINE_END.match(self.text, end)
        if indent is not None and line_end:
            start, end = start - len(indent), line_end.end()
        if comma < 0 and index:
            comma = self.comma_behind(mapping.pairs[index - 1][1])
        is_apart = comma >= 0 and not start <= comma < end
        return [(start, end, ""), *[(comma, comma + 1, "")] * is_apart]

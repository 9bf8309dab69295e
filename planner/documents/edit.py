"""Edits of JSON and YAML in place: what no change names stays as it was written."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from planner.documents.file import REMOVED
from planner.documents.nodes import SPACE, Node, Path, Plain
from planner.documents.tree import Tree, parsed_object, parsed_yaml
from planner.errors import InputError

# Where a piece of a text begins and ends, and what stands there instead.
Splice = tuple[int, int, str]
Pair = tuple[Node, Node]
_LINE_END = re.compile(r"[ \t]*(\r?\n)")
_REST_OF_LINE = re.compile(r"[ \t]*(?:(?://|#)[^\r\n]*|(?:/\*[^\r\n]*?\*/[ \t]*)?)(?=\r?\n)")


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """The text with all splices; where they overlap the result is read as something else."""
    parts, at = [], 0
    for start, end, new in sorted(splices, key=lambda splice: splice[:2]):
        parts += [text[at : max(start, at)], new]
        at = max(at, end)
    return "".join([*parts, text[at:]])


def nested(path: Path, value: object) -> object:
    """A value in mappings with these keys."""
    for key in reversed(path):
        value = {key: value}
    return value


class Editor(ABC):
    """A text as it is read, and splices for mappings in braces, which JSON and YAML share."""

    def __init__(self, where: str, text: str) -> None:
        self.where, self.text = where, text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.tree = self.read()

    @abstractmethod
    def read(self) -> Tree:
        """The values of the text; raises InputError."""

    @abstractmethod
    def written(self, value: object, indent: str | None = None) -> str:
        """A value as text; ``indent``: of its line, where its key begins one."""

    @abstractmethod
    def without(self, mapping: Node, pair: Pair) -> list[Splice]:
        """Take a pair out of a mapping."""

    def opened(
        self,
        pair: Pair | None,
        above: Path,
        path: Path,
        value: object,
    ) -> Splice:
        """Put a path where no mapping stands; InputError where what stands there must stay."""
        assert pair, f"{above} is the whole text, a mapping"
        return self.replaced(pair, nested(path, value))

    def replaced(self, pair: Pair, value: object) -> Splice:
        """Put a value where another stands."""
        key, item = pair
        return item.start, item.end, self.written(value, self.indent_of(key.start))

    def added(self, mapping: Node, path: Path, value: object) -> list[Splice]:
        """A pair behind the last one, on a line of its own where the first has one."""
        key, value = f"{self.written(path[0])}: ", nested(path[1:], value)
        if not mapping.pairs:
            at = self.text.index("{", mapping.start) + 1
            return [(at, at, key + self.written(value))]
        (first, _), (_, last) = mapping.pairs[0], mapping.pairs[-1]
        indent = self.indent_of(first.start)
        comma = self.comma_behind(last)
        end, sign = (comma + 1, "") if comma >= 0 else (last.end, ",")
        if indent is None:
            return [(end, end, f"{sign} {key}{self.written(value)}")]
        rest = _REST_OF_LINE.match(self.text, end)
        until = rest.end() if rest else end
        return [
            (end, end, sign),
            (until, until, f"{self.newline}{indent}{key}{self.written(value, indent)}"),
        ]

    def indent_of(self, position: int) -> str | None:
        """White space before the position, where nothing else stands before it on its line."""
        start = self.text.rfind("\n", 0, position) + 1
        before = self.text[start:position]
        return before if start and not before.strip(" \t") else None

    def comma_behind(self, node: Node) -> int:
        """Return the position of the comma after a value; -1 if there is none."""
        space = SPACE.match(self.text, node.end)
        at = space.end() if space else node.end
        return at if self.text.startswith(",", at) else -1

    def changed(self, changes: Mapping[tuple[str, ...], Any]) -> str:
        """The text with values set or (REMOVED) taken out, in order; all else stays as it is.

        Mappings that are missing are made. Of duplicate keys the last is set, and all are taken
        out. InputError where a change cannot be made without touching what it does not name.
        """
        now = self
        for path, value in changes.items():
            while not now._has(path, value):
                after = type(self)(self.where, spliced(now.text, now._splices(path, value)))
                now._check(after, path, value)
                now = after
        return now.text

    def _has(self, path: Path, value: object) -> bool:
        entry = self.tree.entries.get(path)
        if value is REMOVED or entry is None:
            return value is REMOVED and entry is None
        return type(entry.value) is type(value) and bool(entry.value == value)

    def _splices(self, path: Path, value: object) -> list[Splice]:
        """One change to the text, wherever that leads."""
        node, pair = self.tree.root, None
        for depth, name in enumerate(path):
            if node is None or node.kind != "mapping":
                return [self.opened(pair, path[:depth], path[depth:], value)]
            pair = node.find(str(name))
            if pair is None:
                return [] if value is REMOVED else self.added(node, path[depth:], value)
            if depth == len(path) - 1 and value is REMOVED:
                return self.without(node, pair)
            node = pair[1]
        return [self.replaced(pair, value)] if pair else []

    def _check(self, after: "Editor", path: Path, value: object) -> None:
        """Raise InputError where more than the path changed, or nothing did."""
        is_fewer = len(after.tree.duplicates) < len(self.tree.duplicates)
        is_done = (value is REMOVED and is_fewer) or after._has(path, value)
        if not is_done or self._others(path) != after._others(path):
            given = "be taken out" if value is REMOVED else f"be set to {value!r}"
            message = f"cannot {given} in place: anchors, tags or merge keys stand in the way"
            raise InputError.single(self.where, ".".join(map(str, path)), message)

    def _others(self, path: Path) -> dict[Path, str]:
        """All values but those in a path and those that hold it."""
        return {
            other: repr(entry.value)
            for other, entry in self.tree.members.items()
            if other[: len(path)] != path and path[: len(other)] != other
        }


def json_text(value: Plain, indent: str = "", newline: str = "\n") -> str:
    """Write a value: one member of an object to a line, arrays on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    inner = f"{indent}  "
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


class JsonEditor(Editor):
    """The text of an object; what is no object on the way to a key is replaced by one."""

    def read(self) -> Tree:
        """The values; InputError where the text is no object."""
        return parsed_object(self.where, self.text)

    def written(self, value: Plain, indent: str | None = None) -> str:
        """A value as JSON, with ``indent`` a member to a line."""
        return json.dumps(value) if indent is None else json_text(value, indent, self.newline)

    def without(self, mapping: Node, pair: Pair) -> list[Splice]:
        """Take out a member, its comma, and its line if nothing else is on it."""
        key, item = pair
        index, comma = mapping.pairs.index(pair), self.comma_behind(item)
        start, end = key.start, item.end
        if comma >= 0 and not self.text[end:comma].strip(" \t"):
            end = comma + 1
        indent = self.indent_of(start)
        line_end = _LINE_END.match(self.text, end)
        if indent is not None and line_end:
            start, end = start - len(indent), line_end.end()
        if comma < 0 and index:
            comma = self.comma_behind(mapping.pairs[index - 1][1])
        taken_out = [(start, end, "")]
        if comma >= 0 and not start <= comma < end:
            taken_out.append((comma, comma + 1, ""))
        return taken_out


class YamlEditor(Editor):
    """A text of YAML; null is replaced by a mapping on the way to a key, other values are not."""

    def read(self) -> Tree:
        """The values; InputError where the text is no YAML."""
        return parsed_yaml(self.where, self.text)

    def written(self, value: object, indent: str | None = None) -> str:  # noqa: ARG002 - JSON's
        """A value on one line."""
        dumped = yaml.safe_dump([value], default_flow_style=True, width=10**9, sort_keys=False)
        return str(dumped).strip()[1:-1]

    def opened(self, pair: Pair | None, above: Path, path: Path, value: object) -> Splice:
        """A mapping in the place of null, or behind a text without values."""
        node = pair[1] if pair else self.tree.root
        if node and (node.kind != "scalar" or node.value is not None or node.is_anchored):
            place, key = f"{self.where}:{node.line}", ".".join(map(str, above))
            raise InputError.single(place, key, "is no mapping")
        if pair is None:
            return self._lines(len(self.text), 0, path, value)
        return super().opened(pair, above, path, value)

    def replaced(self, pair: Pair, value: object) -> Splice:
        """A value, on one line, in the place of another with all its lines."""
        key, item = pair
        start, end, new = item.start, _end(item), self.written(value)
        if item.kind == "scalar":
            return start, end, " " * (start == end) + new + self.newline * item.is_block
        if item.is_block:
            return self.text.index(":", key.end) + 1, end, f" {new}"
        return start, end, new

    def added(self, mapping: Node, path: Path, value: object) -> list[Splice]:
        """A pair behind the last one, in a block on a line of its own."""
        if not mapping.is_block:
            return super().added(mapping, path, value)
        line_end, (first, _) = self._line_end(_end(mapping)), mapping.pairs[0]
        return [self._lines(line_end, first.column, path, value)]

    def without(self, mapping: Node, pair: Pair) -> list[Splice]:
        """Take out a pair, in a block with its lines."""
        key, item = pair
        start, end = key.start, _end(item)
        index = mapping.pairs.index(pair)
        if mapping.is_block:
            line = start - key.column
            start = start if self.text[line:start].strip() else line
            end = self._line_end(max(end, key.end))
        elif index:
            start = _end(mapping.pairs[index - 1][1])
        elif len(mapping.pairs) > 1:
            end = mapping.pairs[1][0].start
        return [(start, end, "")]

    def _line_end(self, position: int) -> int:
        """Return the start of the first line from ``position`` on, or the text's end."""
        found = self.text.find("\n", max(position - 1, 0))
        return len(self.text) if found < 0 else found + 1

    def _lines(self, position: int, column: int, path: Path, value: object) -> Splice:
        """A key to a line; ``position`` is the start of a line or the end of the text."""
        lines = [f"{' ' * (column + 2 * i)}{self.written(name)}:" for i, name in enumerate(path)]
        block = f"{self.newline.join(lines)} {self.written(value)}"
        is_start = position == 0 or self.text[position - 1] == "\n"
        return position, position, block + self.newline if is_start else self.newline + block


def _end(node: Node) -> int:
    """Behind the last character of a node, without the comments that follow it."""
    inner = [*node.items, *(item for _, item in node.pairs)]
    return _end(inner[-1]) if inner and node.is_block else node.end

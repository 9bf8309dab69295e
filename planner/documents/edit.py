"""Edits of a document in place: what no change names stays as it was written."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from planner.documents.file import REMOVED
from planner.documents.json_nodes import SPACE
from planner.documents.nodes import Node, Path
from planner.documents.tree import Tree
from planner.errors import InputError

# Where a piece of a text begins and ends, and what stands there instead.
Splice = tuple[int, int, str]
Pair = tuple[Node, Node]
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

    def opened(self, pair: Pair | None, above: Path, path: Path, value: object) -> Splice:
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
        last, indent = mapping.pairs[-1][1], self.indent_of(mapping.pairs[0][0].start)
        comma = self.comma_behind(last)
        end, sign = (last.end, ",") if comma < 0 else (comma + 1, "")
        if indent is None:
            return [(end, end, f"{sign} {key}{self.written(value)}")]
        rest = _REST_OF_LINE.match(self.text, end)
        until = rest.end() if rest else end
        line = f"{self.newline}{indent}{key}{self.written(value, indent)}"
        return [(end, end, sign), (until, until, line)]

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

    def changed(self, changes: Iterable[tuple[Path, Any]]) -> str:
        """The text with values set or (REMOVED) taken out, in order; all else stays as it is.

        Mappings that are missing are made. Of duplicate keys the last is set, and all are taken
        out. InputError where a change cannot be made without touching what it does not name.
        """
        now = self
        for path, value in changes:
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
            key = ".".join(map(str, path))
            given = "be taken out" if value is REMOVED else f"be set to {value!r}"
            message = f"cannot {given} in place: anchors, tags or merge keys stand in the way"
            raise InputError.single(self.where, key, message)

    def _others(self, path: Path) -> dict[Path, str]:
        """All values but those in a path and those that hold it."""
        return {
            other: repr(entry.value)
            for other, entry in self.tree.members.items()
            if other[: len(path)] != path and path[: len(other)] != other
        }

"""Changes of a YAML text that leave the rest as it was written."""

from collections.abc import Mapping
from typing import Any

import yaml

from planner.documents.edit import Editor, Pair, Splice
from planner.documents.nodes import Node, Path
from planner.documents.tree import Tree, parsed_yaml
from planner.errors import InputError


def edited(where: str, text: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """The text with changes (:meth:`Editor.changed`); raises InputError.

    Null is replaced by a mapping on the way to a key, other values are not.
    """
    return _YamlEditor(where, text).changed(changes.items())


class _YamlEditor(Editor):
    def read(self) -> Tree:
        return parsed_yaml(self.where, self.text)

    def written(self, value: object, indent: str | None = None) -> str:  # noqa: ARG002 - JSON's
        dumped: str = yaml.safe_dump([value], default_flow_style=True, width=10**9, sort_keys=False)
        return dumped.strip()[1:-1]

    def opened(self, pair: Pair | None, above: Path, path: Path, value: object) -> Splice:
        node = pair[1] if pair else self.tree.root
        if node and (node.kind != "scalar" or node.value is not None or node.is_anchored):
            place, key = f"{self.where}:{node.line}", ".".join(map(str, above))
            raise InputError.single(place, key, "is no mapping")
        if pair is None:
            return self._lines(len(self.text), 0, path, value)
        return super().opened(pair, above, path, value)

    def replaced(self, pair: Pair, value: object) -> Splice:
        key, item = pair
        start, end, new = item.start, _end(item), self.written(value)
        if item.kind == "scalar":
            new = f" {new}" if start == end else new
            new += self.newline if item.is_block else ""
        elif item.is_block:
            start, new = self.text.index(":", key.end) + 1, f" {new}"
        return start, end, new

    def added(self, mapping: Node, path: Path, value: object) -> list[Splice]:
        if not mapping.is_block:
            return super().added(mapping, path, value)
        line_end = self._line_end(_end(mapping))
        return [self._lines(line_end, mapping.pairs[0][0].column, path, value)]

    def without(self, mapping: Node, pair: Pair) -> list[Splice]:
        key, item = pair
        start, end, index = key.start, _end(item), mapping.pairs.index(pair)
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
        new = f"{block}{self.newline}" if is_start else f"{self.newline}{block}"
        return position, position, new


def _end(node: Node) -> int:
    """Behind the last character of a node, without the comments that follow it."""
    inner = [*node.items, *(item for _, item in node.pairs)]
    return _end(inner[-1]) if inner and node.is_block else node.end

"""Changes of a YAML text that leave the rest as it was written."""

from collections.abc import Mapping
from typing import Any

import yaml

from planner.documents.file import REMOVED
from planner.documents.nodes import BREAK, Node, Path
from planner.documents.tree import Tree, parsed_yaml
from planner.errors import InputError

# Where a piece of a text begins and ends, and what stands there instead.
Splice = tuple[int, int, str]
_NOTHING: Splice = (0, 0, "")


def edited(where: str, text: str, changes: Mapping[Path, Any]) -> str:
    """Return the text with values set or (REMOVED) taken out, in order; all else stays as it is.

    A value replaces the old one where that stands; a new key follows the last one of its mapping,
    and mappings that are missing are made. Paths are of mappings. InputError where the text cannot
    be read, or a change cannot be made without touching what it does not name.
    """
    now = parsed_yaml(where, text)
    for path, value in changes.items():
        while not _is_done(now, path, value):
            start, end, new = _with(where, text, now.root, path, value)
            text = text[:start] + new + text[end:]
            now = _checked(where, now, text, path, value)
    return text


def _is_done(text: Tree, path: Path, value: object) -> bool:
    entry = text.entries.get(path)
    if value is REMOVED or entry is None:
        return value is REMOVED and entry is None
    return type(entry.value) is type(value) and bool(entry.value == value)


def _checked(where: str, before: Tree, text: str, path: Path, value: object) -> Tree:
    """Read the changed text; InputError where more than the path changed, or nothing did."""
    now = parsed_yaml(where, text)
    again = value is REMOVED and len(now.duplicates) < len(before.duplicates)
    is_done = again or _is_done(now, path, value)
    if not is_done or _others(before, path) != _others(now, path):
        key = ".".join(map(str, path))
        given = "be taken out" if value is REMOVED else f"be set to {value!r}"
        message = f"cannot {given} in place: anchors, tags or merge keys stand in the way"
        raise InputError.single(where, key, message)
    return now


def _others(text: Tree, path: Path) -> dict[Path, str]:
    """Everything but a path, what it holds and what holds it."""
    return {
        other: repr(entry.value)
        for other, entry in text.entries.items()
        if other[: len(path)] != path and path[: len(other)] != other
    }


def _with(where: str, text: str, root: Node | None, path: Path, value: object) -> Splice:
    """One change to the text, wherever that leads."""
    parent = root
    for depth, name in enumerate(path):
        is_null = parent is not None and parent.kind == "scalar" and parent.value is None
        if parent is None or (is_null and not parent.is_anchored):
            if value is REMOVED:
                return _NOTHING
            # a mapping is made where there is nothing, or null
            is_empty = parent is None or parent.start == parent.end
            if parent is None or (depth == 0 and is_empty):
                return _inserted(text, len(text), _block_lines(path[depth:], value, 0))
            space = " " if is_empty else ""
            made = f"{space}{{{_flow_pair(path[depth:], value)}}}"
            return parent.start, parent.end, made
        if parent.kind != "mapping":
            raise InputError.single(
                f"{where}:{parent.line}", ".".join(map(str, path[:depth])), "is no mapping"
            )
        pair = parent.find(str(name))
        if pair is None:
            return _NOTHING if value is REMOVED else _added(text, parent, path[depth:], value)
        if depth == len(path) - 1:
            return _without(text, parent, pair) if value is REMOVED else _set(text, pair, value)
        parent = pair[1]
    return _NOTHING


def _flow(value: object) -> str:
    dumped: str = yaml.safe_dump([value], default_flow_style=True, width=10**9, sort_keys=False)
    return dumped.strip()[1:-1]


def _flow_pair(path: Path, value: object) -> str:
    inner = f"{{{_flow_pair(path[1:], value)}}}" if len(path) > 1 else _flow(value)
    return f"{_flow(path[0])}: {inner}"


def _block_lines(path: Path, value: object, column: int) -> list[str]:
    names = [f"{' ' * (column + 2 * i)}{_flow(name)}:" for i, name in enumerate(path)]
    return [*names[:-1], f"{names[-1]} {_flow(value)}"]


def _newline(text: str) -> str:
    found = BREAK.search(text)
    return found.group() if found and found.group() in ("\r\n", "\n", "\r") else "\n"


def _set(text: str, pair: tuple[Node, Node], value: object) -> Splice:
    """Put a value where another stands."""
    key, item = pair
    end = _end(item)
    if item.is_block and item.kind != "scalar":
        place = text.index(":", key.end) + 1
        return place, end, f" {_flow(value)}"
    new = _flow(value) if item.start != item.end else f" {_flow(value)}"
    if item.kind == "scalar" and item.is_block:
        new += _newline(text)
    return item.start, end, new


def _end(node: Node) -> int:
    """Behind the last character of a node, without the comments that follow it."""
    if node.kind in ("scalar", "alias") or not node.is_block:
        return node.end
    if node.kind == "mapping":
        return _end(node.pairs[-1][1]) if node.pairs else node.end
    return _end(node.items[-1]) if node.items else node.end


def _line_end(text: str, position: int) -> int:
    """Return the start of the line after the one with ``position``, or the text's end."""
    if position and BREAK.match(text[position - 1]):
        return position
    found = BREAK.search(text, position)
    return found.end() if found else len(text)


def _inserted(text: str, position: int, lines: list[str]) -> Splice:
    """Put lines in, ``position`` being the start of a line or the end of the text."""
    newline = _newline(text)
    begins_open = position > 0 and not BREAK.match(text[position - 1])
    ends_open = position == len(text) and bool(text) and not BREAK.match(text[-1])
    block = newline.join(lines) + ("" if ends_open else newline)
    return position, position, newline * begins_open + block


def _added(text: str, mapping: Node, path: Path, value: object) -> Splice:
    """Put a new key behind the last one of a mapping."""
    if mapping.is_block:
        lines = _block_lines(path, value, mapping.pairs[0][0].column)
        return _inserted(text, _line_end(text, _end(mapping)), lines)
    if not mapping.pairs:
        inside = text[mapping.start : mapping.end]
        place = mapping.start + inside.rindex("}")
        return place, place, _flow_pair(path, value)
    place = _end(mapping.pairs[-1][1])
    return place, place, f", {_flow_pair(path, value)}"


def _without(text: str, mapping: Node, pair: tuple[Node, Node]) -> Splice:
    """Take a pair out."""
    key, item = pair
    if mapping.is_block:
        start = key.start - key.column
        if text[start : key.start].strip():
            start = key.start
        return start, _line_end(text, max(_end(item), key.end)), ""
    position = mapping.pairs.index(pair)
    if position:
        return _end(mapping.pairs[position - 1][1]), _end(item), ""
    stop = mapping.pairs[1][0].start if len(mapping.pairs) > 1 else _end(item)
    return key.start, stop, ""

"""Edits of a JSON text with comments: what is not edited stays as it was written."""

import json
import re
from collections.abc import Mapping

from planner.documents.file import REMOVED
from planner.documents.json_nodes import SPACE, Plain, parse_json
from planner.documents.nodes import Node
from planner.documents.schema import Path
from planner.documents.tree import parsed_object

_REST_OF_LINE = re.compile(r"[ \t]*(?:(?://|#)[^\r\n]*|(?:/\*[^\r\n]*?\*/[ \t]*)?)(?=\r?\n)")
STEP = "  "


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


def edited(where: str, text: str, changes: Mapping[Path, Plain]) -> str:
    """Return the text with values at paths of keys replaced, inserted or REMOVED.

    Missing objects on the way are made, and values that are no objects replaced by them. The
    text beside the edits, comments too, stays byte for byte. Of duplicate keys the last is
    replaced, and all are removed. Raises InputError where the text is not an object.
    """
    for path, value in changes.items():
        root = parsed_object(where, text).root
        assert root is not None
        text = _removed(where, text, path) if value is REMOVED else _set(text, root, path, value)
    return text


def _set(text: str, root: Node, path: Path, value: Plain) -> str:
    parent = root
    for depth, name in enumerate(path):
        found = parent.find(name)
        rest = path[depth + 1 :]
        if found is None:
            return _inserted(text, parent, name, _nested(rest, value))
        key, item = found
        if not rest or item.kind != "mapping":
            new = _written(text, key, _nested(rest, value))
            return text[: item.start] + new + text[item.end :]
        parent = item
    return text


def _nested(path: Path, value: Plain) -> Plain:
    for key in reversed(path):
        value = {key: value}
    return value


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent_of(text: str, position: int) -> str | None:
    """White space before the position, where nothing else stands before it on its line."""
    start = text.rfind("\n", 0, position) + 1
    before = text[start:position]
    return before if start and not before.strip(" \t") else None


def _comma_behind(text: str, node: Node) -> int:
    """Return the position of the comma after a value; -1 if there is none."""
    space = SPACE.match(text, node.end)
    at = space.end() if space else node.end
    return at if text.startswith(",", at) else -1


def _written(text: str, key: Node, value: Plain) -> str:
    indent = _indent_of(text, key.start)
    return json.dumps(value) if indent is None else json_text(value, indent, _newline(text))


def _inserted(text: str, parent: Node, name: str, value: Plain) -> str:
    """The member behind the last one, on a line of its own where that has one."""
    key = f"{json.dumps(name)}: "
    if not parent.pairs:
        at = parent.start + 1
        return text[:at] + key + json.dumps(value) + text[at:]
    last = parent.pairs[-1][1]
    place = _comma_behind(text, last)
    end, comma = (last.end, ",") if place < 0 else (place + 1, "")
    indent = _indent_of(text, parent.pairs[0][0].start)
    if indent is None:
        return f"{text[:end]}{comma} {key}{json.dumps(value)}{text[end:]}"
    newline = _newline(text)
    rest = _REST_OF_LINE.match(text, end)
    until = rest.end() if rest else end
    line = f"{newline}{indent}{key}{json_text(value, indent, newline)}"
    return f"{text[:end]}{comma}{text[end:until]}{line}{text[until:]}"


def _removed(where: str, text: str, path: Path) -> str:
    """Return the text without the member, its comma, and its line if nothing else is on it."""
    while True:
        parent = parse_json(where, text)
        for name in path[:-1]:
            found = parent.find(name)
            if found is None:
                return text
            parent = found[1]
        pair = parent.find(path[-1])
        if pair is None:
            return text
        key, item = pair
        own = _comma_behind(text, item)
        spans = [_whole_line(text, key.start, item.end, own)]
        index = parent.pairs.index(pair)
        if own < 0 and index:
            comma = _comma_behind(text, parent.pairs[index - 1][1])
            spans.append((comma, comma + 1))
        elif own >= spans[0][1]:
            spans.append((own, own + 1))
        for start, end in sorted(spans, reverse=True):
            text = text[:start] + text[end:]


def _whole_line(text: str, start: int, end: int, comma: int) -> tuple[int, int]:
    """The span with a comma that follows at once, and with its line if no more stands on it."""
    if comma >= 0 and not text[end:comma].strip(" \t"):
        end = comma + 1
    indent = _indent_of(text, start)
    rest = re.compile(r"[ \t]*(\r?\n)").match(text, end)
    if indent is None or rest is None:
        return start, end
    return start - len(indent), rest.end()

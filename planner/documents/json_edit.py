"""Edits of a JSON text with comments: what is not edited stays as it was written."""

import json
import re
from collections.abc import Mapping

from planner.documents.file import REMOVED
from planner.documents.json_text import Member, Node, Path, Plain, parse_json, parse_object

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


def edited(text: str, changes: Mapping[Path, Plain], where: str) -> str:
    """Return the text with values at paths of keys replaced, inserted or REMOVED.

    Missing objects on the way are made, and values that are no objects replaced by them. The
    text beside the edits, comments too, stays byte for byte. Of duplicate keys the last is
    replaced, and all are removed. Raises InputError where the text is not an object.
    """
    for path, value in changes.items():
        root = parse_object(text, where)
        text = _removed(text, path, where) if value is REMOVED else _set(text, root, path, value)
    return text


def _set(text: str, root: Node, path: Path, value: Plain) -> str:
    parent = root
    for depth, key in enumerate(path):
        found = parent.find(key)
        rest = path[depth + 1 :]
        if found is None:
            return _inserted(text, parent, key, _nested(rest, value))
        if not rest or found.node.members is None:
            written = _written(text, found, _nested(rest, value))
            return text[: found.node.start] + written + text[found.node.end :]
        parent = found.node
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


def _written(text: str, member: Member, value: Plain) -> str:
    indent = _indent_of(text, member.start)
    return json.dumps(value) if indent is None else json_text(value, indent, _newline(text))


def _inserted(text: str, parent: Node, key: str, value: Plain) -> str:
    """The member behind the last one, on a line of its own where that has one."""
    assert parent.members is not None
    name = f"{json.dumps(key)}: "
    if not parent.members:
        at = parent.start + 1
        return text[:at] + name + json.dumps(value) + text[at:]
    last = parent.members[-1]
    end = last.node.end if last.comma < 0 else last.comma + 1
    comma = "," if last.comma < 0 else ""
    indent = _indent_of(text, parent.members[0].start)
    if indent is None:
        return f"{text[:end]}{comma} {name}{json.dumps(value)}{text[end:]}"
    newline = _newline(text)
    rest = _REST_OF_LINE.match(text, end)
    until = rest.end() if rest else end
    line = f"{newline}{indent}{name}{json_text(value, indent, newline)}"
    return f"{text[:end]}{comma}{text[end:until]}{line}{text[until:]}"


def _removed(text: str, path: Path, where: str) -> str:
    """Without the member, its comma and its line, where nothing else stands there."""
    while True:
        parent: Node | None = parse_json(text, where)
        for key in path[:-1]:
            found = parent.find(key) if parent else None
            parent = found.node if found else None
        gone = parent.find(path[-1]) if parent else None
        if parent is None or parent.members is None or gone is None:
            return text
        spans = [_whole_line(text, gone.start, gone.node.end, gone.comma)]
        index = parent.members.index(gone)
        if gone.comma < 0 and index:
            comma = parent.members[index - 1].comma
            spans.append((comma, comma + 1))
        elif gone.comma >= spans[0][1]:
            spans.append((gone.comma, gone.comma + 1))
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

"""JSON, plain or with comments, with the place of every value.

Beside plain JSON, comments (``//``, ``#``, ``/* */``) and commas after the last member are read, as
DeepSpeed's own loader does; the further liberties of Hjson (no quotes, no commas) are not.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from pathlib import Path as FilePath
from typing import Any, NoReturn, TypeAlias

from planner.documents.file import read_text
from planner.errors import InputError, Problem
from planner.limits import MAX_DEPTH, MAX_DIGITS, MAX_VALUES

Path = tuple[str, ...]
Plain: TypeAlias = Any
"""What Python's json makes of a value."""
_SPACE = re.compile(r"(?:[ \t\r\n]+|(?://|#)[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_PLAIN_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DECODER = JSONDecoder()
_WORDS = {"true": True, "false": False, "null": None}
_PLAIN_WORDS = {
    **_WORDS,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
"""Python's json has these as well."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A value of the text and where it stands."""

    start: int
    end: int
    line: int
    scalar: Plain = None
    """Of a string, number, boolean or null."""
    members: "tuple[Member, ...] | None" = None
    """Of an object, duplicates included."""
    items: "tuple[Node, ...] | None" = None
    """Of an array."""

    @property
    def value(self) -> Plain:
        """As Python's json gives it: the last of duplicate keys holds."""
        if self.members is not None:
            return {member.key: member.node.value for member in self.members}
        return self.scalar if self.items is None else [item.value for item in self.items]

    def find(self, key: str) -> "Member | None":
        """The last member of that key; None where there is none, or the value is no object."""
        found = [member for member in self.members or () if member.key == key]
        return found[-1] if found else None


@dataclass(frozen=True, kw_only=True)
class Member:
    """A key of an object with its value."""

    key: str
    start: int
    line: int
    node: Node
    comma: int
    """Where the comma behind it stands; -1: there is none."""


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """A key that stands twice in one object."""

    path: Path
    line: int
    first_line: int


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, Member]]:
    """Every member of every object, in the order of the text; arrays are not entered."""
    for member in node.members or ():
        yield (*path, member.key), member
        yield from walk(member.node, (*path, member.key))


def duplicates(node: Node, path: Path = ()) -> Iterator[Duplicate]:
    """Keys that repeat an earlier one of the same object, objects in arrays included."""
    seen: dict[str, int] = {}
    for member in node.members or ():
        here = (*path, member.key)
        if member.key in seen:
            yield Duplicate(path=here, line=member.line, first_line=seen[member.key])
        seen.setdefault(member.key, member.line)
        yield from duplicates(member.node, here)
    for index, item in enumerate(node.items or ()):
        yield from duplicates(item, (*path, str(index)))


def parse_json(text: str, where: str, *, is_plain: bool = False) -> Node:
    """Read a text; InputError with file and line where it is no JSON, or beyond the limits.

    ``is_plain``: as Python's json reads it, without comments.
    """
    return _Parser(text, where, is_plain=is_plain).document()


def parse_object(text: str, where: str) -> Node:
    """Read a text that must be an object of keys; InputError where it is none."""
    root = parse_json(text, where)
    if root.members is None:
        raise InputError.single(where, "line 1", "an object in braces is needed")
    return root


def keys_at_top(text: str, where: str) -> set[str]:
    """The keys of an object; none where the text is no object."""
    try:
        return {member.key for member in parse_json(text, where).members or ()}
    except InputError:
        return set()


def load_json(path: str | FilePath) -> dict[str, Any]:
    """Return the object in a plain JSON file; what cannot be read raises ``file::line N: ...``."""
    where = str(path)
    root = parse_json(read_text(path), where, is_plain=True)
    if root.members is None:
        kind = type(root.value).__name__
        raise InputError.single(where, "line 1", f"must be an object of keys, is a {kind}")
    problems = [
        Problem(
            where=where,
            key=f"line {each.line}",
            message=f"key {each.path[-1][:60]!r} is given twice in one object",
        )
        for each in duplicates(root)
    ]
    if problems:
        raise InputError(problems)
    value: dict[str, Any] = root.value
    return value


class _Parser:
    """Recursive descent; ``at`` is the next character to be read."""

    def __init__(self, text: str, where: str, *, is_plain: bool) -> None:
        self.text, self.where, self.at = text, where, 0
        self.line_ends = [found.start() for found in re.finditer("\n", text)]
        self.is_plain = is_plain
        self.space = _PLAIN_SPACE if is_plain else _SPACE
        self.words = _PLAIN_WORDS if is_plain else _WORDS
        self.num_values = 0

    def document(self) -> Node:
        self.skip()
        root = self.value(0)
        self.skip()
        if self.at < len(self.text):
            self.fail("one value is allowed, and text follows it")
        return root

    def line(self, position: int) -> int:
        return bisect_left(self.line_ends, position) + 1

    def fail(self, message: str) -> NoReturn:
        given = repr(self.text[self.at : self.at + 12]) if self.at < len(self.text) else "the end"
        key = f"line {self.line(self.at)}"
        raise InputError.single(self.where, key, f"not JSON: {message}; given {given}")

    def skip(self) -> None:
        """Pass over white space and comments."""
        found = self.space.match(self.text, self.at)
        self.at = found.end() if found else self.at
        if not self.is_plain and self.text.startswith("/*", self.at):
            self.fail("a comment has no end")

    def takes(self, word: str) -> bool:
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        return True

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            self.fail(f"more than {MAX_VALUES:,} values")
        start, line = self.at, self.line(self.at)
        if self.takes("{"):
            members = tuple(self.object_members(depth))
            return Node(start=start, end=self.at, line=line, members=members)
        if self.takes("["):
            items = tuple(self.array_items(depth))
            return Node(start=start, end=self.at, line=line, items=items)
        scalar = self.scalar()
        return Node(start=start, end=self.at, line=line, scalar=scalar)

    def object_members(self, depth: int) -> Iterator[Member]:
        self.skip()
        while not self.takes("}"):
            start, line = self.at, self.line(self.at)
            if not self.text.startswith('"', start):
                self.fail('a key in double quotes or "}" must follow')
            key = self.string()
            self.skip()
            if not self.takes(":"):
                self.fail(f'":" must follow the key {key!r}')
            self.skip()
            node = self.value(depth + 1)
            comma = self.comma("}")
            yield Member(key=key, start=start, line=line, node=node, comma=comma)

    def array_items(self, depth: int) -> Iterator[Node]:
        self.skip()
        while not self.takes("]"):
            item = self.value(depth + 1)
            self.comma("]")
            yield item

    def comma(self, closing: str) -> int:
        """Pass over a comma and return where it stood; -1 before the closing bracket."""
        self.skip()
        position = self.at
        if self.takes(","):
            self.skip()
            if self.is_plain and self.text.startswith(closing, self.at):
                self.fail("a value must follow the comma")
            return position
        if not self.text.startswith(closing, self.at):
            self.fail(f'"," or "{closing}" must follow')
        return -1

    def string(self) -> str:
        try:
            decoded, end = _DECODER.raw_decode(self.text, self.at)
            value = str(decoded)
            value.encode()
        except (JSONDecodeError, UnicodeEncodeError):
            self.fail("a string has no end, a control character, or an escape that is none")
        self.at = end
        return value

    def scalar(self) -> Plain:
        if self.text.startswith('"', self.at):
            return self.string()
        for word, value in self.words.items():
            if self.takes(word):
                return value
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            self.fail("a value must follow")
        num_digits = len(found[0].lstrip("-"))
        if num_digits > MAX_DIGITS:
            self.fail(f"a number of {num_digits:,} digits; at most {MAX_DIGITS} are read")
        number = float(found[0]) if found[1] or found[2] else int(found[0])
        self.at = found.end()
        return number

"""JSON, plain or with comments, as nodes.

Beside plain JSON, comments (``//``, ``#``, ``/* */``) and commas after the last member are read, as
DeepSpeed's own loader does; the further liberties of Hjson (no quotes, no commas) are not.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, NoReturn, TypeAlias

from planner.documents.nodes import Node
from planner.errors import InputError
from planner.limits import MAX_DEPTH, MAX_DIGITS, MAX_VALUES

Plain: TypeAlias = Any  # what Python's json makes of a value
# White space and comments.
SPACE = re.compile(r"(?:[ \t\r\n]+|(?://|#)[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DECODER = JSONDecoder()
_WORDS: dict[str, Plain] = {"true": True, "false": False, "null": None}


def parse_json(where: str, text: str, *, is_plain: bool = False) -> Node:
    """Read a text; InputError with file and line where it is no JSON, or beyond the limits.

    ``is_plain``: as Python's json reads it, without comments.
    """
    return _Parser(where, text, is_plain=is_plain).document()


class _Parser:
    """Recursive descent; ``at`` is the next character to be read."""

    def __init__(self, where: str, text: str, *, is_plain: bool) -> None:
        self.text, self.where, self.at = text, where, 0
        self.line_ends = [found.start() for found in re.finditer("\n", text)]
        self.is_plain = is_plain
        self.space, self.words = SPACE, _WORDS
        if is_plain:
            self.space = re.compile(r"[ \t\r\n]*")
            # Python's json has these as well
            odd = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
            self.words = {**_WORDS, **odd}
        self.num_values = 0

    def document(self) -> Node:
        self.skip()
        root = self.value(0)
        self.skip()
        if self.at < len(self.text):
            self.fail("one value is allowed, and text follows it")
        return root

    def node(self) -> Node:
        """A scalar that begins here, as yet empty."""
        number = bisect_left(self.line_ends, self.at)
        column = self.at - (self.line_ends[number - 1] + 1 if number else 0)
        return Node(line=number + 1, column=column, start=self.at, end=self.at)

    def fail(self, message: str) -> NoReturn:
        rest = self.text[self.at : self.at + 12]
        given = repr(rest) if rest else "the end"
        line = f"line {self.node().line}"
        raise InputError.single(self.where, line, f"not JSON: {message}; given {given}")

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
        node = self.node()
        if self.takes("{"):
            node.kind, node.pairs = "mapping", tuple(self.members(depth))
        elif self.takes("["):
            node.kind, node.items = "sequence", tuple(self.array_items(depth))
        else:
            node.value = self.scalar()
        node.end = self.at
        return node

    def members(self, depth: int) -> Iterator[tuple[Node, Node]]:
        self.skip()
        while not self.takes("}"):
            key = self.node()
            if not self.text.startswith('"', self.at):
                self.fail('a key in double quotes or "}" must follow')
            key.value = key.text = self.string()
            key.end = self.at
            self.skip()
            if not self.takes(":"):
                self.fail(f'":" must follow the key {key.text!r}')
            self.skip()
            yield key, self.value(depth + 1)
            self.comma("}")

    def array_items(self, depth: int) -> Iterator[Node]:
        self.skip()
        while not self.takes("]"):
            item = self.value(depth + 1)
            self.comma("]")
            yield item

    def comma(self, closing: str) -> None:
        """Pass over a comma, which may be missing before the closing bracket."""
        self.skip()
        if self.takes(","):
            self.skip()
            if self.is_plain and self.text.startswith(closing, self.at):
                self.fail("a value must follow the comma")
        elif not self.text.startswith(closing, self.at):
            self.fail(f'"," or "{closing}" must follow')

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
        self.at = found.end()
        is_whole = found[1] is None and found[2] is None
        return int(found[0]) if is_whole else float(found[0])

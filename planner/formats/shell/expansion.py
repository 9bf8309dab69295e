"""What written words of a script stand for: variables, defaults and sums put in.

Every character keeps its place in the file, so that a word can be found and edited where it was
written. No library does this: bashlex, shlex and those that run a shell give the words alone.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from planner.formats.shell.syntax import PLACEHOLDER
from planner.formats.shell.word import (
    Part,
    Quote,
    Span,
    Word,
    gathered,
    in_one_piece,
    split,
    split_words,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_CHARACTERS = 2_000_000
"""Of all words together: variables that double themselves end here."""
MAX_DEPTH = 24
"""Of quotes and defaults in each other; what stands deeper is not looked into."""
MAX_SUM = 200
"""Characters of a sum."""
Value = Word | tuple[Word, ...]
"""Of a variable: a text, or the words of an array."""
_ALL = re.compile(r"\[[@*]\]|\$[@*]")
_LITERAL = re.compile(r"\\(\r?\n|.|$)|[^\\]+", re.DOTALL)
NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")
_QUOTES = {"string": '"', "translated_string": '"', "raw_string": "'", "ansi_c_string": "'"}
_VARIABLES = ("simple_expansion", "expansion")
_UNKNOWN = ("command_substitution", "process_substitution")
_EXPANSIONS = (*_VARIABLES, "arithmetic_expansion", *_UNKNOWN)
_MORE = ("concatenation", *_EXPANSIONS, *_QUOTES)
WORDS = (
    *("word", "number", "variable_name", "special_variable_name", "regex", "test_operator"),
    *("brace_expression", "extglob_pattern", *_MORE),
)
"""Nodes that are words of commands."""
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
}
_OF_SCHEDULERS = re.compile(
    r"(SLURM|PBS|LSB|PMI|PMIX|OMPI|FLUX|COBALT)_\w+|WORLD_SIZE|(LOCAL_|NODE_)?RANK"
)
"""Variables that a scheduler sets where it starts a job: their defaults are for trials."""


_ASSIGNED = Quote("", 0, 0)
"""Where a value is not split though nothing quotes it."""
GAP = Part(" ", (0, 0), (0, 0))


class TooLongError(Exception):
    """The words of a script grow beyond MAX_CHARACTERS."""


@dataclass(kw_only=True)
class Budget:
    """How many characters may still be made."""

    left: int = MAX_CHARACTERS

    def spend(self, length: int) -> None:
        """Note a text that was made; raises TooLongError."""
        self.left -= length + 1
        if self.left < 0:
            raise TooLongError


@dataclass(kw_only=True)
class Words:
    """Makes words of the nodes of a text's tree, and holds the variables in them."""

    source: Word
    """The text: a file, or a word that another shell reads."""
    shift: int = 0
    """From a place in the tree to one in the text."""
    values: dict[str, Value] = field(default_factory=dict)
    arguments: tuple[Word, ...] | None = None
    """Of the function that runs; None outside of one."""
    budget: Budget = field(default_factory=Budget)
    num_shells: int = 0
    """That hand the text on."""

    def text(self, node: "Node") -> str:
        """A node as it is written."""
        return self.source.text[slice(*self._span(node))]

    def words(self, node: "Node") -> list[Word]:
        """The words that a written word stands for."""
        inner = node.children[1] if node.type == "string" and node.child_count == 3 else node
        if inner.type == "expansion" and self.text(node).strip('"') == self.text(inner):
            value = self._elements(*self._reference(inner)[:3])
            if value is not None:
                self.budget.spend(sum(len(word.text) + 1 for word in value))
                return [each for word in value for each in self._split(word, inner is not node)]
        found = list(gathered(self._parts(node, None)))
        if len(found) != 1:
            return [Word(parts=parts) for parts in found]
        span = self._span(node)
        written = in_one_piece(part.place for part in self.source.cut(*span))
        keeps = any(part.is_known and re.search(r"\s", part.text) for part in found[0])
        is_whole = not keeps and not self.num_shells and not _ALL.search(self.text(node))
        return [Word(parts=found[0], written=written, is_whole=is_whole)]

    def _elements(self, name: str, subscript: str, sign: str) -> tuple[Word, ...] | None:
        """The words of ``[@]``."""
        value = None if sign else self._value(name)
        is_all = name == "@" or subscript == "[@]"
        return value if is_all and isinstance(value, tuple) else None

    def _split(self, word: Word, is_quoted: bool) -> tuple[Word, ...]:
        return (word,) if is_quoted or not re.search(r"\s|^$", word.text) else split_words(word)

    def joined(self, nodes: "Iterable[Node]", quote: Quote | None = None) -> Word:
        """What stands behind ``=``: one text, however many words."""
        return _one(part for node in nodes for part in self._parts(node, quote or _ASSIGNED))

    def _span(self, node: "Node") -> Span:
        """A node's place; in quotes the parser counts blanks before an expansion with it."""
        start = node.start_byte + self.shift
        end = min(node.end_byte + self.shift, len(self.source.text))
        while start < end and self.source.text[start].isspace():
            start += 1
        return start, end

    def _place(self, start: int, end: int) -> Span:
        """A place in the text as one in the file; the first where the text comes from several."""
        places = [part.place for part in self.source.cut(start, end)] or [(start, end)]
        return in_one_piece(places) or places[0]

    def _parts(self, node: "Node", quote: Quote | None, depth: int = 0) -> Iterator[Part | None]:
        """The parts of a written word; None where one word of several ends."""
        start, end = self._span(node)
        if depth > MAX_DEPTH or node.type in _UNKNOWN:
            yield self._unknown(start, end, quote)
        elif node.type in _VARIABLES:
            yield from self._variable(node, quote, depth)
        elif node.type == "arithmetic_expansion":
            yield self._sum(node, quote)
        elif node.type in _QUOTES:
            start, end = start + 1 + (self.source.text[start] == "$"), end - 1
            own = Quote(_QUOTES[node.type], start, end)
            if start == end:
                yield self._part("", start, end, own)
            elif own.sign == '"':
                yield from self._between(node.children[1:-1], start, end, own, depth)
            else:
                yield from self._literal(start, end, own)
        else:
            is_more = node.type in ("concatenation", "heredoc_body")
            yield from self._between(node.children if is_more else (), start, end, quote, depth)

    def _between(
        self, nodes: "Iterable[Node]", start: int, end: int, quote: Quote | None, depth: int
    ) -> Iterator[Part | None]:
        """Expansions and quotes, and the literal text around them."""
        for node in nodes:
            first, last = self._span(node)
            if node.type in _MORE and start <= first < last <= end:
                yield from self._escaped(start, first, quote)
                yield from self._parts(node, quote, depth + 1)
                start = last
        yield from self._escaped(start, end, quote)

    def _escaped(self, start: int, end: int, quote: Quote | None) -> Iterator[Part]:
        """Literal text whose backslashes count."""
        for found in _LITERAL.finditer(self.source.text, start, end):
            first, last = found.span()
            after = found[1]
            if after is None:
                yield from self._literal(first, last, quote)
            elif quote is None or quote is _ASSIGNED:
                if after and not after.endswith("\n"):
                    yield self._part(after, first, last, quote)
            elif after.endswith("\n") or not after:
                yield self._part(" ", first, last, quote)
            elif after in ("\\$`" if quote.sign == "<<" else '"\\$`'):
                yield self._part(after, first, last, quote)
            else:
                yield from self._literal(first, last, quote)

    def _literal(self, start: int, end: int, quote: Quote | None) -> Iterator[Part]:
        own = None if quote is _ASSIGNED else quote
        for found in PLACEHOLDER.finditer(self.source.text, start, end):
            yield from self._exact(start, found.start(), own)
            start = found.end()
            yield self._unknown(found.start(), start, own)
        yield from self._exact(start, end, own)

    def _exact(self, start: int, end: int, quote: Quote | None) -> Iterator[Part]:
        for part in self.source.cut(start, end):
            yield part._replace(quote=part.quote or quote) if quote else part

    def _part(
        self, text: str, start: int, end: int, quote: Quote | None, *, is_known: bool = True
    ) -> Part:
        """What is written in a place and stands for a text."""
        self.budget.spend(len(text))
        place = self._place(start, end)
        outer = next((part.quote for part in self.source.cut(start, end)), None)
        own = outer or (None if quote is _ASSIGNED else quote)
        return Part(text, place, place, own, is_known)

    def _unknown(self, start: int, end: int, quote: Quote | None, text: str = "") -> Part:
        text = text or self.source.text[start:end]
        return self._part(text, start, end, quote, is_known=False)

    def _variable(self, node: "Node", quote: Quote | None, depth: int) -> Iterator[Part | None]:
        start, end = self._span(node)
        name, subscript, sign, rest = self._reference(node)
        value = self._value(name)
        is_set = value is not None and (":" not in sign or bool(spaced(value).text))
        if sign.lstrip(":") not in ("", "-", "=", "+"):
            yield self._unknown(start, end, quote)
        elif value is not None and (is_set or "+" in sign) and "+" not in sign:
            yield from self._held(value, name, subscript, self._place(start, end), quote)
        elif sign.endswith(("-", "=")) and not _OF_SCHEDULERS.fullmatch(name):
            default = _one(self._behind(rest, end, _ASSIGNED, depth))
            if "=" in sign:
                self.values[name] = default
            yield from self._held(default, name, "", self._place(start, end), quote)
        elif value is not None:
            for part in self._behind(rest, end, quote, depth) if is_set else ():
                yield from split([part]) if part and not (quote or part.quote) else [part]
        else:
            yield self._unknown(start, end, quote, f"${{{name}{subscript}}}")

    def _behind(
        self, nodes: "list[Node]", end: int, quote: Quote | None, depth: int
    ) -> Iterator[Part | None]:
        """What stands behind the sign of a variable."""
        start = self._span(nodes[0])[0] if nodes else end - 1
        return self._between(nodes, start, end - 1, quote, depth)

    def _held(
        self, value: Value, name: str, subscript: str, place: Span, quote: Quote | None
    ) -> Iterator[Part | None]:
        """What a variable holds; a text without blanks stands where the variable does."""
        words = self._elements(name, subscript, "")
        if words is None:
            held = spaced(value if isinstance(value, Word) or subscript else value[:1])
            is_one = not re.search(r"\s", held.text)
            words = (
                (Word(parts=tuple(p._replace(place=place) for p in held.parts)),)
                if is_one
                else (held,)
            )
        for at, word in enumerate(words):
            self.budget.spend(len(word.text))
            if at:
                yield None
            if quote is None:
                yield from split(word.parts)
            else:
                yield from word.parts or [Part("", place, place)]

    def _reference(self, node: "Node") -> "tuple[str, str, str, list[Node]]":
        """The name of a variable, its subscript, the sign behind it, and what follows the sign."""
        name = subscript = sign = ""
        rest: list[Node] = []
        for child in node.children:
            if child.type in ("$", "${", "}"):
                continue
            if child.type in ("variable_name", "special_variable_name") and not name:
                name, sign = self.text(child), "?" if sign else ""
            elif child.type == "subscript" and not name and not sign:
                name, _, subscript = self.text(child).partition("[")
                subscript = f"[{subscript}"
                sign = "" if subscript in ("[@]", "[*]") else "?"
            elif not sign:
                sign = self.text(child)
            else:
                rest.append(child)
        return name, subscript, sign, rest

    def _value(self, name: str) -> Value | None:
        if name in ("@", "*"):
            return self.arguments
        if name.isdigit():
            given = self.arguments or ()
            return given[int(name) - 1] if 0 < int(name[:4]) <= len(given) else None
        return self.values.get(name)

    def _sum(self, node: "Node", quote: Quote | None) -> Part:
        start, end = self._span(node)
        number = self._number(node.children[1]) if end - start <= MAX_SUM else None
        if number is None:
            return self._unknown(start, end, quote)
        return self._part(str(number), start, end, quote)

    def _number(self, node: "Node") -> int | None:
        if node.type == "parenthesized_expression":
            return self._number(node.children[1])
        if node.type == "binary_expression" and node.child_count == 3:
            left, sign, right = node.children
            a, b, operation = self._number(left), self._number(right), _OPERATIONS.get(sign.type)
            if a is None or b is None or operation is None or (sign.type in "/%" and not b):
                return None
            number = operation(a, b)
            return number if 0 <= number < 10**15 else None
        if node.type == "variable_name":
            value = self._value(self.text(node))
            text = value.text if isinstance(value, Word) else ""
        else:
            text = self.joined([node]).text if node.type in WORDS else ""
        return int(text) if NUMBER.fullmatch(text) else None


def _one(parts: Iterable[Part | None]) -> Word:
    """One word, with blanks where several end."""
    return Word(parts=tuple(GAP if part is None else part for part in parts))


def spaced(value: Value) -> Word:
    """All that a variable holds, in one line."""
    words = value if isinstance(value, tuple) else (value,)
    parts: list[Part] = []
    for word in words:
        if parts and word.parts:
            gap = (parts[-1].place[1], word.parts[0].place[0])
            parts.append(Part(" ", gap, gap) if gap[0] < gap[1] else GAP)
        parts += word.parts
    return Word(parts=tuple(parts))


def appended(old: Value | None, new: Value) -> Value:
    """What a variable holds after ``+=``."""
    if isinstance(new, tuple):
        return (*((old,) if isinstance(old, Word) else old or ()), *new)
    if isinstance(old, tuple):
        return (replace(old[0], parts=(*old[0].parts, *new.parts)), *old[1:]) if old else (new,)
    return Word(parts=(*(old.parts if old else ()), *new.parts))

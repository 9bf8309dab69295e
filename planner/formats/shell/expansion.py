"""Expansion of the words of a script: variables, defaults and sums substituted; results of tests.

Every character keeps its place in the file, so that a word can be found and edited where it was
written. No library does this: bashlex, shlex and those that run a shell give the words alone.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planner.formats.shell.word import (
    PLACEHOLDER,
    Char,
    Chars,
    ScriptError,
    Span,
    Word,
    gathered,
    in_one_piece,
    split,
    split_words,
)

if TYPE_CHECKING:
    from tree_sitter import Node

# Of a variable: one word of a text, several of an array.
Value = tuple[Word, ...]
# Of quotes and defaults in each other; what stands deeper is not looked into.
MAX_DEPTH = 24
NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")
# Between the words of an array that become one text.
GAP = Char(" ", (0, 0), (0, 0))
# How a text is quoted decides which backslashes count and whether blanks part words. Behind the
# equals sign of an assignment nothing is parted, though nothing is quoted.
_BARE, _ASSIGNED = "", "="
_QUOTES = {
    "string": '"',
    "translated_string": '"',
    "raw_string": "'",
    "ansi_c_string": "'",
}
_ESCAPED_IN = {'"': '"\\$`', "<<": "\\$`"}
_LITERAL = re.compile(rf"\\(?P<escaped>\r?\n|.|$)|(?P<open>{PLACEHOLDER})|[^\\<]+|<", re.DOTALL)
_BLANK = re.compile(r"(?:\s|\\\r?\n)*")
_REFERENCE = re.compile(r"\$\{?(\w+|[@*])(\[[@*]\])?(?:(:?[-=+])(.*))?\}?", re.DOTALL)
_ARRAY = re.compile(r'("?)\$\{(\w+)\[@\]\}\1')
_VARIABLES = ("simple_expansion", "expansion")
_SUMS = ("arithmetic_expansion", "command_substitution")
_MORE = ("concatenation", *_VARIABLES, *_SUMS, "process_substitution", *_QUOTES)
# Nodes that are words of commands.
WORDS = (
    *("word", "number", "variable_name", "special_variable_name", "regex", "test_operator"),
    *("brace_expression", "extglob_pattern", *_MORE),
)
# Python's operators have the names of those of a test.
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
}
# Variables that a scheduler sets where it starts a job: their defaults are for trials.
_OF_SCHEDULERS = re.compile(
    r"(SLURM|PBS|LSB|PMI|PMIX|OMPI|FLUX|COBALT)_\w+|WORLD_SIZE|(LOCAL_|NODE_)?RANK"
)


@dataclass(kw_only=True)
class Budget:
    """Number of characters that all shells of a script together may still produce."""

    # Of all words together: variables that double themselves end here.
    left: int = 2_000_000

    def spend(self, length: int) -> None:
        """Note a text that was made; raises ScriptError."""
        self.left -= length + 1
        if self.left < 0:
            raise ScriptError("variables that stand for each other grow without end")


@dataclass(kw_only=True)
class Expander:
    """Makes words of the nodes of a text's tree, and holds the variables in them."""

    source: tuple[Char, ...]  # the text: a file, or a word that another shell reads
    shift: int = 0  # Offset from a place in the tree to one in the text
    values: dict[str, Value | None] = field(default_factory=dict)
    """None of a variable that is not known any more."""
    budget: Budget = field(default_factory=Budget)
    num_shells: int = 0  # Number of shells that pass the text on

    def __post_init__(self) -> None:
        self.text = "".join(char.text for char in self.source)

    def written(self, node: "Node") -> str:
        """A node as it is written."""
        return self.text[slice(*self.span(node))]

    def span(self, node: "Node") -> Span:
        """A node's place; in quotes the parser counts what is blank before an expansion with it."""
        end = min(node.end_byte + self.shift, len(self.text))
        blank = _BLANK.match(self.text, node.start_byte + self.shift, end)
        return blank.end() if blank else end, end

    def words(self, node: "Node") -> list[Word]:
        """The words that a written word stands for."""
        whole = _ARRAY.fullmatch(self.written(node))
        value = self.values.get(whole[2]) if whole else None
        # A text that is asked for as an array stands where the variable does, as others do.
        if whole and value is not None and not _is_text(value):
            self.budget.spend(sum(len(word.text) + 1 for word in value))
            if whole[1]:
                return list(value)
            return [each for word in value for each in split_words(word)]
        found = list(gathered(self._chars(node, _BARE)))
        self.budget.spend(sum(map(len, found)))
        if len(found) > 1:
            return list(map(Word, found))
        start, end = self.span(node)
        site = in_one_piece(char.place for char in self.source[start:end])
        return [Word(chars, site) for chars in found]

    def joined(self, nodes: "Iterable[Node]", quote: str = _ASSIGNED) -> Word:
        """Return what follows ``=``: one text, however many words."""
        chars = (char for node in nodes for char in self._chars(node, quote))
        word = Word(tuple(char or GAP for char in chars))
        self.budget.spend(len(word.chars))
        return word

    def _chars(self, node: "Node", quote: str, depth: int = 0) -> Chars:
        """The characters of a written word; None where one word of several ends."""
        start, end = self.span(node)
        if depth > MAX_DEPTH or node.type == "process_substitution":
            yield from self._unknown(start, end)
        elif node.type in _VARIABLES:
            yield from self._variable(node, quote, depth)
        elif node.type in _SUMS:
            # A sum of more characters is made to take long.
            number = self._number(node.children[1]) if end - start <= 200 else None
            text = self.text[start:end] if number is None else str(number)
            yield from self._made(text, start, end, is_known=number is not None)
        elif node.type in _QUOTES:
            start, end = start + 1 + (self.text[start] == "$"), end - 1
            if start == end:
                yield from self._made("", start, end)
            nodes = node.children[1:-1] if _QUOTES[node.type] == '"' else ()
            yield from self._between(nodes, start, end, _QUOTES[node.type], depth)
        else:
            nodes = node.children if node.type in ("concatenation", "heredoc_body") else ()
            yield from self._between(nodes, start, end, quote, depth)

    def _between(
        self, nodes: "Iterable[Node]", start: int, end: int, quote: str, depth: int
    ) -> Chars:
        """Expansions and quotes, and the literal text around them."""
        for node in nodes:
            first, last = self.span(node)
            if node.type in _MORE and start <= first < last <= end:
                yield from self._literal(start, first, quote)
                yield from self._chars(node, quote, depth + 1)
                start = last
        yield from self._literal(start, end, quote)

    def _literal(self, start: int, end: int, quote: str) -> Chars:
        """Text without expansions, whose backslashes count where its quotes let them."""
        for found in _LITERAL.finditer(self.text, start, end):
            first, last = found.span()
            escaped = found["escaped"]
            if found["open"]:
                yield from self._unknown(first, last)
            elif escaped is None and quote == _BARE:
                yield from split(self.source[first:last])
            elif escaped is None or quote == "'":
                yield from self.source[first:last]
            elif not escaped.strip("\r\n"):
                yield from self._made(" ", first, last) if quote in _ESCAPED_IN else ()
            elif escaped in _ESCAPED_IN.get(quote, escaped):
                yield from self._made(escaped, first, last)
            else:
                yield from self.source[first:last]

    def _made(
        self,
        text: str,
        start: int,
        end: int,
        *,
        is_known: bool = True,
    ) -> Iterator[Char]:
        """Return the characters of a text that replaces what is written in a place."""
        place = self._place(start, end)
        return (Char(each, place, place, is_known) for each in text or [""])

    def _unknown(self, start: int, end: int, text: str = "") -> Iterator[Char]:
        return self._made(text or self.text[start:end], start, end, is_known=False)

    def _place(self, start: int, end: int) -> Span:
        """A place in the text as one in the file; the first where the text comes from several."""
        places = [char.place for char in self.source[start:end]]
        return in_one_piece(places) or (places[0] if places else (start, end))

    def _variable(self, node: "Node", quote: str, depth: int) -> Chars:
        start, end = self.span(node)
        found = _REFERENCE.fullmatch(self.text, start, end)
        if found is None:
            yield from self._unknown(start, end)
            return
        name, subscript, sign = found[1], found[2] or "", found[3] or ""
        value = self.values.get(name)
        place = self._place(start, end)
        is_set = value is not None
        if value is not None and ":" in sign:
            is_set = any(word.text for word in value)
        own = quote if "+" in sign else _ASSIGNED
        start_of_rest = max(found.start(4), start)
        rest = self._between(node.children, start_of_rest, end - 1, own, depth)
        if value is not None and "+" in sign:
            yield from rest if is_set else ()
        elif value is not None and is_set:
            yield from self._held(value, subscript, place, quote)
        elif sign.endswith(("-", "=")) and not _OF_SCHEDULERS.fullmatch(name):
            default = (Word(tuple(char or GAP for char in rest)),)
            if "=" in sign:
                self.values[name] = default
            yield from self._held(default, "", place, quote)
        else:
            yield from self._unknown(start, end, f"${{{name}{subscript}}}")

    def _held(self, value: Value, every: str, place: Span, quote: str) -> Chars:
        """Yield the value of a variable; a text without blanks gets the variable's place."""
        for at, word in enumerate(value if every else value[:1]):
            if at:
                yield GAP if quote == '"' and every.endswith("*]") else None
            chars = word.chars
            if (not every or _is_text(value)) and not re.search(r"\s", word.text):
                chars = tuple(char._replace(place=place) for char in chars)
            yield from chars if quote else split(chars)
        if quote and not every and not any(word.chars for word in value):
            yield Char("", place, place)

    def holds(self, node: "Node") -> bool | None:
        """Return True if a condition is true; None if that is not known."""
        parts = [each for each in node.children if each.type != "comment"]
        match node.type, [self.written(each) for each in parts]:
            case (("test_command" | "parenthesized_expression"), ["[" | "[[" | "(", _, _]):
                return self.holds(parts[1])
            case (("negated_command" | "unary_expression"), ["!", _]):
                inner = self.holds(parts[1])
                return None if inner is None else not inner
            case "unary_expression", ["-n" | "-z" as sign, _]:
                text = self._known(parts[1])
                return None if text is None else (sign == "-n") == bool(text)
            case (("binary_expression" | "list"), [_, "&&" | "||" as sign, _]):
                found = set(map(self.holds, (parts[0], parts[2])))
                decides = sign == "||"
                if decides in found:
                    return decides
                return None if None in found else not decides
            case "binary_expression", [_, sign, _]:
                left = self._known(parts[0])
                right = self._known(parts[2])
                if left is None or right is None:
                    return None
                if sign in ("=", "==", "!="):
                    return fnmatchcase(left, right) == (sign != "!=")
                if sign in _NUMBERS and NUMBER.fullmatch(left) and NUMBER.fullmatch(right):
                    return _NUMBERS[sign](int(left), int(right))
        return None

    def _known(self, node: "Node") -> str | None:
        word = self.joined([node]) if node.type in WORDS else None
        return None if word is None or word.unknown else word.text

    def _number(self, node: "Node") -> int | None:
        """Return the value of a sum, be it ``expr``'s; None if something in it is not known."""
        if node.type == "parenthesized_expression":
            return self._number(node.children[1])
        is_expr = node.type == "command" and self.written(node.children[0]) == "expr"
        if (is_expr or node.type == "binary_expression") and node.child_count == 3 + is_expr:
            left, sign, right = node.children[-3:]
            a, b = self._number(left), self._number(right)
            symbol = self.written(sign).strip("\\'\"")
            operation = _OPERATIONS.get(symbol)
            if a is None or b is None or operation is None:
                return None
            if symbol in "/%" and b == 0:
                return None
            number = operation(a, b)
            return number if 0 <= number < 10**15 else None
        text = ""
        if node.type == "variable_name":
            value = self.values.get(self.written(node))
            text = value[0].text if value else ""
        elif node.type in WORDS:
            text = self.joined([node]).text
        return int(text) if NUMBER.fullmatch(text) else None


def _is_text(value: Value) -> bool:
    """Return True if a variable was set to a text, not to an array of written words."""
    return len(value) == 1 and value[0].site is None

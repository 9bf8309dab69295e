"""Words of shell text with their places, as tree-sitter's grammar of bash reads them.

Nothing is expanded here. What bash would refuse is read as far as it goes, but for a quote that
nothing closes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tree_sitter import Language, Node

Span = tuple[int, int]
MAX_DEPTH = 24
"""Of quotes and defaults in each other; what stands deeper is not looked into."""
_CHUNK = 4096
_READ_AGAIN = 8
"""Times that the parser may look at a text, on average."""
_ODD = re.compile(r"[^\t\n -~]")
_NO_WORDS = re.compile(r"\$\((?:[^()]|\([^()]*+\))*+\)|([;&|<>()])")
_LITERAL = re.compile(r"\\(\r?\n|.|$)|[^\\]+", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(\[[@*]\])?(?:(:?[-=])|(?=\}))", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPECIAL = re.compile(r"[0-9@*#?$!-]")
_LONE = re.compile(r"(?<!\$)\$(?=\s|$)")
_QUOTES = {"string": '"', "translated_string": '"', "raw_string": "'", "ansi_c_string": "'"}
_UNKNOWN = ("command_substitution", "process_substitution")
_EXPANSIONS = ("simple_expansion", "expansion", "arithmetic_expansion", *_UNKNOWN)
WORDS = (
    *("word", "number", "concatenation", "variable_name", "special_variable_name", "regex"),
    *("test_operator", "brace_expression", "extglob_pattern", *_EXPANSIONS, *_QUOTES),
)
"""Nodes that are words of commands."""


class UnclosedError(Exception):
    """A quote that nothing closes; a shell refuses the text."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(at)


class TangledError(Exception):
    """A text that the parser would read again and again."""


class Quote(NamedTuple):
    """A quoted text: its sign, and where what stands between the signs begins and ends."""

    sign: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a word: literal text, or something the shell would replace."""

    kind: str
    """``text``, ``variable``, ``arithmetic``, ``unknown``."""
    text: str
    """Literal text, the name of a variable, a sum, or what is not understood as it is written."""
    span: Span
    quote: Quote | None = None
    is_quoted: bool = False
    subscript: str = ""
    """``[@]`` or ``[*]`` where all words of an array are meant."""
    sign: str = ""
    """What stands between a variable and its default."""
    default: tuple["Piece", ...] = ()


@dataclass(frozen=True, kw_only=True)
class Token:
    """A word of a command, or the assignment of a variable or an array."""

    pieces: tuple[Piece, ...]
    span: Span
    name: str = ""
    """Of the variable, where the word assigns one."""
    appends: bool = False
    elements: tuple["Token", ...] | None = None
    """Of an array."""

    @property
    def text(self) -> str:
        """The word as it is written, without its quotes."""
        return "".join(piece.text for piece in self.pieces)


def parsed(text: str) -> "Node":
    """The root of a script's tree, whose places are those of the characters.

    Raises UnclosedError, and TangledError for a text that is made to take long.
    """
    from tree_sitter import Parser

    plain = text.replace("\\\r\n", " \\\n").replace("\r\n", "\n\n").replace("\r", " ")
    data = _LONE.sub("%", _ODD.sub("%", plain)).encode("ascii")
    left = (len(data) // _CHUNK + 100) * _READ_AGAIN

    def chunk(at: int, _: object) -> bytes:
        nonlocal left
        left -= 1
        return data[at : at + _CHUNK]

    try:
        root = Parser(_language()).parse(chunk, progress_callback=lambda *_: left < 0).root_node
    except ValueError:
        raise TangledError from None
    if root.has_error or "$'" in text:
        _refuse_unclosed(root, text)
    return root


@cache
def _language() -> "Language":
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def _refuse_unclosed(root: "Node", text: str) -> None:
    """A quote is not closed where the last of its sign begins a text."""
    for last in (r"(?s).*(')", r"(?s).*(?<!\\)(')", r'(?s).*(?<!\\)(")'):
        found = re.match(last, text)
        node = root.descendant_for_byte_range(*found.span(1)) if found else None
        if found is None or node is None:
            continue
        at, parent = found.start(1), node.parent
        if (
            (node.type == "ERROR" and node.child_count == 0)
            or (node.type == "ansi_c_string" and node.start_byte + 1 == at)
            or (node.type in ('"', "'") and parent is not None and _is_open(parent))
        ):
            raise UnclosedError(at)


def _is_open(node: "Node") -> bool:
    return node.type == "ERROR" or node.children[-1].is_missing


_BRANCHES = ("if_statement", "case_statement", "while_statement", "for_statement")


def branches_in(text: str) -> tuple[Span, ...]:
    """What need not run, or not once: branches, loops, and what stands behind ``&&`` and ``||``.

    Raises what :func:`parsed` does.
    """
    found, stack = [], [parsed(text)]
    while stack:
        node = stack.pop()
        stack += node.children
        if node.type in _BRANCHES:
            found.append((node.start_byte, node.end_byte))
        elif node.type == "list":
            found.append((node.children[-1].start_byte, node.children[-1].end_byte))
    return tuple(found)


def words_in(text: str) -> tuple[Token, ...]:
    """All words of a list of arguments: line ends only separate them; raises UnclosedError."""
    head, tail = "A=(", "\n\n)"
    masked = _NO_WORDS.sub(lambda found: "%" if found[1] else found[0], text)
    try:
        root = parsed(f"{head}{masked}{tail}")
    except UnclosedError as error:
        raise UnclosedError(error.at - len(head)) from None
    return _tokens_below(Tokens(text=text, shift=-len(head)), root)


def _tokens_below(tokens: "Tokens", root: "Node") -> tuple[Token, ...]:
    found, stack = [], [root]
    while stack:
        node = stack.pop()
        if node.type in WORDS and 0 <= node.start_byte + tokens.shift < len(tokens.text):
            found.append(tokens.word(node))
        else:
            stack += reversed(node.children)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Makes words of the nodes of a tree."""

    text: str
    shift: int = 0
    """From a place in the tree to one in the text."""

    def word(self, node: "Node") -> Token:
        """The word that a node stands for."""
        pieces = tuple(self._pieces(node, None, 0))
        return Token(pieces=pieces, span=self._span(node))

    def assignment(self, node: "Node") -> Token | None:
        """What ``NAME=VALUE`` or ``NAME=(VALUES)`` assigns; None for an element of an array."""
        name, sign, *values = node.children
        if name.type != "variable_name":
            return None
        if not _NAME.fullmatch(self._text(name)):
            start, end = self._span(node)
            pieces = tuple(self._between(values, start, end, None, 0))
            return Token(pieces=pieces, span=(start, end))
        array = next((each for each in values if each.type == "array"), None)
        words = (each for each in array.children if each.type in WORDS) if array else None
        return Token(
            pieces=tuple(piece for each in values for piece in self._pieces(each, None, 0)),
            span=self._span(node),
            name=self._text(name),
            appends=sign.type == "+=",
            elements=None if words is None else tuple(map(self.word, words)),
        )

    def _span(self, node: "Node") -> Span:
        """A node's place; in quotes the parser counts blanks before an expansion with it."""
        start = node.start_byte + self.shift
        end = min(node.end_byte + self.shift, len(self.text))
        while start < end and self.text[start].isspace():
            start += 1
        return start, end

    def _text(self, node: "Node") -> str:
        start, end = self._span(node)
        return self.text[start:end]

    def _pieces(self, node: "Node", quote: Quote | None, depth: int) -> Iterator[Piece]:
        start, end = self._span(node)
        if node.type == "array":
            return
        if depth > MAX_DEPTH or node.type in _UNKNOWN:
            yield self._unknown(start, end, quote)
        elif node.type in _EXPANSIONS:
            piece = self._expansion(node, quote, depth)
            yield piece
            yield from self._escaped(piece.span[1], end, quote)
        elif node.type in _QUOTES:
            sign = _QUOTES[node.type]
            start, end = start + 1 + (self.text[start] == "$"), end - 1
            own = Quote(sign, start, end)
            if start == end:
                yield self._literal(start, end, own)
            elif sign == '"':
                yield from self._between(node.children[1:-1], start, end, own, depth)
            else:
                yield self._literal(start, end, own)
        else:
            parts = node.children if node.type == "concatenation" else []
            yield from self._between(parts, start, end, quote, depth)

    def _between(
        self, nodes: "list[Node]", start: int, end: int, quote: Quote | None, depth: int
    ) -> Iterator[Piece]:
        """Expansions and quotes, and the literal text around them."""
        for node in nodes:
            first, last = self._span(node)
            is_more = node.type in ("concatenation", *_EXPANSIONS, *_QUOTES)
            if is_more and start <= first < last <= end:
                yield from self._escaped(start, first, quote)
                yield from self._pieces(node, quote, depth + 1)
                start = last
        yield from self._escaped(start, end, quote)

    def _escaped(self, start: int, end: int, quote: Quote | None) -> Iterator[Piece]:
        """Literal text whose backslashes count."""
        if start < end and self.text.find("\\", start, end) < 0:
            yield self._literal(start, end, quote)
            return
        for found in _LITERAL.finditer(self.text, start, end):
            first, last = found.span()
            after = found[1]
            if after is None:
                yield self._literal(first, last, quote)
            elif after.endswith("\n") or not after:
                if quote:
                    yield self._literal(first, last, quote, " ")
            else:
                keeps = quote is not None and after not in '"\\$`'
                yield self._literal(first, last, quote, "\\" + after if keeps else after)

    def _literal(
        self, start: int, end: int, quote: Quote | None, escaped: str | None = None
    ) -> Piece:
        text = self.text[start:end] if escaped is None else escaped
        is_quoted = quote is not None or escaped is not None
        span = (start, end)
        return Piece(kind="text", text=text, span=span, quote=quote, is_quoted=is_quoted)

    def _expansion(self, node: "Node", quote: Quote | None, depth: int) -> Piece:
        start, end = self._span(node)
        written, is_quoted = self.text[start:end], quote is not None
        if node.type == "arithmetic_expansion" and written.startswith("$(("):
            inner = written[3:-2]
            return Piece(
                kind="arithmetic", text=inner, span=(start, end), quote=quote, is_quoted=is_quoted
            )
        if node.type == "simple_expansion":
            known = _NAME.match(written, 1)
            found = known or _SPECIAL.match(written, 1)
            name = found[0] if found else written[1:]
            return Piece(
                kind="variable" if known else "unknown",
                text=name if known else f"${{{name}}}",
                span=(start, start + 1 + len(name)),
                quote=quote,
                is_quoted=is_quoted,
            )
        found = _VARIABLE.match(written)
        if found is None:
            return self._unknown(start, end, quote)
        name, subscript, sign = found.groups()
        first = start + found.end()
        parts = [each for each in node.children if self._span(each)[0] >= first]
        default = self._between(parts, first, end - 1, None, depth) if sign else ()
        return Piece(
            kind="variable",
            text=name,
            span=(start, end),
            quote=quote,
            is_quoted=is_quoted,
            subscript=subscript or "",
            sign=sign or "",
            default=tuple(default),
        )

    def _unknown(self, start: int, end: int, quote: Quote | None) -> Piece:
        text = self.text[start:end]
        is_quoted = quote is not None
        return Piece(kind="unknown", text=text, span=(start, end), quote=quote, is_quoted=is_quoted)

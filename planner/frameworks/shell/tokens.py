"""Words of shell text with their places: what is read, before anything is expanded.

Only what launch scripts are made of is understood; the rest is kept as it stands and marked.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Span = tuple[int, int]
_BREAKS = " \t\r\n;&|<>()"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_SINGLE_QUOTED = re.compile(r"'[^']*+'|\$'(?:[^'\\]|\\.)*+'", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")


class UnclosedError(Exception):
    """A quote that nothing closes; a shell refuses the text."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(at)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a word: literal text, or something the shell would replace."""

    kind: str
    """``text``, ``variable``, ``arithmetic``, ``unknown``."""
    text: str
    span: Span
    is_quoted: bool = False


@dataclass(frozen=True, kw_only=True)
class Token:
    """A word of a command, or the assignment of an array."""

    pieces: tuple[Piece, ...]
    span: Span
    name: str = ""
    """Of the variable, where the word assigns one."""
    appends: bool = False
    elements: tuple["Token", ...] | None = None
    """Of an array."""


@dataclass(kw_only=True)
class _Cursor:
    text: str
    at: int = 0
    heredocs: list[str] = field(default_factory=list)

    def looks_at(self, prefix: str) -> bool:
        return self.text.startswith(prefix, self.at)

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.text)

    @property
    def char(self) -> str:
        return self.text[self.at]


def commands(text: str) -> Iterator[list[Token]]:
    """The simple commands of a script in order; control structures and ``;;`` count as words.

    Raises UnclosedError.
    """
    cursor = _Cursor(text=text)
    found: list[Token] = []
    while not cursor.is_done:
        if _skip_blank(cursor):
            continue
        if cursor.char in "\n;&|()":
            start = cursor.at
            if cursor.char == "\n":
                _skip_heredocs(cursor)
            ends_case = cursor.looks_at(";;")
            cursor.at += 2 if ends_case else 1
            if found:
                yield found
            found = []
            if ends_case:
                span = (start, cursor.at)
                yield [Token(pieces=(Piece(kind="text", text=";;", span=span),), span=span)]
        elif cursor.char in "<>":
            _skip_redirection(cursor, found)
        else:
            found.append(_token(cursor))
    if found:
        yield found


def words_in(text: str) -> list[Token]:
    """All words of a list of arguments: line ends only separate them; raises UnclosedError."""
    cursor = _Cursor(text=text)
    found: list[Token] = []
    while not cursor.is_done:
        if cursor.char == "\n":
            cursor.at += 1
        elif not _skip_blank(cursor):
            found.append(_token(cursor, breaks=" \t\r\n"))
    return found


def pieces_in(text: str, start: int) -> tuple[Piece, ...]:
    """Pieces of a text that stands inside an expansion, from ``start`` on in the source.

    Raises UnclosedError.
    """
    cursor = _Cursor(text=text)
    pieces = _pieces(cursor, breaks="")
    return tuple(
        Piece(
            kind=piece.kind,
            text=piece.text,
            span=(piece.span[0] + start, piece.span[1] + start),
            is_quoted=piece.is_quoted,
        )
        for piece in pieces
    )


def _skip_blank(cursor: _Cursor) -> bool:
    """Skip one blank, continuation or comment; whether there was one."""
    if cursor.char in " \t\r":
        cursor.at += 1
    elif cursor.looks_at("\\\n"):
        cursor.at += 2
    elif cursor.looks_at("\\\r\n"):
        cursor.at += 3
    elif cursor.char == "#":
        end = cursor.text.find("\n", cursor.at)
        cursor.at = len(cursor.text) if end < 0 else end
    else:
        return False
    return True


def _skip_redirection(cursor: _Cursor, found: list[Token]) -> None:
    if found and found[-1].span[1] == cursor.at and found[-1].pieces:
        last = found[-1].pieces
        if len(last) == 1 and last[0].kind == "text" and last[0].text.isdigit():
            found.pop()
    is_heredoc = cursor.looks_at("<<") and not cursor.looks_at("<<<")
    while not cursor.is_done and cursor.char in "<>&|":
        cursor.at += 1
    if is_heredoc and not cursor.is_done and cursor.char == "-":
        cursor.at += 1
    while not cursor.is_done and cursor.char in " \t":
        cursor.at += 1
    if not cursor.is_done and cursor.char not in _BREAKS:
        target = _token(cursor)
        if is_heredoc:
            cursor.heredocs.append("".join(piece.text for piece in target.pieces))


def _skip_heredocs(cursor: _Cursor) -> None:
    """At a line end: move to the last line end before the text after all here-documents."""
    for delimiter in cursor.heredocs:
        while True:
            start = cursor.at + 1
            end = cursor.text.find("\n", start)
            line = cursor.text[start : len(cursor.text) if end < 0 else end]
            cursor.at = len(cursor.text) if end < 0 else end
            if end < 0 or line.strip() == delimiter:
                break
    cursor.heredocs.clear()


def _token(cursor: _Cursor, breaks: str = _BREAKS) -> Token:
    start = cursor.at
    assigned = _ASSIGNMENT.match(cursor.text, start)
    if assigned and cursor.text.startswith("(", assigned.end()) and "(" in breaks:
        cursor.at = assigned.end() + 1
        return Token(
            pieces=(),
            name=assigned[1],
            appends=bool(assigned[2]),
            elements=tuple(_elements(cursor)),
            span=(start, cursor.at),
        )
    if assigned:
        cursor.at = assigned.end()
    pieces = tuple(_pieces(cursor, breaks))
    if not pieces and not assigned:
        cursor.at += 1
    return Token(
        pieces=pieces,
        name=assigned[1] if assigned else "",
        appends=bool(assigned and assigned[2]),
        span=(start, cursor.at),
    )


def _elements(cursor: _Cursor) -> Iterator[Token]:
    while not cursor.is_done:
        if cursor.char == ")":
            cursor.at += 1
            return
        if cursor.char == "\n":
            cursor.at += 1
        elif not _skip_blank(cursor):
            start = cursor.at
            pieces = tuple(_pieces(cursor, _BREAKS))
            if not pieces:
                cursor.at += 1
                continue
            yield Token(pieces=pieces, span=(start, cursor.at))


def _pieces(cursor: _Cursor, breaks: str) -> Iterator[Piece]:
    """Pieces up to a break outside quotes."""
    quoted, opened = False, 0
    while not cursor.is_done:
        char, start = cursor.char, cursor.at
        if char == '"':
            quoted, opened = not quoted, start
            cursor.at += 1
            yield Piece(kind="text", text="", span=(start, start), is_quoted=True)
        elif not quoted and cursor.text.startswith(("'", "$'"), start):
            yield _single_quoted(cursor)
        elif char == "\\":
            yield from _escape(cursor, quoted)
        elif char in "$`":
            yield _expansion(cursor, quoted)
        elif not quoted and char in breaks:
            return
        else:
            stops = '"\\$`' if quoted else "\"'\\$`" + breaks
            end = start + 1
            while end < len(cursor.text) and cursor.text[end] not in stops:
                end += 1
            cursor.at = end
            yield Piece(
                kind="text", text=cursor.text[start:end], span=(start, end), is_quoted=quoted
            )
    if quoted:
        raise UnclosedError(opened)


def _single_quoted(cursor: _Cursor) -> Piece:
    found = _SINGLE_QUOTED.match(cursor.text, cursor.at)
    if found is None:
        raise UnclosedError(cursor.at)
    cursor.at = found.end()
    start, end = found.start() + found[0].index("'") + 1, found.end() - 1
    return Piece(kind="text", text=cursor.text[start:end], span=(start, end), is_quoted=True)


def _escape(cursor: _Cursor, quoted: bool) -> Iterator[Piece]:
    start = cursor.at
    following = cursor.text[start + 1 : start + 2]
    cursor.at += 2
    if following == "\r" and cursor.text[start + 2 : start + 3] == "\n":
        cursor.at += 1
        following = "\n"
    if following in ("\n", ""):
        if quoted:
            yield Piece(kind="text", text=" ", span=(start, cursor.at), is_quoted=True)
        return
    keeps = quoted and following not in '"\\$`'
    text = "\\" + following if keeps else following
    yield Piece(kind="text", text=text, span=(start, start + 2), is_quoted=True)


def _expansion(cursor: _Cursor, quoted: bool) -> Piece:
    start, text = cursor.at, cursor.text
    kind, inner = "unknown", ""
    if text.startswith("$((", start):
        cursor.at = _closing(text, start + 1, "(", ")")
        kind, inner = "arithmetic", text[start + 3 : max(start + 3, cursor.at - 2)]
    elif text.startswith("$(", start):
        cursor.at = _closing(text, start + 1, "(", ")")
    elif text.startswith("${", start):
        cursor.at = _closing(text, start + 1, "{", "}")
        kind, inner = "variable", text[start + 2 : max(start + 2, cursor.at - 1)]
    elif text[start] == "`":
        end = text.find("`", start + 1)
        cursor.at = len(text) if end < 0 else end + 1
    else:
        name = _NAME.match(text, start + 1)
        cursor.at = name.end() if name else start + 1
        kind, inner = ("variable", name[0]) if name else ("text", "$")
    whole = inner if kind != "unknown" else text[start : cursor.at]
    return Piece(kind=kind, text=whole, span=(start, cursor.at), is_quoted=quoted)


def _closing(text: str, start: int, opening: str, closing: str) -> int:
    """Behind the bracket that closes the one at ``start``; the end where there is none."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return at + 1
    return len(text)

"""What written words of a script stand for: variables, defaults and sums put in.

Every character keeps its place in the file, so that a word can be found and edited where it was
written.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from planner.frameworks.shell.arithmetic import MAX_SUM, evaluated
from planner.frameworks.shell.branches import Variables
from planner.frameworks.shell.tokens import Piece, Span, Token, pieces_in
from planner.frameworks.shell.word import Word, split_words

MAX_CHARACTERS = 2_000_000
"""Of all words together: variables that double themselves end here."""
MAX_DEPTH = 8
"""Of defaults inside defaults."""
_VARIABLE = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)


class TooLongError(Exception):
    """The words of a script grow beyond MAX_CHARACTERS."""


@dataclass(kw_only=True)
class State(Variables):
    """Variables, which of them are exported, and how many characters may still be made."""

    exported: dict[str, None] = field(default_factory=dict)
    budget: int = MAX_CHARACTERS

    def spend(self, length: int) -> None:
        """Note a text that was made; raises TooLongError."""
        self.budget -= length + 1
        if self.budget < 0:
            raise TooLongError


def text_of(token: Token) -> str:
    """A word as it is written, without its quotes."""
    return "".join(piece.text for piece in token.pieces)


def assign(state: State, token: Token) -> None:
    """Set the variable that a word assigns."""
    name = token.name
    if token.elements is not None:
        before = state.arrays.get(name, ()) if token.appends else ()
        added = tuple(word for each in token.elements for word in expand(state, each))
        state.spend(len(before))
        state.arrays[name] = (*before, *added)
        return
    value = _joined(state, token.pieces, 0)
    if token.appends and name in state.scalars:
        value = _glued([state.scalars[name], value])
        state.spend(len(value.text))
    state.scalars[name] = value


def expand(state: State, token: Token) -> Iterator[Word]:
    """The words that a written word stands for."""
    if token.name and token.elements is None:
        start = token.span[0]
        head = f"{token.name}{'+' if token.appends else ''}="
        yield _glued([_literal(head, start), _joined(state, token.pieces, 0)])
        return
    fields: list[list[Word]] = []
    is_open = False
    for piece in token.pieces:
        parts = _fields(state, piece)
        for at, part in enumerate(parts):
            if is_open and at == 0:
                fields[-1].append(part)
            else:
                fields.append([part])
        is_open = bool(parts) or is_open
    words = [_glued(parts) for parts in fields]
    if len(words) == 1 and not _is_list(token):
        words = [_at_site(words[0], token)]
    yield from words


def _is_list(token: Token) -> bool:
    return any(
        piece.kind == "variable" and (found := _VARIABLE.fullmatch(piece.text)) and found[2]
        for piece in token.pieces
    )


def _at_site(word: Word, token: Token) -> Word:
    keeps = any(char.isspace() for char in word.text)
    site = None if keeps else token.span
    return Word(text=word.text, spans=word.spans, unknown=word.unknown, site=site)


def _fields(state: State, piece: Piece) -> list[Word]:
    """What a piece adds: one part, or several where it is split into words."""
    if piece.kind == "variable":
        found = _VARIABLE.fullmatch(piece.text)
        if found and found[2] and found[1] in state.arrays:
            words = list(state.arrays[found[1]])
            state.spend(sum(len(word.text) for word in words) + len(words))
            return words if piece.is_quoted else [part for each in words for part in _split(each)]
    value = _value(state, piece, 0)
    return [value] if piece.kind == "text" or piece.is_quoted else list(_split(value))


def _split(value: Word) -> Sequence[Word]:
    """The words of a value that stands without quotes."""
    return split_words(value) if re.search(r"\s", value.text) else (value,)


def _joined(state: State, pieces: Iterable[Piece], depth: int) -> Word:
    return _glued([_value(state, piece, depth) for piece in pieces])


def _value(state: State, piece: Piece, depth: int) -> Word:
    """The text of a piece; a single word's place is that of the piece."""
    if piece.kind == "text":
        return _literal(piece.text, piece.span[0], piece.span)
    value: Word | None = None
    if piece.kind == "variable":
        value = _variable(state, piece, depth)
    elif piece.kind == "arithmetic":
        value = _arithmetic(state, piece)
    if value is None:
        raw = piece.text if piece.kind == "unknown" else _written(piece)
        return Word(text=raw, spans=(piece.span,) * len(raw), unknown=(raw,))
    state.spend(len(value.text))
    if re.search(r"\s", value.text):
        return value
    return Word(text=value.text, spans=(piece.span,) * len(value.text), unknown=value.unknown)


def _written(piece: Piece) -> str:
    return f"$(({piece.text}))" if piece.kind == "arithmetic" else f"${{{piece.text}}}"


def _variable(state: State, piece: Piece, depth: int) -> Word | None:
    found = _VARIABLE.fullmatch(piece.text)
    if not found or depth > MAX_DEPTH:
        return None
    name, _, sign, default = found.groups()
    if name in state.scalars and (state.scalars[name].text or sign not in (":-", ":=")):
        return state.scalars[name]
    if name in state.arrays:
        return _spaced(state.arrays[name])
    if sign is None:
        return None
    start = piece.span[1] - 1 - len(default)
    value = _joined(state, pieces_in(default, start), depth + 1)
    if sign in ("=", ":="):
        state.scalars[name] = value
    return value


def _arithmetic(state: State, piece: Piece) -> Word | None:
    number = evaluated(piece.text, {name: word.text for name, word in _named(state, piece)})
    if number is None:
        return None
    return Word(text=str(number), spans=(piece.span,) * len(str(number)))


def _named(state: State, piece: Piece) -> Iterator[tuple[str, Word]]:
    for name in set(re.findall(r"[A-Za-z_]\w*", piece.text[:MAX_SUM])):
        if name in state.scalars:
            yield name, state.scalars[name]


def _literal(text: str, start: int, span: Span | None = None) -> Word:
    if span and span[1] - span[0] != len(text):
        return Word(text=text, spans=(span,) * len(text))
    return Word(text=text, spans=tuple((start + i, start + i + 1) for i in range(len(text))))


def _spaced(words: Sequence[Word]) -> Word:
    gap = Word(text=" ", spans=((0, 0),))
    parts = [part for word in words for part in (gap, word)]
    return _glued(parts[1:])


def _glued(parts: Sequence[Word]) -> Word:
    return Word(
        text="".join(part.text for part in parts),
        spans=tuple(span for part in parts for span in part.spans),
        unknown=tuple(name for part in parts for name in part.unknown),
    )

"""What written words of a script stand for: variables, defaults and sums put in.

Every character keeps its place in the file, so that a word can be found and edited where it was
written.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.formats.shell.arithmetic import MAX_SUM, evaluated
from planner.formats.shell.branches import Variables
from planner.formats.shell.syntax import Piece, Token
from planner.formats.shell.word import Origin, Word, split_words

MAX_CHARACTERS = 2_000_000
"""Of all words together: variables that double themselves end here."""
_NOTHING = Word(text="", spans=())


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


def assign(state: State, token: Token) -> None:
    """Set the variable that a word assigns."""
    name = token.name
    if token.elements is not None:
        before = state.arrays.get(name, ()) if token.appends else ()
        added = tuple(word for each in token.elements for word in expand(state, each))
        state.spend(len(before))
        state.arrays[name] = (*before, *added)
        return
    value = _joined(state, token.pieces)
    if token.appends and name in state.scalars:
        value = _glued([state.scalars[name], value])
        state.spend(len(value.text))
    state.scalars[name] = value


def expand(state: State, token: Token) -> Iterator[Word]:
    """The words that a written word stands for."""
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
    words = [parts[0] if len(parts) == 1 else _glued(parts) for parts in fields]
    if len(words) == 1 and not any(piece.subscript for piece in token.pieces):
        words = [_at_site(words[0], token)]
    yield from words


def _at_site(word: Word, token: Token) -> Word:
    keeps = any(char.isspace() for char in word.text)
    return replace(word, site=None if keeps else token.span)


def _fields(state: State, piece: Piece) -> list[Word]:
    """What a piece adds: one part, or several where it is split into words."""
    if piece.subscript and piece.text in state.arrays:
        words = list(state.arrays[piece.text])
        state.spend(sum(len(word.text) for word in words) + len(words))
        return words if piece.is_quoted else [part for each in words for part in _split(each)]
    value = _value(state, piece)
    return [value] if piece.kind == "text" or piece.is_quoted else list(_split(value))


def _split(value: Word) -> Sequence[Word]:
    """The words of a value that stands without quotes."""
    return split_words(value) if re.search(r"\s", value.text) else (value,)


def _joined(state: State, pieces: Iterable[Piece]) -> Word:
    return _glued([_value(state, piece) for piece in pieces])


def _value(state: State, piece: Piece) -> Word:
    """The text of a piece; a single word's place is that of the piece."""
    if piece.kind == "text":
        return _literal(piece)
    value: Word | None = None
    if piece.kind == "variable":
        value = _variable(state, piece)
    elif piece.kind == "arithmetic":
        value = _arithmetic(state, piece)
    if value is None:
        raw = _written(piece)
        return Word(
            text=raw,
            spans=(piece.span,) * len(raw),
            unknown=(raw,),
            origins=(Origin(*piece.span, piece.quote),) * len(raw),
        )
    state.spend(len(value.text))
    if re.search(r"\s", value.text):
        return value
    return replace(value, spans=(piece.span,) * len(value.text), site=None)


def _written(piece: Piece) -> str:
    if piece.kind == "unknown":
        return piece.text
    if piece.kind == "arithmetic":
        return f"$(({piece.text}))"
    return f"${{{piece.text}{piece.subscript}}}"


def _variable(state: State, piece: Piece) -> Word | None:
    name, sign = piece.text, piece.sign
    if name in state.scalars and (state.scalars[name].text or sign not in (":-", ":=")):
        return state.scalars[name]
    if name in state.arrays:
        return _spaced(state.arrays[name])
    if not sign:
        return None
    value = _joined(state, piece.default)
    if sign in ("=", ":="):
        state.scalars[name] = value
    return value


def _arithmetic(state: State, piece: Piece) -> Word | None:
    names = set(re.findall(r"[A-Za-z_]\w*", piece.text[:MAX_SUM]))
    known = {name: state.scalars[name].text for name in names if name in state.scalars}
    number = evaluated(piece.text, known)
    if number is None:
        return None
    text, origin = str(number), Origin(*piece.span, piece.quote)
    return Word(text=text, spans=(piece.span,) * len(text), origins=(origin,) * len(text))


def _literal(piece: Piece) -> Word:
    (start, end), size = piece.span, len(piece.text)
    if not size:
        return _NOTHING
    spans = [(start + at, start + at + 1) for at in range(size)]
    if end - start != size:
        spans = [piece.span] * size
    origins = tuple(Origin(*span, piece.quote) for span in spans)
    return Word(text=piece.text, spans=tuple(spans), origins=origins)


def _spaced(words: Sequence[Word]) -> Word:
    gap = Word(text=" ", spans=((0, 0),), origins=(Origin(0, 0, None),))
    parts = [part for word in words for part in (gap, word)]
    return _glued(parts[1:])


def _glued(parts: Sequence[Word]) -> Word:
    return Word(
        text="".join(part.text for part in parts),
        spans=tuple(span for part in parts for span in part.spans),
        unknown=tuple(name for part in parts for name in part.unknown),
        origins=tuple(origin for part in parts for origin in part.origins),
    )

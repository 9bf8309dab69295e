"""Words of scripts and of files of arguments, variables put in, without running anything.

Assignments are taken in order, whatever conditions they stand under. Every character keeps its
place in the file, so that a word can be found and edited where it was written.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from planner.errors import InputError
from planner.frameworks.format import SourceText
from planner.frameworks.shell.arithmetic import MAX_SUM, evaluated
from planner.frameworks.shell.branches import Branches, Variables
from planner.frameworks.shell.conditions import holds
from planner.frameworks.shell.tokens import (
    Piece,
    Span,
    Token,
    UnclosedError,
    commands,
    pieces_in,
    words_in,
)
from planner.frameworks.shell.word import Word, split_words

MAX_CHARACTERS = 2_000_000
"""Of all words together: variables that double themselves end here."""
MAX_DEPTH = 8
"""Of defaults inside defaults."""
_VARIABLE = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)
_LEFT = re.compile(r"\$\{\w+\}|\$\w+")
"""What the shell that gets a command line would replace."""
_LEAVES = ("exit", "return")
_EXPORTS = ("export", "declare", "typeset", "readonly", "local")


class _TooLongError(Exception):
    """The words of a script grow beyond MAX_CHARACTERS."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Words of a command, and variables set for it alone."""

    words: tuple[Word, ...]
    environment: dict[str, Word]


@dataclass(kw_only=True)
class Script:
    """A script whose words are known."""

    commands: list[Command]
    environment: dict[str, Word]
    """Exported variables."""
    variables: dict[str, Word] = field(default_factory=dict)
    """All that hold a text, at the end."""

    def lines_in_variables(self) -> Iterator[tuple[Word, ...]]:
        """Command lines that variables hold: a script may hand them on in ways not understood."""
        for word in self.variables.values():
            if " " in word.text:
                yield from _commands_in(split_words(word))


@dataclass(kw_only=True)
class _State(Variables):
    exported: dict[str, None] = field(default_factory=dict)
    budget: int = MAX_CHARACTERS

    def spend(self, length: int) -> None:
        self.budget -= length + 1
        if self.budget < 0:
            raise _TooLongError


def read_script(source: SourceText) -> Script:
    """The commands of a script.

    Raises InputError where a quote is not closed or variables grow without end.
    """
    state = _State()
    with _refusing(source):
        found = list(_commands(state, source.text))
    exported = {name: state.scalars[name] for name in state.exported if name in state.scalars}
    return Script(commands=found, environment=exported, variables=state.scalars)


def read_words(source: SourceText) -> tuple[Word, ...]:
    """Words of a list of arguments in which no variable is known; raises InputError."""
    state = _State()
    with _refusing(source):
        return tuple(word for token in words_in(source.text) for word in _expand(state, token))


@contextmanager
def _refusing(source: SourceText) -> Iterator[None]:
    try:
        yield
    except UnclosedError as error:
        where = f"line {line_numbers(source.text).at(error.at)}"
        raise InputError.single(source.path, where, "a quote is not closed") from None
    except _TooLongError:
        message = "variables that stand for each other grow without end"
        raise InputError.single(source.path, "", message) from None


def command_lines(command: Command) -> Iterator[tuple[Word, ...]]:
    """The command itself, and command lines that it hands on as one word (sh -c, eval)."""
    if command.words[0].text == "eval":
        yield from _commands_in(command.words[1:])
    else:
        yield command.words
    for word in command.words:
        if " " in word.text:
            yield from _commands_in(split_words(word))


def _commands_in(words: Iterable[Word]) -> Iterator[tuple[Word, ...]]:
    """The words between signs that end a command, where such a sign ends a word."""
    found: list[Word] = []
    for word in words:
        if word.text == "\\":
            continue
        head = word.text.rstrip(";&|")
        if head:
            size = len(head)
            left = tuple(dict.fromkeys((*word.unknown, *_LEFT.findall(head))))
            found.append(replace(word, text=head, spans=word.spans[:size], unknown=left))
        if len(head) < len(word.text):
            yield tuple(found)
            found = []
    yield tuple(found)


def branch_places(text: str) -> list[int]:
    """Where a script goes on with another branch: what stands on both sides is never run twice."""
    return [found.start() for found in re.finditer(r"(?m)^\s*(?:else|elif)\b|;;", text)]


def line_numbers(text: str) -> "Lines":
    """Finds the line of a place in the text."""
    return Lines(starts=[0, *(m.end() for m in re.finditer("\n", text))])


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Where the lines of a text begin."""

    starts: Sequence[int]

    def at(self, place: int) -> int:
        """The line of a place, from 1."""
        return bisect_right(self.starts, place)


def _commands(state: _State, text: str) -> Iterator[Command]:
    """The commands that may run; those of a branch that is passed over are left out."""
    branches = Branches(variables=state)
    condition: bool | None = None
    for tokens in commands(text):
        words, condition = _controlled(state, branches, tokens, condition)
        if words and branches.runs:
            first = _text(words[0])
            branches.passes(leaves=first in _LEAVES)
            if first == "*":
                branches.completes()
            for token in words:
                if token.name:
                    branches.assigns(token.name, keeps=token.appends or _repeats(token))
            if command := _command(state, words):
                yield command


def _controlled(
    state: _State, branches: Branches, tokens: Sequence[Token], condition: bool | None
) -> tuple[Sequence[Token], bool | None]:
    """A command without the words that control it, and whether the test in it holds."""
    for at, token in enumerate(tokens):
        word = _plain(token)
        if word in ("fi", "esac"):
            branches.end(word)
        elif word == ";;":
            branches.turn("esac")
        elif word == "case":
            branches.begin("esac")
            return (), None
        elif word in ("if", "elif"):
            branches.begin("fi") if word == "if" else branches.turn("fi")
            test = tokens[at + 1 :]
            return test, holds([each for one in test for each in _expand(state, one)])
        elif word == "then":
            branches.decide(condition)
        elif word == "else":
            branches.turn("fi", is_last=True)
        elif word not in ("do", "{", "!", "time"):
            return tokens[at:], None
    return (), None


def _plain(token: Token) -> str:
    """The text of a word that is written without quotes or variables."""
    is_plain = len(token.pieces) == 1 and token.pieces[0].kind == "text" and not token.name
    return token.pieces[0].text if is_plain and not token.pieces[0].is_quoted else ""


def _repeats(token: Token) -> bool:
    """Whether what a variable is set to holds what it held."""
    pieces = [piece for each in (token, *(token.elements or ())) for piece in each.pieces]
    own = (token.name, f"{token.name}[@]", f"{token.name}[*]")
    return any(piece.kind == "variable" and piece.text in own for piece in pieces)


def _command(state: _State, tokens: Sequence[Token]) -> Command | None:
    own: dict[str, Word] = {}
    first = 0
    exports = _text(tokens[0]) in _EXPORTS
    is_exported = exports and _text(tokens[0]) != "local"
    for token in tokens[exports:]:
        if not token.name and not exports:
            break
        first += 1
        name = token.name or _text(token)
        if token.name:
            _assign(state, token)
        if is_exported:
            state.exported[name] = None
        if token.name and token.elements is None:
            own[token.name] = state.scalars[token.name]
    rest = tokens[exports + first :]
    if not rest:
        return None
    words = tuple(word for token in rest for word in _expand(state, token))
    return Command(words=words, environment=own) if words else None


def _text(token: Token) -> str:
    return "".join(piece.text for piece in token.pieces)


def _assign(state: _State, token: Token) -> None:
    name = token.name
    if token.elements is not None:
        before = state.arrays.get(name, ()) if token.appends else ()
        added = tuple(word for each in token.elements for word in _expand(state, each))
        state.spend(len(before))
        state.arrays[name] = (*before, *added)
        return
    value = _joined(state, token.pieces, 0)
    if token.appends and name in state.scalars:
        value = _glued([state.scalars[name], value])
        state.spend(len(value.text))
    state.scalars[name] = value


def _expand(state: _State, token: Token) -> Iterator[Word]:
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


def _fields(state: _State, piece: Piece) -> list[Word]:
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


def _joined(state: _State, pieces: Iterable[Piece], depth: int) -> Word:
    return _glued([_value(state, piece, depth) for piece in pieces])


def _value(state: _State, piece: Piece, depth: int) -> Word:
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


def _variable(state: _State, piece: Piece, depth: int) -> Word | None:
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


def _arithmetic(state: _State, piece: Piece) -> Word | None:
    number = evaluated(piece.text, {name: word.text for name, word in _named(state, piece)})
    if number is None:
        return None
    return Word(text=str(number), spans=(piece.span,) * len(str(number)))


def _named(state: _State, piece: Piece) -> Iterator[tuple[str, Word]]:
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

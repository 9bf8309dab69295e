"""Commands of scripts and words of files of arguments, without running anything.

Assignments count in order; those under conditions where the test is known or all branches agree.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from planner.errors import InputError
from planner.frameworks.format import SourceText
from planner.frameworks.shell.branches import Branches
from planner.frameworks.shell.conditions import holds
from planner.frameworks.shell.expansion import State, TooLongError, assign, expand, text_of
from planner.frameworks.shell.tokens import Token, UnclosedError, commands, words_in
from planner.frameworks.shell.word import Word, split_words

_LEFT = re.compile(r"\$\{\w+\}|\$\w+")
"""What the shell that gets a command line would replace."""
_LEAVES = ("exit", "return")
_EXPORTS = ("export", "declare", "typeset", "readonly", "local")


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


def read_script(source: SourceText) -> Script:
    """The commands of a script.

    Raises InputError where a quote is not closed or variables grow without end.
    """
    state = State()
    with _refusing(source):
        found = list(_commands(state, source.text))
    exported = {name: state.scalars[name] for name in state.exported if name in state.scalars}
    return Script(commands=found, environment=exported, variables=state.scalars)


def read_words(source: SourceText) -> tuple[Word, ...]:
    """Words of a list of arguments in which no variable is known; raises InputError."""
    state = State()
    with _refusing(source):
        return tuple(word for token in words_in(source.text) for word in expand(state, token))


@contextmanager
def _refusing(source: SourceText) -> Iterator[None]:
    try:
        yield
    except UnclosedError as error:
        where = f"line {line_numbers(source.text).at(error.at)}"
        raise InputError.single(source.path, where, "a quote is not closed") from None
    except TooLongError:
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


def _commands(state: State, text: str) -> Iterator[Command]:
    """The commands that may run; those of a branch that is passed over are left out."""
    branches = Branches(variables=state)
    condition: bool | None = None
    for tokens in commands(text):
        words, condition = _controlled(state, branches, tokens, condition)
        if words and branches.runs:
            first = text_of(words[0])
            branches.passes(leaves=first in _LEAVES)
            if first == "*":
                branches.completes()
            for token in words:
                if token.name:
                    branches.assigns(token.name, keeps=token.appends or _repeats(token))
            if command := _command(state, words):
                yield command


def _controlled(
    state: State, branches: Branches, tokens: Sequence[Token], condition: bool | None
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
            return test, holds([each for one in test for each in expand(state, one)])
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


def _command(state: State, tokens: Sequence[Token]) -> Command | None:
    own: dict[str, Word] = {}
    first = 0
    exports = text_of(tokens[0]) in _EXPORTS
    is_exported = exports and text_of(tokens[0]) != "local"
    for token in tokens[exports:]:
        if not token.name and not exports:
            break
        first += 1
        name = token.name or text_of(token)
        if token.name:
            assign(state, token)
        if is_exported:
            state.exported[name] = None
        if token.name and token.elements is None:
            own[token.name] = state.scalars[token.name]
    rest = tokens[exports + first :]
    if not rest:
        return None
    words = tuple(word for token in rest for word in expand(state, token))
    return Command(words=words, environment=own) if words else None

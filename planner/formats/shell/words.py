"""Commands of scripts and words of files of arguments, without running anything.

Assignments count in order; those under conditions where the test is known or all branches agree.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.shell.branches import Branches, Held
from planner.formats.shell.conditions import holds
from planner.formats.shell.expansion import State, TooLongError, assign, expand
from planner.formats.shell.syntax import (
    WORDS,
    TangledError,
    Token,
    Tokens,
    UnclosedError,
    parsed,
    words_in,
)
from planner.formats.shell.word import Word, split_words

if TYPE_CHECKING:
    from tree_sitter import Node

_LEFT = re.compile(r"\$\{\w+\}|\$\w+")
"""What the shell that gets a command line would replace."""
_LEAVES = ("exit", "return")
_CONTROL = ("if", "then", "elif", "else", "fi", "case", ";;", ";&", ";;&", "esac")
_COMMANDS = (
    *("command", "declaration_command", "unset_command"),
    *("variable_assignment", "variable_assignments"),
)
_JOINED = ("list", "pipeline", "negated_command", "subshell", "compound_statement")
"""Commands whose result is not that of one test."""
_REDIRECTIONS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
_PASSED = (*WORDS, "comment", "heredoc_body", "array", "subscript")
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
        found = list(_Reader(state, source.text).commands())
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
    except TangledError:
        message = "the text is tangled so that it takes too long to read"
        raise InputError.single(source.path, "", message) from None
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
            spans, origins = word.spans[:size], word.origins[:size]
            found.append(replace(word, text=head, spans=spans, unknown=left, origins=origins))
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


class _Reader:
    """Goes through the tree of a script in the order of its text."""

    def __init__(self, state: State, text: str) -> None:
        self.state = state
        self.branches = Branches(variables=state)
        self.tokens = Tokens(text=text)
        self.text = text
        self.is_test = False
        """Whether a condition begins here."""
        self.condition: bool | None = None

    def commands(self) -> Iterator[Command]:
        """The commands that may run; those of a branch that is passed over are left out."""
        stack: list[Node | list[Token]] = [parsed(self.text)]
        while stack:
            node = stack.pop()
            if isinstance(node, list):
                yield from self._run(node)
            elif node.type in _CONTROL and not node.is_named:
                self._control(node.type)
            elif node.type == "test_command":
                yield from self._test(node)
            elif node.type in _COMMANDS:
                yield from self._run(self._words(node))
                stack += [each for each in reversed(node.children) if each.type in _JOINED]
            elif node.type not in _PASSED:
                if node.type in _JOINED:
                    self.is_test, self.condition = False, None
                elif node.type == "case_item":
                    self._begin_item(node)
                elif node.type == "for_statement":
                    self._forget(node)
                stack += reversed(self._parts(node))

    def _parts(self, node: "Node") -> "list[Node | list[Token]]":
        """What stands below a node; words that belong to no command are one, line by line."""
        if node.type == "redirected_statement" and node.children[0].type == "command":
            heres = [each for each in node.children if each.type == "heredoc_redirect"]
            nested = [each for each in node.children[0].children if each.type in _JOINED]
            return [self._words(node), *nested, *(part for each in heres for part in each.children)]
        found: list[Node | list[Token]] = []
        for child in node.children:
            if node.type != "ERROR" or child.type not in (*WORDS, "variable_assignment"):
                found.append(child)
                continue
            tokens = self._words(child)
            last = found[-1] if found else None
            if isinstance(last, list) and tokens:
                between = self.text[last[-1].span[1] : tokens[0].span[0]]
                if "\n" not in between.replace("\\\n", ""):
                    last += tokens
                    continue
            if tokens:
                found.append(tokens)
        return found

    def _words(self, node: "Node") -> list[Token]:
        """The words of a command, with those that stand behind a redirection."""
        found: list[Token] = []
        stack = [node]
        while stack:
            each = stack.pop()
            if each.type in WORDS or not each.child_count:
                found += [] if each.is_missing or each.is_error else [self.tokens.word(each)]
            elif each.type == "variable_assignment":
                assigned = self.tokens.assignment(each)
                found += [assigned] if assigned else []
            elif each.type in _REDIRECTIONS:
                words = [word for word in each.children if word.type in WORDS]
                stack += reversed(words[each.type != "heredoc_redirect" :])
            elif each is node or each.type not in _JOINED:
                stack += (part for part in reversed(each.children) if part.type != "comment")
        return found

    def _control(self, word: str) -> None:
        branches = self.branches
        if word in ("if", "elif"):
            branches.begin("fi") if word == "if" else branches.turn("fi")
            self.is_test, self.condition = True, None
        elif word == "then":
            branches.decide(self.condition)
        elif word == "else":
            branches.turn("fi", is_last=True)
        elif word == "case":
            branches.begin("esac")
        elif word in ("fi", "esac"):
            branches.end(word)
        else:
            branches.turn("esac")

    def _begin_item(self, node: "Node") -> None:
        self.branches.passes(leaves=False)
        if any(self.text[each.start_byte : each.end_byte] == "*" for each in node.children):
            self.branches.completes()

    def _forget(self, node: "Node") -> None:
        """The variable of a loop is one word after another."""
        name = next((each for each in node.children if each.type == "variable_name"), None)
        if name is not None and self.branches.runs:
            written = self.text[name.start_byte : name.end_byte]
            self.branches.assigns(written, keeps=False)
            self.branches.variables.hold(written, Held())

    def _test(self, node: "Node") -> Iterator[Command]:
        """A test as a command, and whether it holds."""
        is_first = self.is_test
        found = list(self._run(self._words(node)))
        self.condition = holds(found[0].words) if is_first and found else None
        yield from found

    def _run(self, tokens: list[Token]) -> Iterator[Command]:
        self.is_test, self.condition = False, None
        if not tokens or not self.branches.runs:
            return
        self.branches.passes(leaves=tokens[0].text in _LEAVES)
        for token in tokens:
            if token.name:
                self.branches.assigns(token.name, keeps=token.appends or _repeats(token))
        if command := _command(self.state, tokens):
            yield command


def _repeats(token: Token) -> bool:
    """Whether what a variable is set to holds what it held."""
    pieces = [piece for each in (token, *(token.elements or ())) for piece in each.pieces]
    return any(
        piece.kind == "variable" and piece.text == token.name and not piece.sign for piece in pieces
    )


def _command(state: State, tokens: Sequence[Token]) -> Command | None:
    own: dict[str, Word] = {}
    first = 0
    exports = tokens[0].text in _EXPORTS
    is_exported = exports and tokens[0].text != "local"
    for token in tokens[exports:]:
        if not token.name and not exports:
            break
        first += 1
        name = token.name or token.text
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

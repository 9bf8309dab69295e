"""Commands of scripts and words of files of arguments, with the lines of their places."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.shell.commands import Command, Shell
from planner.formats.shell.expansion import WORDS, TooLongError, Words
from planner.formats.shell.syntax import TangledError, UnclosedError, parsed
from planner.formats.shell.word import Part, Word

_NO_WORDS = re.compile(r"\$\((?:[^()]|\([^()]*+\))*+\)|([;&|<>()])")


@dataclass(kw_only=True)
class Script:
    """A script whose words are known."""

    commands: list[Command]
    environment: dict[str, Word]
    """Exported variables."""
    variables: dict[str, Word] = field(default_factory=dict)
    """All that hold a text, at the end."""

    def kept(self) -> list[Command]:
        """Commands that variables hold: a script may hand them on in ways not understood."""
        found: list[Command] = []
        for word in self.variables.values():
            if re.search(r"\s", word.text):
                line = tuple(
                    part._replace(text=part.text.replace("\n", " ")) for part in word.parts
                )
                shell = Shell(source=word, commands=found)
                shell.hand_on(Word(parts=line), dict(self.variables), ())
        return found


def read_script(source: SourceText) -> Script:
    """The commands of a script.

    Raises InputError where a quote is not closed or variables grow without end.
    """
    with _refusing(source):
        return _script(source.text)


@lru_cache(maxsize=8)
def _script(text: str) -> Script:
    shell = Shell(source=_whole(text))
    shell.run_all()
    texts = {name: each for name, each in shell.values.items() if isinstance(each, Word)}
    exported = {name: texts[name] for name in shell.exported if name in texts}
    return Script(commands=shell.commands, environment=exported, variables=texts)


def read_words(source: SourceText) -> tuple[Word, ...]:
    """Words of a list of arguments in which no variable is known; raises InputError.

    Line ends only separate them, as in an array's brackets; other signs of the shell are text.
    """
    head, tail = "A=(", "\n\n)"
    masked = _NO_WORDS.sub(lambda found: "%" if found[1] else found[0], source.text)
    words = Words(source=_whole(source.text), shift=-len(head))
    found: list[Word] = []
    with _refusing(source, shift=-len(head)):
        stack = [parsed(f"{head}{masked}{tail}")]
        while stack:
            node = stack.pop()
            if node.type in WORDS and len(head) <= node.start_byte < len(head) + len(masked):
                found += words.words(node)
            else:
                stack += reversed(node.children)
    return tuple(found)


def _whole(text: str) -> Word:
    span = (0, len(text))
    return Word(parts=(Part(text, span, span),))


@contextmanager
def _refusing(source: SourceText, shift: int = 0) -> Iterator[None]:
    try:
        yield
    except UnclosedError as error:
        where = f"line {line_numbers(source.text).at(error.at + shift)}"
        raise InputError.single(source.path, where, "a quote is not closed") from None
    except TangledError as error:
        raise InputError.single(source.path, "", str(error)) from None
    except TooLongError:
        message = "variables that stand for each other grow without end"
        raise InputError.single(source.path, "", message) from None


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

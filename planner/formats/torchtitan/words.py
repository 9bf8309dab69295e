"""Finds torchtitan's own words, and the launcher's, in a script or a file of arguments."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from planner.formats.format import SourceText
from planner.formats.shell.launched import launcher_values
from planner.formats.shell.word import Word
from planner.formats.shell.words import command_lines, read_script, read_words

ENTRY = re.compile(r"(^|[/.])(torchtitan\.train|train\.py|run_train\.sh)$")
"""Behind this word of a command stand torchtitan's own."""
WRAPPER = "run_train.sh"
POLICY_WORD = re.compile(r"activation[-_]checkpoint:(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a file hands to torchtitan."""

    words: tuple[Word, ...]
    launcher: tuple[Word, ...] = ()
    """Before the program: torchrun and its own words."""
    environment: Mapping[str, Word] = field(default_factory=dict)
    """Variables that a script sets for the program."""
    program: Word | None = None
    """What a script starts torchtitan by; None where the file holds words only."""

    @property
    def is_wrapped(self) -> bool:
        """Whether the program is torchtitan's script, which takes variables."""
        return self.program is not None and self.program.text.endswith(WRAPPER)


def words_of(source: SourceText) -> Words:
    """Return torchtitan's words of a file.

    In a script they stand behind the program, at the first place where a launcher starts it if
    there is one, or are those of the command that has most options; any other file holds nothing
    else. Raises InputError where the file cannot be read as words.
    """
    if _starts_with_option(source.text):
        return Words(words=read_words(source))
    script = read_script(source)
    lines = [(each, line) for each in script.commands for line in command_lines(each)]
    starts = [
        Words(
            words=line[at + 1 :],
            launcher=line[:at],
            environment={**script.environment, **command.environment},
            program=line[at],
        )
        for command, line in lines
        for at in islice((i for i, word in enumerate(line) if ENTRY.search(word.text)), 1)
    ]
    if starts:
        launched = (each for each in starts if any(launcher_values(each.launcher)))
        return next(launched, starts[0])
    _, best = max(lines, key=lambda each: _num_options(each[1]), default=(None, ()))
    first = next((i for i, word in enumerate(best) if is_option(word.text)), 0)
    return Words(words=best[first:], launcher=best[:first])


def is_option(text: str) -> bool:
    """Whether a word is an option, or the one that chooses a policy."""
    return text.startswith("--") or POLICY_WORD.fullmatch(text) is not None


def _num_options(words: tuple[Word, ...]) -> int:
    return sum(is_option(word.text) for word in words)


def _starts_with_option(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return is_option(next((line for line in lines if line and line[0] != "#"), "").split(" ")[0])

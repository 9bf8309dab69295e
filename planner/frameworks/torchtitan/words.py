"""Finds torchtitan's own words, and the launcher's, in a script or a file of arguments."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.frameworks.format import SourceText
from planner.frameworks.shell.words import Word, command_lines, read_script, read_words

ENTRY = re.compile(r"(^|[/.])(torchtitan\.train|train\.py|run_train\.sh)$")
"""Behind this word of a command stand torchtitan's own."""
POLICY_WORD = re.compile(r"activation[-_]checkpoint:(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a file hands to torchtitan."""

    words: tuple[Word, ...]
    launcher: tuple[Word, ...] = ()
    """Before the program: torchrun and its own words."""
    environment: Mapping[str, Word] = field(default_factory=dict)
    """Variables that a script sets for the program."""
    names_program: bool = False
    """Whether the file is a script that starts torchtitan."""


def words_of(source: SourceText) -> Words:
    """Return torchtitan's words of a file.

    In a script they stand behind the program, or are those of the command that has most options;
    any other file holds nothing else. Raises InputError where the file cannot be read as words.
    """
    if _starts_with_option(source.text):
        return Words(words=read_words(source))
    script = read_script(source)
    lines = [(each, line) for each in script.commands for line in command_lines(each)]
    for command, line in lines:
        at = next((i for i, word in enumerate(line) if ENTRY.search(word.text)), None)
        if at is not None:
            return Words(
                words=line[at + 1 :],
                launcher=line[:at],
                environment={**script.environment, **command.environment},
                names_program=True,
            )
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

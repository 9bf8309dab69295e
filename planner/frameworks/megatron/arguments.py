"""Finds Megatron's own words, and the launcher's, in a launch script or an args file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from planner.errors import InputError
from planner.frameworks.format import SourceText
from planner.frameworks.megatron.options import load_options
from planner.frameworks.megatron.shell import (
    Command,
    TooLongError,
    Word,
    expand_all,
    read_script,
    split_words,
)
from planner.frameworks.megatron.shell_words import words_in

SCRIPT_ENDS = (".py", "}/pretrain_gpt", "TRAIN_SCRIPT}")
MAX_LENGTH = 4_000_000
"""Characters of a file that is read at all."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a file hands to Megatron."""

    words: tuple[Word, ...]
    """Behind the training script."""
    launcher: tuple[Word, ...] = ()
    """Before it: torchrun and its own words."""
    script: Word | None = None
    """The training script; None in an args file."""
    environment: dict[str, Word] = field(default_factory=dict)


def find_arguments(source: SourceText) -> Arguments:
    """Megatron's words of a file; InputError where the file runs no training script."""
    text = source.text
    if len(text) > MAX_LENGTH:
        raise InputError.single(source.path, "", f"longer than {MAX_LENGTH} characters")
    try:
        if is_args_file(text):
            return Arguments(words=expand_all(words_in(text)))
        script = read_script(text)
        found = [arguments for each in script.commands for arguments in _of_command(each)]
    except TooLongError:
        message = "variables that stand for each other grow without end"
        raise InputError.single(source.path, "", message) from None
    if not found:
        message = "no command runs a training script with Megatron options"
        raise InputError.single(source.path, "", message)
    best = max(found, key=lambda arguments: num_known(arguments.words))
    return Arguments(
        words=best.words,
        launcher=best.launcher,
        script=best.script,
        environment=script.environment | best.environment,
    )


def is_args_file(text: str) -> bool:
    """Whether the first word of a file is an option."""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return stripped.startswith("--")
    return False


def num_known(words: Sequence[Word]) -> int:
    """How many words are options of Megatron."""
    options = load_options()
    return sum(word.text.partition("=")[0] in options for word in words)


def _of_command(command: Command) -> Iterator[Arguments]:
    for words in _lines_of(command.words):
        at = next((i for i, word in enumerate(words) if _is_script(word.text)), None)
        if at is not None and num_known(words[at + 1 :]):
            yield Arguments(
                words=tuple(words[at + 1 :]),
                launcher=tuple(words[:at]),
                script=words[at],
                environment=command.environment,
            )


def _is_script(text: str) -> bool:
    return text.endswith(SCRIPT_ENDS) and not any(char.isspace() for char in text)


def _lines_of(words: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """The command itself, and command lines that it hands on as one word (sh -c, eval)."""
    yield tuple(words)
    for word in words:
        if " " in word.text and ".py" in word.text:
            yield split_words(word)

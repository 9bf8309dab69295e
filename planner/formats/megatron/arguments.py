"""Finds Megatron's own words in a launch script or an args file, and groups them as options."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.megatron.model_args import is_model_args, model_args
from planner.formats.megatron.options import is_option, load_options
from planner.formats.shell.commands import Command
from planner.formats.shell.edit import Arguments, Entry
from planner.formats.shell.word import Word, split_words
from planner.formats.shell.words import read_script, read_words

SCRIPT_ENDS = (".py", "}/pretrain_gpt", "TRAIN_SCRIPT}")


def find_arguments(source: SourceText) -> tuple[Arguments, Sequence[Arguments]]:
    """Megatron's words of a file, and those of all its commands.

    Raises InputError where it cannot be read or runs no training script.
    """
    if is_args_file(source.text):
        return Arguments(words=read_words(source), is_list=True), ()
    if is_model_args(source.text):
        words, environment = model_args(source)
        return Arguments(words=words, environment=environment), ()
    script = read_script(source)
    found = list(_of(script.commands))
    found = found or [replace(each, is_kept=True) for each in _of(script.kept())]
    if not found:
        message = "no command runs a training script with Megatron options"
        raise InputError.single(source.path, "", message)
    best = max(found, key=lambda arguments: num_known(word.text for word in arguments.words))
    return replace(best, environment={**script.environment, **best.environment}), found


def is_args_file(text: str) -> bool:
    """Whether the first word of a file is an option."""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return stripped.startswith("--")
    return False


def num_known(words: Iterable[str]) -> int:
    """How many words are options of Megatron."""
    options = load_options()
    return sum(word.partition("=")[0] in options for word in words)


def _of(commands: Iterable[Command]) -> Iterator[Arguments]:
    for command in commands:
        words = command.words
        at = next((i for i, word in enumerate(words) if _is_script(word)), None)
        if at is not None and num_known(word.text for word in words[at + 1 :]):
            yield Arguments(
                words=words[at + 1 :],
                launcher=(*command.outer, *words[:at]),
                program=words[at],
                environment=command.environment,
                is_read_twice=command.is_read_twice,
            )


def _is_script(word: Word) -> bool:
    return word.text.endswith(SCRIPT_ENDS) and len(split_words(word)) == 1


def grouped(
    words: Sequence[Word], line_at: Callable[[int], int]
) -> tuple[list[Entry], list[Entry]]:
    """Options as Megatron's parser makes them, and words that belong to none."""
    options: list[Entry] = []
    strays: list[Entry] = []
    known, at = load_options(), 0
    while at < len(words):
        word = words[at]
        at += 1
        name, sign, joined = word.text.partition("=")
        line = line_at(word.start)
        if not is_option(word.text):
            strays.append(Entry(word=word, name=word.text, line=line))
            continue
        end, option = at, known.get(name)
        if not sign and (option is None or option.takes_values):
            most = 1 if option and not option.nargs else len(words)
            while end < len(words) and end - at < most and not is_option(words[end].text):
                end += 1
        values, at = tuple(words[at:end]), end
        options.append(
            Entry(word=word, values=values, name=name, joined=joined if sign else None, line=line)
        )
    return options, strays

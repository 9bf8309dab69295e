"""Puts a plan's decisions into an existing script or args file, everything else as it was."""

import shlex
from collections.abc import Callable, Iterator, Mapping

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.frameworks.format import SourceText
from planner.frameworks.megatron.choice import Choice
from planner.frameworks.megatron.emit import TITLE, line_of
from planner.frameworks.megatron.entries import Entries, Entry
from planner.frameworks.megatron.model_args import is_model_args
from planner.frameworks.megatron.options import load_options
from planner.frameworks.megatron.owned import is_owned
from planner.frameworks.megatron.read import entries_in, read
from planner.frameworks.megatron.reasons import layout_reasons, refuse
from planner.frameworks.megatron.table import decision_choices
from planner.frameworks.megatron.yaml_config import is_yaml_config
from planner.frameworks.shell.launched import KEPT, processes_edit
from planner.frameworks.shell.word import Word
from planner.spec.strategy import Strategy

Edit = tuple[int, int, str]
Quote = Callable[[str], str]


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions in it.

    Raises ExpressError where the strategy cannot be expressed or where a decision is computed in
    a way that cannot be edited, InputError where the file cannot be read.
    """
    refuse(TITLE, layout_reasons(context, strategy))
    if is_yaml_config(source.text) or is_model_args(source.text):
        raise ExpressError(f"{source.path}: {TITLE}'s YAML files are read, not written")
    arguments, entries = entries_in(source)
    if arguments.is_kept:
        raise ExpressError(f"{source.path}: {KEPT}")
    wanted = {choice.option: choice for choice in decision_choices(context, strategy)}
    for quote in (shlex.quote, str):
        edits = [
            *_kept_and_dropped(source, entries, wanted, quote),
            *processes_edit(source, arguments.launcher, strategy.num_gpus),
            *_added(source, entries, wanted, quote),
        ]
        text = _edited(source.text, edits)
        if _holds(SourceText(path=source.path, text=text), wanted, strategy):
            return text
    raise ExpressError(f"{source.path}: its decisions are computed; write them as plain words")


def _kept_and_dropped(
    source: SourceText, entries: Entries, wanted: Mapping[str, Choice], quote: Quote
) -> Iterator[Edit]:
    seen: set[str] = set()
    for entry in entries.options:
        choice = wanted.get(entry.name)
        is_free = choice is None and not is_owned(entry.name, entry.texts)
        if is_free or (choice is None and _says_default(entry)):
            continue
        if choice is None or entry.name in seen:
            yield from _removal(source, entry)
        elif entry.texts != list(choice.words) or entry.unknown:
            yield from _change(source, entry, choice, quote)
        seen.add(entry.name)


def _says_default(entry: Entry) -> bool:
    """Whether it is an option with the value that Megatron takes without it."""
    option = load_options()[entry.name]
    return option.takes_values and entry.texts == [option.default]


def _place(source: SourceText, word: Word) -> tuple[int, int]:
    if word.place is None:
        raise ExpressError(f"{source.path}: {word.text[:60]!r} is put together from variables")
    return word.place


def _removal(source: SourceText, entry: Entry) -> Iterator[Edit]:
    places = [_place(source, word) for word in (entry.word, *entry.values)]
    start, end = places[0][0], places[-1][1]
    between = source.text[places[0][1] : places[-1][0]]
    if len(places) == 1 or not between.strip(" \t"):
        places = [(start, end)]
    for start, end in places:
        yield (*_with_blanks(source.text, start, end), "")


def _with_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    """A word with the blanks before it, or with its line where it stands alone in it."""
    first, last = start, end
    while first > 0 and text[first - 1] in " \t":
        first -= 1
    while last < len(text) and text[last] in " \t":
        last += 1
    begins = first == 0 or text[first - 1] == "\n"
    is_continued = text[max(first - 2, 0) : first] == "\\\n"
    if begins and not is_continued and text[last : last + 1] == "\n":
        return first, last + 1
    return (first, end) if not begins and text[first - 1] not in "(\"'" else (start, end)


def _change(source: SourceText, entry: Entry, choice: Choice, quote: Quote) -> Iterator[Edit]:
    value = " ".join(map(quote, choice.words))
    if entry.joined is not None:
        start, end = _place(source, entry.word)
        sign = "=" if len(choice.words) == 1 else " "
        yield start, end, f"{choice.option}{sign}{value}"
        return
    if not entry.values:
        _, end = _place(source, entry.word)
        yield end, end, f" {value}"
        return
    first = _place(source, entry.values[0])
    yield *first, value
    for word in entry.values[1:]:
        start, end = _place(source, word)
        yield (*_with_blanks(source.text, start, end), "")


def _added(
    source: SourceText, entries: Entries, wanted: Mapping[str, Choice], quote: Quote
) -> Iterator[Edit]:
    """New options go behind the last option that is there."""
    present = {entry.name for entry in entries.options}
    missing = [choice for name, choice in wanted.items() if name not in present]
    if not missing or not entries.options:
        return
    last = entries.options[-1]
    _, end = _place(source, last.values[-1] if last.values else last.word)
    lines = [" ".join([c.option, *map(quote, c.words)]) for c in missing]
    starts_line = source.text.rfind("\n", 0, end) + 1
    if source.text[starts_line:end].lstrip().startswith("--") and _is_plain(source.text):
        yield end, end, "".join(f"\n{line_of(choice)}" for choice in missing)
    else:
        yield end, end, "".join(f" {line}" for line in lines)


def _is_plain(text: str) -> bool:
    return text.lstrip().startswith("--")


def _edited(text: str, edits: list[Edit]) -> str:
    """The text with all edits; they do not overlap."""
    parts, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        parts += [text[at : max(start, at)], new]
        at = max(at, end)
    return "".join([*parts, text[at:]])


def _holds(source: SourceText, wanted: Mapping[str, Choice], strategy: Strategy) -> bool:
    """Whether the file, read again, holds just these decisions."""
    _, entries = entries_in(source)
    found = {
        entry.name: entry.texts
        for entry in entries.options
        if entry.name in wanted or (is_owned(entry.name, entry.texts) and not _says_default(entry))
    }
    num_gpus = read(source).decisions.get("num_gpus")
    launched = num_gpus is None or num_gpus.value == strategy.num_gpus
    return launched and found == {name: list(choice.words) for name, choice in wanted.items()}

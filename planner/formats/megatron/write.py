"""Puts a plan's decisions into an existing script or args file, everything else as it was."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.megatron.arguments import is_args_file
from planner.formats.megatron.choice import Choice
from planner.formats.megatron.emit import TITLE, line_of
from planner.formats.megatron.entries import Entries, Entry
from planner.formats.megatron.model_args import is_model_args
from planner.formats.megatron.options import load_options
from planner.formats.megatron.owned import is_owned
from planner.formats.megatron.read import entries_in, read
from planner.formats.megatron.reasons import layout_reasons, refuse
from planner.formats.megatron.table import decision_choices
from planner.formats.megatron.yaml_config import is_yaml_config
from planner.formats.shell.launched import KEPT, processes_edit
from planner.formats.shell.syntax import Span, branches_in
from planner.formats.shell.word import Word, respelled
from planner.spec.strategy import Strategy

Edit = tuple[int, int, str]
Quote = Callable[[str], str]
Where = Callable[[Word, str], Edit | None]
"""Another place than that of the word to make it another text."""


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
    others = _others(entries, wanted)
    branches = () if is_args_file(source.text) else branches_in(source.text)
    for where in (_where_made(branches), _where_used):
        for quote in (shlex.quote, str):
            edits = [
                *_kept_and_dropped(source, entries, wanted, quote, where),
                *processes_edit(source, arguments.launcher, strategy.num_gpus),
                *_added(source, entries, wanted, quote, branches),
            ]
            written = SourceText(path=source.path, text=_edited(source.text, edits))
            _, after = entries_in(written)
            if _others(after, wanted) == others and _holds(written, after, wanted, strategy):
                return written.text
    added = " ".join(line for choice in wanted.values() for line in _words_of(choice, shlex.quote))
    raise ExpressError(
        f"{source.path}: its decisions are computed; write them as plain words: {added}"
    )


def _others(entries: Entries, wanted: Mapping[str, Choice]) -> list[tuple[str, list[str]]]:
    """Options that are no decision of a plan; an edit leaves them as they are."""
    return [
        (entry.name, entry.texts)
        for entry in entries.options
        if entry.name not in wanted and not is_owned(entry.name, entry.texts)
    ]


def _where_made(branches: Sequence[Span]) -> Where:
    """Where the value of a word is made, unless a branch may pass that by."""

    def where(word: Word, text: str) -> Edit | None:
        edit = respelled(word, text)
        return edit if edit and _depth(branches, edit[0]) <= _depth(branches, word.start) else None

    return where


def _where_used(_word: Word, _text: str) -> Edit | None:
    return None


def _depth(spans: Sequence[Span], at: int) -> int:
    """In how many branches a place lies."""
    return sum(start <= at < end for start, end in spans)


def _kept_and_dropped(
    source: SourceText,
    entries: Entries,
    wanted: Mapping[str, Choice],
    quote: Quote,
    where: Where,
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
            yield from _change(source, entry, choice, quote, where)
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


def _change(
    source: SourceText, entry: Entry, choice: Choice, quote: Quote, where: Where
) -> Iterator[Edit]:
    if len(entry.values) == len(choice.words) == 1 and entry.joined is None:
        made = where(entry.values[0], choice.words[0])
        if made is not None:
            yield made
            return
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
    source: SourceText,
    entries: Entries,
    wanted: Mapping[str, Choice],
    quote: Quote,
    branches: Sequence[Span],
) -> Iterator[Edit]:
    """New options go behind the last option that is there, of those in the fewest branches."""
    present = {entry.name for entry in entries.options}
    missing = [
        choice for name, choice in wanted.items() if name not in present and not _is_default(choice)
    ]
    if not missing or not entries.options:
        return
    ends = [entry.values[-1].end if entry.values else entry.word.end for entry in entries.options]
    depths = [_depth(branches, entry.word.start) for entry in entries.options]
    end = next(e for e, d in zip(ends[::-1], depths[::-1], strict=True) if d == min(depths))
    starts_line = source.text.rfind("\n", 0, end) + 1
    if source.text[starts_line:end].lstrip().startswith("--") and _is_plain(source.text):
        yield end, end, "".join(f"\n{line_of(choice)}" for choice in missing)
    else:
        lines = [" ".join(_words_of(choice, quote)) for choice in missing]
        yield end, end, "".join(f" {line}" for line in lines)


def _words_of(choice: Choice, quote: Quote) -> list[str]:
    return [choice.option, *map(quote, choice.words)]


def _is_default(choice: Choice) -> bool:
    """Whether Megatron does the same without it."""
    option = load_options().get(choice.option)
    return option is not None and option.takes_values and list(choice.words) == [option.default]


def _is_plain(text: str) -> bool:
    return text.lstrip().startswith("--")


def _edited(text: str, edits: list[Edit]) -> str:
    """The text with all edits; they do not overlap."""
    parts, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        parts += [text[at : max(start, at)], new]
        at = max(at, end)
    return "".join([*parts, text[at:]])


def _holds(
    source: SourceText, entries: Entries, wanted: Mapping[str, Choice], strategy: Strategy
) -> bool:
    """Whether the file, read again with these entries, holds just these decisions."""
    found = {
        entry.name: entry.texts
        for entry in entries.options
        if entry.name in wanted or (is_owned(entry.name, entry.texts) and not _says_default(entry))
    }
    num_gpus = read(source).decisions.get("num_gpus")
    launched = num_gpus is None or num_gpus.value == strategy.num_gpus
    asked = {
        name: list(choice.words)
        for name, choice in wanted.items()
        if name in found or not _is_default(choice)
    }
    return launched and found == asked

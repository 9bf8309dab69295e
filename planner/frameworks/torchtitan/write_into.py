"""Puts a plan's decisions into a file of words, with everything else left as it stands."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from planner.cost.context import Context
from planner.frameworks.format import SourceText
from planner.frameworks.torchtitan import decisions as key
from planner.frameworks.torchtitan.emit import Line, check, decided_lines
from planner.frameworks.torchtitan.known import POLICY, policies
from planner.frameworks.torchtitan.read import Option, options_in
from planner.frameworks.torchtitan.words import Words, words_of
from planner.spec.strategy import Strategy

OWNED = (
    key.SCHEDULE,
    key.MICRO_BATCH,
    key.PARTS,
    key.LAYERS,
    key.FIRST_LESS,
    key.LAST_LESS,
    key.SEQUENCE_PARALLEL,
    "parallelism.pipeline_parallel_schedule_csv",
    "compile.components",
)
"""Options that decide too, and are taken out where the plan has no word for them."""


@dataclass(frozen=True, kw_only=True)
class _Edit:
    start: int
    end: int
    text: str


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """Return the file with the strategy's decisions; raises ExpressError and InputError."""
    check(context, strategy, whole=False)
    words = words_of(source)
    given, _ = options_in(words.words)
    lines = {line.key: line for line in decided_lines(context, strategy)}
    edits = [*_changes(given, lines), *_additions(source.text, words, given, lines)]
    return _edited(source.text, edits)


def _changes(given: list[Option], lines: dict[str, Line]) -> Iterable[_Edit]:
    last = {option.key: option for option in given}
    dropped = _other_options(lines)
    for option in given:
        is_ours = option.key in lines
        if is_ours and last[option.key] is option and _stands_well(option):
            yield _Edit(start=option.word.start, end=option.end, text=lines[option.key].text)
        elif is_ours or option.key in OWNED or option.key in dropped:
            yield _Edit(start=option.word.start, end=option.end, text="")


def _stands_well(option: Option) -> bool:
    """An option behind the policy's word is refused: it moves."""
    return option.key == POLICY or not option.follows_policy


def _other_options(lines: dict[str, Line]) -> set[str]:
    """Options of policies that the plan's policy does not have."""
    chosen = lines[POLICY].words[0].partition(":")[2].replace("-", "_")
    every = {name for own in policies().values() for name in own}
    return every - set(policies()[chosen])


def _additions(
    text: str, words: Words, given: list[Option], lines: dict[str, Line]
) -> Iterable[_Edit]:
    last = {option.key: option for option in given}
    there = {name for name, option in last.items() if _stands_well(option)}
    new = [line for name, line in lines.items() if name not in there and name != POLICY]
    policy = next((option for option in given if option.key == POLICY), None)
    before = [option for option in given if not option.follows_policy]
    at = (
        policy.word.start
        if policy
        else max((each.end for each in before), default=_end(text, words))
    )
    gap = _gap(text, given)
    if policy:
        yield _Edit(start=at, end=at, text="".join(f"{line.text}{gap}" for line in new))
    else:
        every = [*new, lines[POLICY]]
        yield _Edit(start=at, end=at, text="".join(f"{gap}{line.text}" for line in every))


def _end(text: str, words: Words) -> int:
    return words.words[-1].end if words.words else len(text.rstrip("\n"))


def _gap(text: str, given: list[Option]) -> str:
    """What stands between the file's options: a space, a new line, a continued one."""
    for before, after in pairwise(given):
        between = text[before.end : after.word.start]
        if re.fullmatch(r"\s+|[ \t]*\\\r?\n[ \t]*", between):
            return between
    return " " if given else "\n"


def _edited(text: str, edits: list[_Edit]) -> str:
    for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
        if not edit.text:
            text = _without_empty_line(text, edit.start)
    return text


def _without_empty_line(text: str, position: int) -> str:
    start, end = text.rfind("\n", 0, position) + 1, text.find("\n", position)
    line = text[start : len(text) if end < 0 else end]
    is_continued = line.rstrip().endswith("\\")
    before = text[:start].rstrip().endswith("\\")
    if end >= 0 and (line.strip() == "\\" or (not line.strip() and not before)):
        return text[:start] + text[end + 1 :] if is_continued or not before else text
    return text

"""Puts a plan's decisions into a file of words, with everything else left as it stands."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.shell.launched import processes_edit
from planner.formats.torchtitan import decisions as key
from planner.formats.torchtitan.decisions import DECIDING
from planner.formats.torchtitan.emit import Line, check, decided_lines
from planner.formats.torchtitan.known import POLICY, policies
from planner.formats.torchtitan.read import Option, options_in
from planner.formats.torchtitan.words import words_of
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


_GAP = r"(?:[ \t\r\n]|\\\r?\n)*"
"""What may stand between the words of one option."""


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """An option and where it stands in the file, in one piece."""

    option: Option
    start: int
    end: int

    @property
    def key(self) -> str:
        return self.option.key


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """Return the file with the strategy's decisions.

    Raises ExpressError where the strategy cannot be expressed or a decision of the file is put
    together from pieces that cannot be edited, InputError where the file cannot be read.
    """
    check(context, strategy, whole=False)
    words = words_of(source)
    lines = {line.key: line for line in decided_lines(context, strategy)}
    given = list(_placed(source, options_in(words.words)[0]))
    edits = [*_changes(given, lines), *_additions(source.text, given, lines)]
    launched = processes_edit(source, words.launcher, strategy.num_gpus)
    return _edited(source.text, [*edits, *map(_Edit._make, launched)])


def _placed(source: SourceText, options: Iterable[Option]) -> Iterator[_Placed]:
    """Options with their places; those of no decision that stand in pieces are left out."""
    for option in options:
        places = [word.place for word in (option.word, *option.values)]
        whole = [place for place in places if place is not None]
        between = (source.text[a[1] : b[0]] for a, b in pairwise(whole) if a[1] <= b[0])
        joined = all(re.fullmatch(_GAP, gap) for gap in between)
        if len(whole) == len(places) and joined and whole == sorted(whole):
            yield _Placed(option=option, start=whole[0][0], end=whole[-1][1])
        elif option.key in DECIDING or option.key in OWNED:
            message = f"{option.spelled} is put together from pieces; write it as plain words"
            raise ExpressError(f"{source.path}: {message}")


def _changes(given: list[_Placed], lines: dict[str, Line]) -> Iterator[_Edit]:
    last = {each.key: each for each in given}
    dropped = _other_options(lines)
    for each in given:
        is_ours = each.key in lines
        if is_ours and last[each.key] is each and _stands_well(each):
            yield _Edit(each.start, each.end, lines[each.key].text)
        elif is_ours or each.key in OWNED or each.key in dropped:
            yield _Edit(each.start, each.end, "")


def _stands_well(placed: _Placed) -> bool:
    """An option behind the policy's word is refused: it moves."""
    return placed.key == POLICY or not placed.option.follows_policy


def _other_options(lines: dict[str, Line]) -> set[str]:
    """Options of policies that the plan's policy does not have."""
    chosen = lines[POLICY].words[0].partition(":")[2].replace("-", "_")
    every = {name for own in policies().values() for name in own}
    return every - set(policies()[chosen])


def _additions(text: str, given: list[_Placed], lines: dict[str, Line]) -> Iterator[_Edit]:
    last = {each.key: each for each in given}
    there = {name for name, each in last.items() if _stands_well(each)}
    new = [line for name, line in lines.items() if name not in there and name != POLICY]
    policy = next((each for each in given if each.key == POLICY), None)
    gap = _gap(text, given)
    if policy:
        added = "".join(f"{line.text}{gap}" for line in new)
        yield _Edit(policy.start, policy.start, added)
        return
    before = [each.end for each in given if not each.option.follows_policy]
    at = max(before, default=len(text.rstrip("\n")))
    yield _Edit(at, at, "".join(f"{gap}{line.text}" for line in (*new, lines[POLICY])))


def _gap(text: str, given: list[_Placed]) -> str:
    """What stands between the file's options: a space, a new line, a continued one."""
    for before, after in pairwise(given):
        between = text[before.end : after.start]
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

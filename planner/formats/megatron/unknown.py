"""Options that Megatron-LM 0.19.2 does not know: misspelt, of a fork, or the script's own.

``elsewhere.csv`` lists those of other releases (core 0.4 to the main branch of August 2026,
megatron/training/arguments.py and megatron/post_training/arguments.py) and of Megatron-DeepSpeed,
DeepSpeed's and BigScience's, each with what says the same in 0.19.2 where something does; and those
of ModelOpt, which Megatron-LM's scripts take where it is installed.
"""

import csv
from collections.abc import Sequence
from functools import cache
from importlib import resources

from planner.formats.finding import listed
from planner.formats.megatron.options import is_own_script, load_options, unknown_option
from planner.formats.shell.edit import Entry
from planner.formats.shell.reading import WordsReader
from planner.spelling import alike

VERSION = "0.19.2"
RELEASE, ADDED = "release", "ModelOpt"
FEW = 5
"""More unknown options than these are one finding."""
MAX_COMPARED = 100
"""Options that are compared with the known ones."""


@cache
def elsewhere() -> dict[str, tuple[str, str]]:
    """Whose an option is, and what stands for it in this release, by option."""
    path = resources.files("planner.formats.megatron").joinpath("elsewhere.csv")
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {row["option"]: (row["of"], row["instead"]) for row in rows}


def made_for(entries: Sequence[Entry]) -> str:
    """The Megatron whose options a file has where this release has none such; empty: this one."""
    found = {whose(entry) for entry in entries} - {"", ADDED}
    forks = sorted(found - {RELEASE})
    return forks[0] if forks else f"another release of Megatron-LM than {VERSION}" * bool(found)


def whose(entry: Entry) -> str:
    """Whose an option is that this release does not have; empty where that is not known."""
    return elsewhere().get(entry.name, ("", ""))[0]


def report_unknown(reader: WordsReader, entries: Sequence[Entry], script: str) -> None:
    """What is not known: an error in Megatron-LM's own script, else one note for all."""
    by_name: dict[str, Entry] = {}
    for entry in entries:
        if whose(entry) != ADDED:
            by_name.setdefault(entry.name, entry)
    others = list(by_name.values())
    if not others:
        return
    shown = listed([entry.name[:60] for entry in others])
    if fork := made_for(others):
        first = next(entry for entry in others if whose(entry))
        instead = [f"{one.name} is {new} today" for one in others if (new := _successor(one.name))]
        hint = f" ({listed(instead)})" if instead else ""
        message = f"is for {fork}: {shown}{hint}; not judged by the rules of {VERSION}"
        reader.report(first, "made_for", message, "note")
        return
    if not is_own_script(script):
        name = script.rpartition("/")[2][-60:]
        message = f"{shown}: not in Megatron-LM {VERSION}; {name} may add them"
        reader.report(others[0], "unknown_key", message, "note")
        return
    known = load_options()
    near = [entry for entry in others[:MAX_COMPARED] if alike(entry.name, known, 0.9)]
    far = [entry for entry in others if entry not in near]
    if len(far) > FEW:
        message = f"{len(far)} options that Megatron-LM {VERSION} does not have: "
        message += listed([entry.name[:60] for entry in far])
        reader.report(far[0], "unknown_key", message)
        far = []
    for entry in (*near, *far):
        reader.report(entry, "unknown_key", unknown_option(entry.name))


def _successor(name: str) -> str:
    return elsewhere()[name][1] if name in elsewhere() else ""

"""Results of earlier searches, kept in the user's cache folder."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import planner
from planner.cost.context import Context
from planner.documents.file import read_text, write_atomically
from planner.errors import InputError
from planner.search.ranking.goals import FASTEST_AT_MOST, Goal
from planner.search.search import FoundLayout, Progress, SearchResult, no_progress, search
from planner.search.space.narrow import Narrowing
from planner.spec.strategy import Strategy

# Searches that are kept, and bytes of each, usually 10,000: 32 MiB at most. Quicker ones are not
# worth a file.
MOST_KEPT, MOST_KEPT_BYTES = 256, 2**17
WORTH_KEEPING_S = 0.1


def remembered(
    context: Context,
    *,
    narrowing: Narrowing,
    goal: Goal = FASTEST_AT_MOST,
    time_limit_s: float | None = None,
    guess_s: float = float("inf"),
    progress: Progress = no_progress,
    **options: Any,  # noqa: ANN401 - the others of planner.search.search.search
) -> SearchResult:
    """The result of a search, or of the same one before, from the folder of the user's caches.

    The same is one of the same program with equal contexts, which hold what every file said. Only
    what was searched to the end is kept, as neither time limit nor guess is part of the question.
    ``PLANNER_CACHE=off``: nothing is read or written.
    """
    # Conditions of a narrowing are known by their texts, limits of a goal by their times.
    part = replace(narrowing, rules=(), allowed=frozenset())
    said = ([rule.name for rule in narrowing.rules], sorted(narrowing.allowed))
    longest_s = goal.longest_s(np.arange(1.0, context.cluster.num_accelerators + 1.0)).tobytes()
    aim = (goal.order, longest_s, sorted(options.items()))
    path = _entry(repr((planner.__version__, _sources(), context, part, said, aim)))
    known = path and _kept(path)
    if known:
        return known
    found = search(
        context,
        narrowing=narrowing,
        goal=goal,
        time_limit_s=time_limit_s,
        guess_s=guess_s,
        progress=progress,
        **options,
    )
    if path and found.is_complete and found.seconds >= WORTH_KEEPING_S:
        _keep(path, found)
    return found


def _entry(question: str) -> Path | None:
    """Path of a question's cached result; None if the cache is off or there is no home folder."""
    if os.environ.get("PLANNER_CACHE") == "off":
        return None
    with suppress(RuntimeError):
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return home / "planner" / f"{sha256(question.encode()).hexdigest()}.json"
    return None


@cache
def _sources() -> tuple[tuple[str, int], ...]:
    """Code and tables of rules: in a checkout they change under one version."""
    root = Path(planner.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".yaml"))
    return tuple((str(path), path.stat().st_mtime_ns) for path in files)


def _kept(path: Path) -> SearchResult | None:
    """Read a cached result; None if there is none or it cannot be read."""
    with suppress(InputError):
        digest, _, text = read_text(path, MOST_KEPT_BYTES).partition("\n")
        if digest == sha256(text.encode()).hexdigest():
            values = json.loads(text)
            fastest = values["fastest"] and _layout(values["fastest"])
            for name in ("plans", "frontier", "ladder"):
                values[name] = tuple(map(_layout, values[name]))
            return SearchResult(**values | {"fastest": fastest, "is_remembered": True})
    return None


def _layout(values: Mapping[str, Any]) -> FoundLayout:
    """A layout with its times, of which JSON holds tuples as lists."""
    fields = values["strategy"].items()
    strategy: Any = {name: tuple(it) if isinstance(it, list) else it for name, it in fields}
    return FoundLayout(**{**values, "strategy": Strategy(**strategy)})


def _keep(path: Path, found: SearchResult) -> None:
    """Keep what was found, as far as there is room for it; the oldest goes."""
    text = json.dumps(asdict(found), default=lambda number: number.item())
    if len(text) > MOST_KEPT_BYTES - 100:
        return
    with suppress(OSError, InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{sha256(text.encode()).hexdigest()}\n{text}")
        kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for oldest in kept[:-MOST_KEPT]:
            oldest.unlink(missing_ok=True)

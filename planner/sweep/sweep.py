"""A sweep: options with lists of values, the cells of their product, and the file that says so."""

import hashlib
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from planner import __version__
from planner.catalog import hwdb_dir, models_dir
from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model_details
from planner.documents.tree import load_yaml
from planner.errors import InputError, Problem, did_you_mean
from planner.limits import brief
from planner.notes import Problems
from planner.query.options import OPTIONS, PLACES, Option
from planner.query.query import Query
from planner.query.resolve import cluster_for_file, model_for_file, resolve
from planner.query.words import elsewhere

Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An option and its values, in the order of the file."""

    name: str  # as on the command line, without hyphens in front: seq-len
    # As they were read, None leaves the option out; and as keywords of a Query take them.
    values: Mapping[Value, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One question of a sweep."""

    values: tuple[Value, ...]  # by axis
    query: Query

    @property
    def command(self) -> str:
        """The command line that asks it."""
        _, _, *options = self.query.words()
        # Model and cluster as the file names them.
        return shlex.join(["planner", "plan", *map(str, self.values[: len(PLACES)]), *options])


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Every combination of the values of all axes; model and cluster are the first two."""

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        """Return the number of cells."""
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def size(self) -> str:
        """Axes with several values, in words: ``2 model × 4 seq-len``."""
        varying = [axis for axis in self.axes if len(axis.values) > 1] or self.axes[:2]
        return " × ".join(f"{len(axis.values)} {axis.name}" for axis in varying)

    def cells(self) -> Iterator[Cell]:
        """Yield all cells, the last axis fastest."""
        return map(self.cell, product(*(axis.values.items() for axis in self.axes)))

    def cell(self, chosen: Sequence[tuple[Value, Any]]) -> Cell:
        """Return the cell with these values, one of each axis."""
        values, keywords = zip(*chosen, strict=True)
        model, cluster, *options = keywords
        names = [axes_by_name()[axis.name].name for axis in self.axes[len(PLACES) :]]
        both = zip(names, options, strict=True)
        said = {name: keyword for name, keyword in both if keyword != ()}
        return Cell(values=values, query=Query.of(model, cluster, **said))


@cache
def axes_by_name() -> dict[str, Option]:
    """Return the options that may be axes, by the names that a file has for them."""
    return {each.flag.lstrip("-"): each for each in OPTIONS.values() if each.sweeps}


@cache
def fingerprint() -> str:
    """Return a hash of this planner: its release, and every file of its code and data."""
    digest = hashlib.sha256(__version__.encode())
    package = Path(__file__).resolve().parents[1]
    for folder in (package, hwdb_dir(), models_dir()):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".yaml", ".json", ".csv"):
                digest.update(f"{path.relative_to(folder.parent).as_posix()}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _content(model: str, cluster: str) -> str:
    """Return the content of model and cluster, wherever their files lie; raise InputError."""
    details = load_model_details(model)
    specs = [asdict(details.spec), list(details.notes), asdict(load_cluster(cluster))]
    return json.dumps(specs, sort_keys=True, default=sorted)


def key_of(query: Query) -> str:
    """Return the key of a question: the same key, the same answer. InputError if unreadable."""
    _, _, *options = query.words()
    text = "\0".join((fingerprint(), _content(query.model, query.cluster), *options))
    return hashlib.sha256(text.encode()).hexdigest()


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file; InputError with every unknown key and every value that cannot be read."""
    raw, problems = load_yaml(path), Problems(str(path))
    known = (*PLACES, *axes_by_name())
    for name in raw:
        if name not in known:
            hints = (elsewhere(f"--{name}"), did_you_mean(str(name).replace("_", "-"), known))
            allowed = "; ".join(filter(None, hints)) or f"allowed: {', '.join(known)}"
            problems.add(str(name), f"is not an option of a sweep; {allowed}")
    for name in PLACES:
        if name not in raw:
            problems.add(name, "is missing; a sweep has a model and a cluster, or lists of them")
    names = [*PLACES, *(name for name in raw if name not in PLACES)]
    axes = [_axis(problems, name, raw[name]) for name in names if name in raw and name in known]
    problems.finish()
    return Sweep(axes=tuple(axes))


def _axis(problems: Problems, name: str, given: object) -> Axis:
    several = given if isinstance(given, list) else [given]
    if not several:
        problems.add(name, "is an empty list; give at least one value")
    read: dict[Value, Any] = {}
    for place, one in enumerate(several):
        key = f"{name}[{place}]" if isinstance(given, list) else name
        try:
            value, keyword = _place(name, one) if name in PLACES else _value(name, one)
        except InputError as error:
            problems.found += [_placed(each, problems.where, key) for each in error.problems]
        except ValueError as error:
            problems.add(key, str(error))
        else:
            if value in read:
                problems.add(key, f"{brief(one)} is given twice")
            read[value] = keyword
    return Axis(name=name, values=read)


def _place(name: str, given: object) -> tuple[Value, str]:
    """A model or cluster, and its name in the catalog or absolute path; InputError, ValueError."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError(f"must be a name or a file; given {brief(given)}")
    word = str(given)
    found = model_for_file(word) if name == "model" else cluster_for_file(word)
    if name == "model":
        load_model_details(found)
    else:
        load_cluster(found)
    return word, found


def _value(name: str, given: object) -> tuple[Value, Any]:
    """A value of an option, and what a Query takes for it; ValueError if it is none."""
    option = axes_by_name()[name]
    if given is None:
        return None, ()
    if option.kind is bool:
        if not isinstance(given, bool):
            raise ValueError(f"must be true or false; given {brief(given)}")
        return given, given
    several = given if option.many and isinstance(given, list) else [given]
    for each in several:
        if isinstance(each, bool) or not isinstance(each, str | int | float):
            text = "must be a number or a word (quote yes, no, on, off)"
            raise ValueError(f"{text}; given {brief(each)}")
    texts = [str(each) for each in several]
    value = option.read(texts if option.many else texts[0])
    return (" ".join(texts), texts) if option.many else (value, texts[0])


def check_values(sweep: Sweep, path: Path) -> None:
    """Raise InputError with every value whose own option is wrong in every cell that was read.

    Read are the cell with the first values of all other axes, and those that differ from it in one.
    A cell with problems of other options alone tells nothing: those may hide the value's own.
    A value that is wrong in some cells only, such as fp8 on an A100, is refused in those alone.
    """
    problems = Problems(str(path))
    choices = [list(axis.values.items()) for axis in sweep.axes]
    for number, axis in enumerate(sweep.axes[len(PLACES) :], start=len(PLACES)):
        for place, value in enumerate(choices[number]):
            first = [own[0] for own in choices]
            first[number] = value
            wrong = _own_problems(sweep.cell(first).query, axis.name)
            if not wrong:
                continue
            others = [
                [*first[:other], each, *first[other + 1 :]]
                for other, own in enumerate(choices)
                for each in own[1:]
                if other != number
            ]
            # so many are read before a value is said to be wrong in all of them
            found = (_own_problems(sweep.cell(cell).query, axis.name) for cell in others[:24])
            if all(own is None or own for own in found):
                key = f"{axis.name}[{place}]" if len(axis.values) > 1 else axis.name
                problems.found += [_placed(each, problems.where, key) for each in wrong]
    problems.finish()


def _own_problems(query: Query, name: str) -> list[Problem] | None:
    """Problems of a question with one of its options; None where only others have some."""
    try:
        resolve(query)
    except InputError as error:
        own = [each for each in error.problems if each.key.split(" ")[0] == f"--{name}"]
        return own or None
    return []


def _placed(problem: Problem, where: str, key: str) -> Problem:
    """A problem of a value, at its place in the sweep file; one of another file stays there."""
    if problem.where not in ("command line", "models", "cluster"):
        return problem
    return Problem(where=where, key=key, message=problem.message)

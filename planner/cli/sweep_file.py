"""Sweep files: options of ``planner plan`` with lists of values, checked by its own readers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.cli.sweep_cell import axes, read_words
from planner.errors import InputError, Problem
from planner.limits import brief
from planner.query.options import Option
from planner.query.words import unknown_options
from planner.spelling import did_you_mean
from planner.sweep.cells import PLACES, Axis, Sweep, Value

NAMES_OF_CATALOGS = ("command line", "models", "cluster")
"""Where a problem stands that is of the word itself and of no other file."""
MOST_VARIED = 24
"""Other cells that are looked at before a value is said to be wrong in all of them."""


def read_sweep(path: Path) -> Sweep:
    """The sweep of a file; raises InputError with every unknown key and every value of no use."""
    from planner.documents.tree import load_yaml

    reader = _Reader(str(path))
    sweep = reader.read(load_yaml(path))
    problems = [*reader.problems, *_unusable(sweep, str(path))]
    if problems:
        raise InputError(dict.fromkeys(problems))
    return sweep


def check_values(sweep: Sweep, path: Path) -> None:
    """Raise InputError with every value that is wrong in whatever cell it stands in.

    What is wrong in some cells only becomes of those cells alone.
    """
    problems = list(_wrong_everywhere(sweep, str(path)))
    if problems:
        raise InputError(dict.fromkeys(problems))


class _Reader:
    """Reads keys and values, and keeps what is wrong with all of them."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[Problem] = []
        self.known: dict[str, Option | None] = {**dict.fromkeys(PLACES), **axes()}

    def note(self, key: str, message: str) -> None:
        self.problems.append(Problem(where=self.where, key=key, message=message))

    def read(self, raw: Mapping[str, Any]) -> Sweep:
        """All axes, model and cluster first."""
        for name in raw:
            if name not in self.known:
                self.note(name, self._unknown(name))
        for name in PLACES:
            if name not in raw:
                self.note(name, "is missing; every sweep has a model and a cluster, or lists")
        names = [*PLACES, *(name for name in raw if name not in PLACES)]
        axes = [self._axis(name, raw[name]) for name in names if name in raw and name in self.known]
        return Sweep(axes=tuple(axes))

    def _unknown(self, name: str) -> str:
        hints = [each.message for each in unknown_options([f"--{name}"])]
        hint = did_you_mean(name.replace("_", "-"), tuple(self.known))
        said = "; ".join(filter(None, [*hints, hint]))
        allowed = said or f"allowed are {', '.join(self.known)}"
        return f"unknown key, is no option of a sweep; {allowed}"

    def _axis(self, name: str, given: object) -> Axis:
        """The values of an option, each as a command line has it."""
        several = given if isinstance(given, list) else [given]
        if not several:
            self.note(name, "is an empty list; give at least one value")
        read: dict[Value, tuple[str, ...]] = {}
        for place, one in enumerate(several):
            key = f"{name}[{place}]" if isinstance(given, list) else name
            found = self._value(name, key, one)
            if found is None:
                continue
            if found[0] in read:
                self.note(key, f"{brief(one)} is given twice")
            read[found[0]] = found[1]
        return Axis(name=name, values=tuple(read), words=tuple(read.values()))

    def _value(self, name: str, key: str, given: object) -> tuple[Value, tuple[str, ...]] | None:
        """A value and its words; None where it is noted as wrong."""
        option = self.known[name]
        if given is None:
            if option is None:
                self.note(key, "must be a name or a file; given nothing")
                return None
            return None, ()
        if isinstance(given, list) and not (option and option.many):
            self.note(key, "is a list inside the list; this option takes one value a cell")
            return None
        if option is None:
            word = self._word(key, given)
            return None if word is None else (word, (self._everywhere(name, word),))
        if option.kind is bool:
            return self._switch(option, key, given)
        parts = given if isinstance(given, list) else [given]
        texts = [self._word(key, part) for part in parts]
        read = [self._read(option, key, text) for text in texts if text is not None]
        if len(read) < len(texts) or None in read:
            return None
        value = " ".join(map(str, read)) if option.many else read[0]
        return value, tuple(f"{option.flag}={each}" for each in read)

    def _switch(
        self, option: Option, key: str, given: object
    ) -> tuple[Value, tuple[str, ...]] | None:
        """A switch and its word; None where it is noted as wrong."""
        if not isinstance(given, bool):
            self.note(key, f"must be true or false; given {brief(given)}")
            return None
        return given, tuple(option.words(given))

    def _everywhere(self, name: str, word: str) -> str:
        """A name of the catalog, or a file's path from the root."""
        from planner.query.places import cluster_for_file, model_for_file

        try:
            return model_for_file(word) if name == PLACES[0] else cluster_for_file(word)
        except InputError:
            return word

    def _word(self, key: str, given: object, allowed: str = "a number or a word") -> str | None:
        """A value as text; None where it is noted as none."""
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            self.note(key, f"must be {allowed} (quote yes, no, on, off); given {brief(given)}")
            return None
        return str(given)

    def _read(self, option: Option, key: str, text: str) -> Value:
        """The value by the option's own reader; None where it is noted as wrong."""
        try:
            read = option.read(text)
        except ValueError as error:
            self.note(key, str(error))
            return None
        value: Value = read[0] if option.many else read
        return value


def _unusable(sweep: Sweep, where: str) -> Iterator[Problem]:
    """Models and clusters that cannot be read."""
    from planner.catalog.clusters import load_cluster
    from planner.catalog.models import load_model_details

    loaders: Mapping[str, Callable[[str], object]] = dict(
        zip(PLACES, (load_model_details, load_cluster), strict=True)
    )
    for axis in (each for each in sweep.axes if each.name in PLACES):
        for place, value in enumerate(axis.values):
            try:
                loaders[axis.name](str(value))
            except InputError as error:
                for each in error.problems:
                    yield _of_value(each, where, axis, place)


def _of_value(problem: Problem, where: str, axis: Axis, place: int) -> Problem:
    """A problem as one of a value in the sweep file; one of another file stays what it is."""
    if problem.where not in NAMES_OF_CATALOGS:
        return problem
    key = f"{axis.name}[{place}]" if len(axis.values) > 1 else axis.name
    options = (f"--{axis.name}", problem.where, str(axis.values[place]))
    own = problem.key.startswith(options) or problem.where != NAMES_OF_CATALOGS[0]
    said = problem.message if own else f"{problem.key}: {problem.message}"
    return Problem(where=where, key=key, message=said)


def _wrong_everywhere(sweep: Sweep, where: str) -> Iterator[Problem]:
    """Values that bring the same kind of problem into every cell that was looked at."""
    asked = _Asked(sweep)
    for number, axis in enumerate(sweep.axes):
        if axis.name in PLACES:
            continue
        for place in range(len(axis.values)):
            yield from (_of_value(each, where, axis, place) for each in asked.wrong(number, place))
    if asked.answerable:
        return
    for each in asked.problems((0,) * len(sweep.axes)):
        yield Problem(where=where, key=each.key.lstrip("-"), message=each.message)


class _Asked:
    """Cells that were read to see whether they can be."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.answerable = False
        self._read: dict[tuple[str, ...], tuple[Problem, ...]] = {}

    def wrong(self, number: int, place: int) -> tuple[Problem, ...]:
        """What a value brings into every cell that was looked at; nothing of one that is sound."""
        first: tuple[Problem, ...] = ()
        masked: set[Problem] = set()
        for places in self._around(number, place):
            found = self.problems(places)
            others = set(self.problems(places, number)) if found else set[Problem]()
            own = tuple(each for each in found if each not in others)
            if not first:
                first, masked = own, others
            if not own and others <= masked:
                return ()
        return first

    def _around(self, number: int, place: int) -> Iterator[tuple[int, ...]]:
        """Cells with a value: the first of all others, then others one at a time."""
        base = [0] * len(self.sweep.axes)
        base[number] = place
        yield tuple(base)
        varied = (
            (*base[:other], value, *base[other + 1 :])
            for other, axis in enumerate(self.sweep.axes)
            if other != number
            for value in range(1, len(axis.values))
        )
        yield from (each for each, _ in zip(varied, range(MOST_VARIED), strict=False))

    def problems(self, places: tuple[int, ...], without: int | None = None) -> tuple[Problem, ...]:
        """What is wrong with a cell, without one of its options on demand."""
        axes = [axis for place, axis in enumerate(self.sweep.axes) if place != without]
        kept = tuple(at for place, at in enumerate(places) if place != without)
        words = Sweep(axes=tuple(axes)).cell(kept).question
        if words not in self._read:
            self._read[words] = _problems_of(words)
            self.answerable |= not self._read[words] and without is None
        return self._read[words]


def _problems_of(words: Sequence[str]) -> tuple[Problem, ...]:
    try:
        read_words(words)
    except InputError as error:
        return error.problems
    return ()

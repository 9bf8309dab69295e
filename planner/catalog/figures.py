"""Figures with their sources, and the checking of YAML files.

A figure is a flow mapping ``{value: 80, basis: read, source: sheet}``; its file's ``sources``
says what ``sheet`` is. Every check collects all problems of a file before it raises.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from planner.documents.tree import load_own
from planner.errors import InputError, Problem, hint
from planner.limits import NAME, NAME_RULE, brief

# How a value is known; `given`: the user's cluster file states it.
Basis = Literal["read", "recalled", "derived", "assumed", "measured", "given"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]


def _named(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(f"must be a name of {NAME_RULE}")
    return text


# Of a model, a machine or a part of one: it is shown, and written into files.
Name = Annotated[str, AfterValidator(_named)]
FileModel = TypeVar("FileModel", bound=BaseModel)

# Of keys: plausible magnitudes, and what overrides of a cluster file replace.
FIGURE_KEYS: Mapping[str, Any] = load_own(__package__, "figure_keys.yaml")


class Strict(BaseModel):
    """A part of a file: frozen, no unknown keys, no text taken for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield the rules between keys that are broken: a key, and what is wrong with it."""
        yield from ()


class Stated(Strict):
    """Basis and source of a stated value."""

    basis: Basis
    source: str
    note: str = ""


class Figure(Stated):
    """One value in the vendor's unit."""

    value: Positive


class WholeFigure(Figure):
    """A figure that counts things."""

    value: Count


class Figures(Stated):
    """Several values of one kind, from one source."""

    value: Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)]


class WholeFigures(Figures):
    """Several counts of one kind."""

    value: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]


class Flag(Stated):
    """A yes or no."""

    value: bool


class Source(Strict):
    """Source of figures: a file of a repository, a package, a page, or a note."""

    repository: str | None = None
    package: str | None = None
    path: str | None = None
    version: str | None = None
    commit: str | None = None
    license: str | None = None
    url: str | None = None
    date: str | None = None
    note: str | None = None

    def citation(self) -> str:
        """Return the source in one line."""
        commit = f"@{self.commit}" if self.commit else None
        date = f"({self.date})" if self.date else None
        place = (self.repository, self.package, self.path)
        parts = (*place, self.version, commit, self.url, date, self.note)
        return " ".join(filter(None, parts))


def validate(
    model_class: type[FileModel], data: Mapping[str, Any], where: str, also: Iterable[Problem] = ()
) -> FileModel:
    """Return ``data`` as ``model_class``, or raise one InputError with every problem.

    Mappings with a ``source`` beside their ``value`` are also held to the file's ``sources`` and
    to plausible magnitudes; what has none of these problems to the rules between its keys.
    ``also``: problems that are known already.
    """
    problems: list[Problem] = []
    try:
        instance = model_class.model_validate(dict(data))
    except ValidationError as error:
        problems += validation_problems(error, model_class, where)
    problems += [*figure_problems(data, where), *also]
    if not problems and isinstance(instance, Strict):
        found = instance.broken()
        problems = [Problem(where=where, key=key, message=text) for key, text in found]
    InputError.check(problems)
    return instance


def validation_problems(
    error: ValidationError, model_class: type[BaseModel], where: str
) -> Iterator[Problem]:
    """Yield every problem of a failed validation: what is wrong, given, allowed."""
    for details in error.errors():
        # A model validator's problem is of the whole, which has no place.
        *section, key = details["loc"] or ("",)
        message = message_of(details)
        if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            known = _known_keys(model_class, section)
            message = f"unknown key; given {brief(details['input'])}, {hint(str(key), known)}"
        place = ".".join(map(str, details["loc"]))
        yield Problem(where=where, key=place, message=message)


def figure_problems(data: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield the figures of a file whose source is missing or whose magnitude is implausible."""
    sources = data.get("sources")
    known = list(sources) if isinstance(sources, Mapping) else []
    for key, figure in _figures(data):
        source = figure.get("source")
        if isinstance(source, str) and source not in known:
            message = f"source {source!r} is not among the file's sources; {hint(source, known)}"
            yield Problem(where=where, key=f"{key}.source", message=message)
        value = figure["value"]
        for number in value if isinstance(value, list) else [value]:
            message = implausible(key.rpartition(".")[2], number, figure.get("basis") == "measured")
            if message:
                yield Problem(where=where, key=f"{key}.value", message=message)


def implausible(key: str, value: object, is_measured: bool = False) -> str:
    """Return what is wrong with the magnitude of a figure of this key, or an empty text."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return ""
    by_end = FIGURE_KEYS["limits_by_end"].items()
    suffixes = (limits for suffix, limits in by_end if key.endswith(suffix))
    low, high = FIGURE_KEYS["limits"].get(key) or next(suffixes, (0.0, float("inf")))
    # what was measured has no mistyped unit, and a core of a processor is that slow
    if is_measured and key.endswith(("_tflops", "gb_per_s", "_per_direction", "_fraction")):
        low = 1e-4
    if low <= value <= high:
        return ""
    return f"implausible magnitude, wrong unit?; given {value:g}, allowed {low:g} to {high:g}"


def _figures(data: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key, with those that it is under, and the mapping of every figure."""
    if isinstance(data, Mapping) and "value" in data and "source" in data:
        yield path, data
        return
    inner = dict(enumerate(data)) if isinstance(data, list) else data
    for key, value in inner.items() if isinstance(inner, Mapping) else ():
        yield from _figures(value, f"{path}.{key}" if path else str(key))


def message_of(details: ErrorDetails) -> str:
    """Return what pydantic found wrong with a value in our words: what is wrong, given, allowed."""
    kind, given = details["type"], details["input"]
    if kind == "missing":
        keys = ", ".join(map(str, given)) if isinstance(given, Mapping) and given else "none"
        return f"is missing; given keys are {keys}"
    if kind == "literal_error":
        return f"unknown choice; given {brief(given)}, allowed {details['ctx']['expected']}"
    # `Input should be a valid integer`, `String should match pattern ...`
    text = re.sub(r"^\w+ should ", "must ", details["msg"].removeprefix("Value error, "))
    return text if "; given " in text else f"{text}; given {brief(given)}"


def keys_of(section: type) -> Mapping[str, Parameter]:
    """Return the keys of a part of a file, which is a model or a dataclass, with their types."""
    return signature(section).parameters


def _known_keys(model_class: type, path: Sequence[int | str]) -> list[str]:
    """Keys of the section that ``path`` leads to; tags of unions and indices are skipped."""
    sections = [model_class]
    for part in path:
        found = (keys_of(each)[str(part)] for each in sections if part in keys_of(each))
        sections = [inner for key in found for inner in _sections_in(key.annotation)] or sections
    return [name for section in sections for name in keys_of(section)]


def _sections_in(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type):
        is_section = issubclass(annotation, BaseModel) or is_dataclass(annotation)
        yield from [annotation] if is_section else []
    for argument in get_args(annotation):
        yield from _sections_in(argument)

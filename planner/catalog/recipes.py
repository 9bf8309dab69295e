"""Layouts that vendors tuned and ship: ``hwdb/recipes/*.csv`` with their source."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from planner.catalog.paths import hwdb_dir, unknown_name
from planner.documents.file import read_text
from planner.documents.tree import load_yaml
from planner.errors import InputError, Problem
from planner.spec.job import Precision
from planner.spec.training import FULL, Target, Training, read_targets
from planner.spelling import did_you_mean

Task = Literal["pretrain", "sft", "peft"]
Sharding = Literal["optimizer", "megatron-fsdp", "torch-fsdp2"]
Recompute = Literal["none", "selective", "full"]
Method = Literal["", "block", "uniform", "layers"]
_LAYOUT = re.compile(r"[EtmL|()*0-9]*(\.\.\.)?")
_SWITCH = {"yes": True, "no": False}


@dataclass(frozen=True, kw_only=True)
class RecipeSource:
    """Where a file of recipes comes from, and what its recipes run under."""

    vendor: str
    title: str
    where: str
    framework: str
    profile: str
    nodes: Mapping[str, str]
    """Node of the catalog by the source's name of an accelerator."""


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("must be a whole number")
    return int(text)


def _degree(text: str) -> int:
    if (number := _whole(text)) < 1:
        raise ValueError("must be at least 1")
    return number


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            listed = ", ".join(word or "empty" for word in allowed)
            raise ValueError(f"must be one of {listed}")
        return text

    return read


def _switch(text: str) -> bool:
    return _SWITCH[_one_of(*_SWITCH)(text)]


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: read(text) if text else None


def _layout(text: str) -> str:
    if not _LAYOUT.fullmatch(text):
        raise ValueError("must be of E, t, m, L, |, (), *N, cut by ... at its end at most")
    return text


def _text(text: str) -> str:
    return text


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _targets(text: str) -> tuple[Target, ...]:
    return read_targets(",".join(_words(text))) if text else ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_whole(word) for word in text.split())


def _name(text: str) -> str:
    if not text:
        raise ValueError("must be given")
    return text


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One tuned configuration; columns as in hwdb/recipes/README.md, None where not stated.

    Every column with what reads it.
    """

    source: RecipeSource
    recipe: Annotated[str, _name]
    model: Annotated[str, _name]
    task: Annotated[Task, _one_of(*get_args(Task))]
    accelerator: Annotated[str, _name]
    gpus: Annotated[int | None, _or_none(_degree)]
    precision: Annotated[Precision, _one_of(*get_args(Precision))]
    seq_len: Annotated[int, _degree]
    global_batch: Annotated[int, _degree]
    micro_batch: Annotated[int, _degree]
    tp: Annotated[int, _degree]
    pp: Annotated[int, _degree]
    vpp: Annotated[int, _degree]
    cp: Annotated[int, _degree]
    ep: Annotated[int, _degree]
    etp: Annotated[int | None, _or_none(_degree)]
    sequence_parallel: Annotated[bool, _switch]
    sharding: Annotated[Sharding, _one_of(*get_args(Sharding))]
    recompute: Annotated[Recompute, _one_of(*get_args(Recompute))]
    recompute_method: Annotated[Method, _one_of(*get_args(Method))]
    recompute_layers: Annotated[tuple[int, ...], _numbers]
    recompute_modules: Annotated[tuple[str, ...], _words]
    pipeline_layout: Annotated[str, _layout]
    offloaded_layers: Annotated[int | None, _or_none(_degree)]
    cuda_graph: Annotated[tuple[str, ...], _words]
    dispatcher: Annotated[str, _text]
    expert_overlap: Annotated[bool | None, _or_none(_switch)]
    tp_overlap: Annotated[bool | None, _or_none(_switch)]
    optimizer: Annotated[str, _name]
    mtp_layers: Annotated[int | None, _or_none(_degree)]
    lora_rank: Annotated[int | None, _or_none(_degree)]
    lora_targets: Annotated[tuple[Target, ...], _targets]
    note: Annotated[str, _text]

    @property
    def training(self) -> Training:
        """What it trains."""
        if self.lora_rank is None:
            return FULL
        return Training(mode="lora", rank=self.lora_rank, targets=self.lora_targets)

    @property
    def node(self) -> str:
        """Node of the catalog."""
        return self.source.nodes[self.accelerator]

    @property
    def layout(self) -> str:
        """Degrees above one, in a few words: ``tp 4, pp 4, cp 2``; tp where all are one."""
        degrees = ("tp", "pp", "vpp", "cp", "ep")
        words = [f"{name} {n}" for name in degrees if (n := getattr(self, name)) > 1]
        if self.etp is not None and self.etp != self.tp:
            words.append(f"etp {self.etp}")
        words += [self.sharding] if self.sharding != "optimizer" else []
        return ", ".join(words) or "tp 1"

    @property
    def recomputed(self) -> str:
        """What is recomputed, in a few words; empty where nothing is."""
        if self.recompute == "selective":
            return " ".join(self.recompute_modules) or "selective"
        if self.recompute == "none":
            return ""
        if self.recompute_method == "block":
            return f"full, {self.recompute_layers[0]} layers a stage"
        if self.recompute_method == "layers":
            return f"full, {len(self.recompute_layers)} layers"
        return "full"

    @property
    def summary(self) -> str:
        """Layout, micro-batch, what is recomputed and what is offloaded."""
        parts = [self.layout, f"micro-batch {self.micro_batch}"]
        parts += [f"recompute {self.recomputed}"] if self.recomputed else []
        parts += [f"{self.offloaded_layers} layers offloaded"] if self.offloaded_layers else []
        return ", ".join(parts)

    @cached_property
    def words(self) -> frozenset[str]:
        """What ``planner show recipes WORDS`` looks for, in lower case."""
        name = self.recipe.lower()
        given = (self.model, self.task, self.accelerator, self.precision, self.sharding)
        own = {name, *re.split(r"[^a-z0-9.]+", name), self.source.vendor.lower(), *given}
        return frozenset({*own, f"{self.gpus}gpu", str(self.gpus or ""), self.node} - {""})


_READERS: Mapping[str, Callable[[str], Any]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Recipe, include_extras=True).items()
    if name != "source"
}
COLUMNS = tuple(_READERS)


def read_recipes(path: Path, source: RecipeSource) -> tuple[Recipe, ...]:
    """Return the recipes of one file; InputError carries the problems of all its rows.

    Rows are addressed by their number, the header's being 1, and fields by their column.
    """
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
    columns = tuple(rows.fieldnames or ())
    if columns != COLUMNS:
        given, allowed = ", ".join(columns) or "nothing", ", ".join(COLUMNS)
        raise InputError.single(str(path), "1", f"columns must be {allowed}; given {given}")
    found, problems, first = list[Recipe](), list[Problem](), dict[str, int]()
    for number, row in enumerate(rows, start=2):
        values, wrong = _values(row, source)
        name = row["recipe"]
        if first.setdefault(name, number) != number:
            wrong["recipe"] = f"{name!r} is already in row {first[name]}"
        problems += [
            Problem(where=str(path), key=f"{number}.{column}", message=message)
            for column, message in wrong.items()
        ]
        if not wrong:
            found.append(Recipe(source=source, **values))
    if problems:
        raise InputError(problems)
    return tuple(found)


def _values(
    row: Mapping[str | None, Any], source: RecipeSource
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of a row that can be read, and what is wrong with the others."""
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    if None in row or None in row.values():
        wrong["recipe"] = f"needs {len(COLUMNS)} fields; the row has more or fewer"
        return values, wrong
    for column, read in _READERS.items():
        try:
            values[column] = read(row[column])
        except ValueError as error:
            wrong[column] = f"{error}; given {row[column]!r}"
    if values.get("accelerator") and values["accelerator"] not in source.nodes:
        given, allowed = values["accelerator"], ", ".join(source.nodes)
        wrong["accelerator"] = f"must be one of {allowed}; given {given!r}"
    return values, wrong


def sources() -> dict[str, RecipeSource]:
    """The sources of recipes, by the name of their file."""
    path = hwdb_dir() / "recipes" / "sources.yaml"
    names = [field.name for field in fields(RecipeSource)]
    return {
        name: RecipeSource(**{key: raw[key] for key in names})
        for name, raw in load_yaml(path).items()
    }


@cache
def load_recipes() -> tuple[Recipe, ...]:
    """All recipes of the catalog, file by file in the order of their sources."""
    folder = hwdb_dir() / "recipes"
    read = (read_recipes(folder / f"{name}.csv", source) for name, source in sources().items())
    return tuple(recipe for recipes in read for recipe in recipes)


def find_recipe(name: str, where: str = "command line", key: str = "--like") -> Recipe:
    """The recipe of this name, whatever its case; InputError with near names otherwise."""
    by_name = {recipe.recipe.lower(): recipe for recipe in load_recipes()}
    if name.lower() in by_name:
        return by_name[name.lower()]
    known = [recipe.recipe for recipe in by_name.values()]
    raise unknown_name("recipe", name, known, where, key, "planner show recipes")


def _applies(word: str, recipe: Recipe) -> bool:
    return word in recipe.words or recipe.model.startswith(word)


def check_words(words: tuple[str, ...]) -> None:
    """Raise InputError with every word that applies to no recipe at all."""
    recipes = load_recipes()
    problems: list[Problem] = []
    for word in words:
        if not any(_applies(word.lower(), recipe) for recipe in recipes):
            known = sorted({own for recipe in recipes for own in recipe.words})
            hint = did_you_mean(word, known)
            message = f"{word!r} applies to no recipe. {hint}".strip()
            problems.append(Problem(where="command line", key="WORDS", message=message))
    if problems:
        raise InputError(problems)


def matching(words: tuple[str, ...]) -> Iterator[Recipe]:
    """Recipes that every word (model, accelerator, GPUs, precision, vendor, ...) applies to.

    A word applies where it is one of the recipe's own, or the beginning of its model's name.
    """
    for recipe in load_recipes():
        if all(_applies(word.lower(), recipe) for word in words):
            yield recipe

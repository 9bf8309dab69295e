"""Layouts that vendors tuned and ship: ``hwdb/recipes/*.csv`` with their source."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from planner.catalog import hwdb_dir, unknown_name
from planner.documents.file import read_text
from planner.documents.tree import load_trusted
from planner.spec.job import Precision
from planner.spec.training import FULL, Target, Training, read_targets


@dataclass(frozen=True, kw_only=True)
class RecipeSource:
    """Origin of a file of recipes, and what its recipes run under."""

    vendor: str
    title: str
    where: str
    framework: str
    profile: str
    nodes: Mapping[str, str]  # node of the catalog by the source's name of an accelerator


Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Words = Annotated[tuple[str, ...], BeforeValidator(str.split)]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One tuned configuration; columns as in hwdb/recipes/README.md, None where not stated."""

    source: RecipeSource
    recipe: Name
    model: Name
    task: Literal["pretrain", "sft", "peft"]
    accelerator: Name
    gpus: Count | None = None
    precision: Precision
    seq_len: Count
    global_batch: Count
    micro_batch: Count
    tp: Count
    pp: Count
    vpp: Count
    cp: Count
    ep: Count
    etp: Count | None = None
    sequence_parallel: bool
    sharding: Literal["optimizer", "megatron-fsdp", "torch-fsdp2"]
    recompute: Literal["none", "selective", "full"]
    recompute_method: Literal["", "block", "uniform", "layers"] = ""
    recompute_layers: Annotated[tuple[int, ...], BeforeValidator(str.split)] = ()
    recompute_modules: Words = ()
    # Megatron's notation, cut by ... at its end at most.
    pipeline_layout: Annotated[str, Field(pattern=r"^[EtmL|()*0-9]*(\.\.\.)?$")] = ""
    offloaded_layers: Count | None = None
    cuda_graph: Words = ()
    dispatcher: str = ""
    expert_overlap: bool | None = None
    tp_overlap: bool | None = None
    optimizer: Name
    mtp_layers: Count | None = None
    lora_rank: Count | None = None
    lora_targets: Annotated[
        tuple[Target, ...], BeforeValidator(lambda text: read_targets(text.replace(" ", ",")))
    ] = ()
    note: str = ""

    @property
    def training(self) -> Training:
        """Training mode of the recipe."""
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
        """Recomputation in a few words; empty if there is none."""
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


COLUMNS = tuple(field.name for field in fields(Recipe) if field.name != "source")


def read_recipes(path: Path, source: RecipeSource) -> tuple[Recipe, ...]:
    """Return the recipes of one file."""
    adapter, recipes = TypeAdapter(Recipe), list[Recipe]()
    for row in csv.DictReader(io.StringIO(read_text(path), newline="")):
        stated = {column: text for column, text in row.items() if text}
        recipes.append(adapter.validate_python({**stated, "source": source}))
    return tuple(recipes)


def sources() -> dict[str, RecipeSource]:
    """The sources of recipes, by the name of their file."""
    read = TypeAdapter(dict[str, RecipeSource])
    return read.validate_python(load_trusted(hwdb_dir() / "recipes" / "sources.yaml"))


@cache
def load_recipes() -> tuple[Recipe, ...]:
    """All recipes of the catalog, file by file in the order of their sources."""
    folder = hwdb_dir() / "recipes"
    read = (read_recipes(folder / f"{name}.csv", source) for name, source in sources().items())
    return tuple(recipe for recipes in read for recipe in recipes)


def find_recipe(name: str) -> Recipe:
    """The recipe of this name, whatever its case; InputError with near names otherwise."""
    by_name = {recipe.recipe.lower(): recipe for recipe in load_recipes()}
    if name.lower() in by_name:
        return by_name[name.lower()]
    known = [recipe.recipe for recipe in by_name.values()]
    raise unknown_name("recipe", name, known, "command line", "--like", "planner show recipes")

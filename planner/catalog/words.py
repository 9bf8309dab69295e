"""Entries of the catalog by words: of their names, and of what they are."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

from planner.catalog import list_models
from planner.catalog.clusters import is_counted
from planner.catalog.hardware import Entry, find_entry, is_path, list_names, read_file
from planner.catalog.hardware_file import Kind
from planner.catalog.models import load_model, plain
from planner.catalog.recipes import Recipe, load_recipes
from planner.errors import did_you_mean
from planner.notes import Problems

SINGULAR: Mapping[Kind, Literal["accelerator", "node", "fabric", "machine"]] = {
    "accelerators": "accelerator",
    "nodes": "node",
    "fabrics": "fabric",
    "clusters": "machine",
}
Key = TypeVar("Key", str, Entry)


def find_models(words: tuple[str, ...]) -> list[str]:
    """Models of the catalog that all words apply to; InputError where a word applies to none."""
    return _matching(list_models(), _model_words, words, "planner show models")


def find_hardware(words: tuple[str, ...]) -> list[Entry]:
    """Entries of all kinds that all words apply to; InputError where a word applies to none."""
    entries = [(kind, name) for kind in SINGULAR for name in list_names(kind)]
    return _matching(entries, _hardware_words, words, "planner show hardware")


def find_recipes(words: tuple[str, ...]) -> list[Recipe]:
    """Recipes that all words apply to; InputError where a word applies to none."""
    recipes = {recipe.recipe: recipe for recipe in load_recipes()}

    def words_of(name: str) -> frozenset[str]:
        recipe = recipes[name]
        what = (name, recipe.source.vendor, recipe.model, recipe.task, recipe.precision)
        gpus = f"{recipe.gpus}gpu" if recipe.gpus else ""
        return _split(*what, recipe.sharding, recipe.accelerator, recipe.node, gpus)

    found = _matching(list(recipes), words_of, words, "planner show recipes")
    return [recipes[name] for name in found]


def unique_match(words: tuple[str, ...], is_known: Callable[[str], bool]) -> str | None:
    """The word, if it is the only one and names an entry; else None."""
    word = words[0] if len(words) == 1 else ""
    return word if word and is_known(word) else None


def is_hardware(name: str) -> bool:
    """Return True if the name is an entry, an alias of one, a number of nodes or a file."""
    return is_counted(name) or is_path(name) or find_entry(name) is not None


def _split(*texts: str) -> frozenset[str]:
    """Whole texts without hyphens and blanks, and the words in them."""
    lower = [text.lower() for text in texts]
    parts = [part for text in lower for part in re.split(r"[^a-z0-9.]+", text)]
    return frozenset({*parts, *map(plain, lower)} - {""})


def _model_words(name: str) -> frozenset[str]:
    """Words of a model's names, and of its kinds of layers and of attention."""
    model = load_model(name)
    attention = "mqa" if model.num_kv_heads == 1 else "gqa"
    if model.mla:
        attention = "mla"
    elif model.num_kv_heads == model.num_heads:
        attention = "mha"
    kind = "moe mixture" if model.moe else "dense"
    return _split(model.name, model.family, model.architecture, kind, attention)


def _hardware_words(entry: Entry) -> frozenset[str]:
    """Words of an entry's file as it stands: checking hundreds of files would take a second."""
    kind, name = entry
    file = stated(kind, name)
    texts = [SINGULAR[kind], name]
    texts += [
        str(value)
        for key, value in file.items()
        if isinstance(value, str | int) and key not in ("note", "usual_node")
    ]
    if kind == "nodes":
        accelerator = stated("accelerators", file["accelerator"])
        texts += [accelerator["vendor"], accelerator.get("architecture", "")]
        texts.append(file["scale_up"]["kind"])
    return _split(*texts)


@cache
def stated(kind: Kind, name: str) -> dict[str, Any]:
    """Load the file of a catalog entry, unchecked."""
    return read_file(kind, name)[1]


def _applies(word: str, own: frozenset[str]) -> bool:
    """True if the word is a prefix of one of the entry's words; 8 is no prefix of 80."""
    end = r"(?!\d)" if word[-1:].isdigit() else ""
    return any(re.match(re.escape(plain(word)) + end, one) for one in own)


def _matching(
    entries: Sequence[Key],
    words_of: Callable[[Key], frozenset[str]],
    words: tuple[str, ...],
    listing: str,
) -> list[Key]:
    """Entries that all words apply to; ``listing`` prints all."""
    own = {entry: words_of(entry) for entry in entries} if words else {}
    problems = Problems()
    for word in words:
        if any(_applies(word, each) for each in own.values()):
            continue
        known = set().union(*own.values())
        known |= {name if isinstance(name, str) else name[1] for name in entries}
        hint = did_you_mean(word, sorted(known)) or f"`{listing}` lists all"
        problems.add("WORDS", f"{word!r} is the name of nothing and applies to nothing; {hint}")
    problems.finish()
    return [entry for entry in entries if all(_applies(word, own[entry]) for word in words)]

"""The accelerator of the catalog that a tool's name for a GPU means; never a guess."""

import re
from collections.abc import Iterator
from functools import cache

from planner.catalog.hardware import (
    aliases,
    detection_rules,
    find_file,
    list_names,
    resolve_alias,
)
from planner.catalog.names import nearest
from planner.documents.yaml_text import load_yaml


def accelerator_of(gpu: str) -> str | None:
    """Return the catalog name of a GPU, None where no name, title or alias has the same words."""
    words = _words(gpu)
    return _by_words().get(words) if words else None


def may_mean(gpu: str, accelerator: str) -> bool:
    """Whether a name is that of an accelerator or a part of it, as ``a100`` of ``a100-sxm-40``."""
    words = _words(gpu)
    return accelerator_of(gpu) == accelerator or (bool(words) and words <= _words(accelerator))


def nearest_accelerators(gpu: str) -> list[str]:
    """Return catalog names spelled like a GPU's name."""
    wanted = "-".join(sorted(_words(gpu)))
    by_words = {"-".join(sorted(words)): name for words, name in _by_words().items()}
    return list(dict.fromkeys(by_words[text] for text in nearest(wanted, by_words)))


def _words(name: str) -> frozenset[str]:
    """Words of a name in lower case, without those of vendors and brands."""
    return frozenset(re.findall(r"[a-z0-9:]+", name.lower())) - set(detection_rules().brand_words)


@cache
def _by_words() -> dict[frozenset[str], str]:
    known: dict[frozenset[str], str] = {}
    for text, name in _names():
        known.setdefault(_words(text), name)
    return known


def _names() -> Iterator[tuple[str, str]]:
    """Names, then aliases, then titles; the first of equal words counts."""
    names = list_names("accelerators")
    for name in names:
        yield name, name
    for alias in aliases()["accelerators"]:
        yield alias, resolve_alias("accelerators", alias)
    for name in names:
        yield str(load_yaml(find_file("accelerators", name)).get("title", "")), name

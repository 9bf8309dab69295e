"""verl's training programs: what each calls a word that decides something, and its default."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.documents.yaml_text import load_data
from planner.formats.format import Value
from planner.formats.settings import Settings

NAME = "verl"
MEGATRON = "megatron"
FSDP = ("fsdp", "fsdp2")
ENGINE, GPUS = "engine", "num_gpus"
"""Words among the settings: what trains, and, where that is known, on how many accelerators."""
ENGINES = (*FSDP, MEGATRON)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, its modules and its words."""

    name: str
    program: str
    """What it does of which memory and time are priced."""
    modules: tuple[str, ...]
    """Last parts of their names."""
    words: Mapping[str, Mapping[str, Any]]
    """By word its ``keys``, of which the last that is given counts, and what is ``usual``."""

    @property
    def keys(self) -> frozenset[str]:
        """Every key that decides something."""
        return frozenset(key for entry in self.words.values() for key in entry["keys"])

    def key(self, name: str) -> str:
        """The first key of a word."""
        found: str = self.words[name]["keys"][0]
        return found

    def read(self, settings: Settings) -> dict[str, Value]:
        """Values by word, line 0 where the file leaves them out; None: null, or not known."""
        return dict(self._found(settings))

    def _found(self, settings: Settings) -> Iterator[tuple[str, Value]]:
        for name, entry in self.words.items():
            given = [settings[key] for key in entry["keys"] if key in settings]
            usual = Value(value=entry.get("usual"), key=entry["keys"][0])
            yield name, given[-1] if given else usual


@cache
def programs(package: str = __package__) -> tuple[Program, ...]:
    """All of them, or those of another format that has such a table."""
    table: dict[str, Any] = load_data(package, "programs.yaml")
    return tuple(
        Program(name=name, **{**entry, "modules": tuple(entry["modules"])})
        for name, entry in table.items()
    )


@cache
def known_keys() -> frozenset[str]:
    """Keys of verl's configuration, those of Megatron's own sections apart."""
    table: dict[str, str] = load_data(__package__, "keys.yaml")
    found = {
        name if section == "top" else f"{section}.{name}"
        for section, names in table.items()
        for name in names.split()
    }
    return frozenset(found).union(*(each.keys for each in programs()))

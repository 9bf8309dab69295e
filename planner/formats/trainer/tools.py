"""The programs whose files say TrainingArguments, most in words of their own: a table each."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from planner.documents.tree import load_own
from planner.formats.settings import as_flag

OWN = "trainer"


@dataclass(frozen=True, kw_only=True)
class FrontEnd:
    """A program, its words and what they mean; keys of a table are these fields."""

    name: str
    program: str
    title: str
    versions: str
    tells: Sequence[Sequence[str]]  # A file is the program's where it has all keys of one of these
    commands: Sequence[Sequence[str]]
    """Words that stand together in a command that starts training; its options follow. None: any
    script's."""
    model: Sequence[str]
    length: Mapping[str, Any]
    """The key of the tokens that a sequence has at most, and its default; 0: the model's."""
    packing: Mapping[str, list[Any]]  # Values after which every sequence is as long as it may be
    batching: Sequence[Mapping[str, Any]]
    """Values of keys by how a batch then puts documents together, the first that holds (with the
    flag ``beside`` it); empty: as no kind of --documents does. Else they are padded."""
    training: Mapping[str, Any]
    in_16_bits: Mapping[str, Any]
    """Cases in which trained weights are in 16 bits: always (``usual``) but for these values of
    keys, or for these alone."""
    liger: Mapping[str, list[Any]]  # Values of keys after which the logits are never whole
    unpriced: Sequence[Mapping[str, Any]]
    refused: Sequence[Mapping[str, Any]]
    """Rules: values of ``keys`` (as those of ``unpriced``) that are refused, each where the values
    of all keys ``beside`` them are as stated."""
    keys: str  # all that are the program's own
    frozen_in_16_bits_only: bool = False
    """Weights beside adapters are held as others would be; plans price them in 16 bits alone."""
    but_not: Sequence[str] = ()  # Keys of others that look alike
    lengths: Sequence[str] = ()  # Other names of the key of the length
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Name of a key in TrainingArguments; empty: it is none of them there."""
    inverse: Mapping[str, str] = field(default_factory=dict)  # The same, for flags of the opposite
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values by their words, for keys of TrainingArguments."""
    usual: Mapping[str, Any] = field(default_factory=dict)  # Defaults, unlike TrainingArguments'
    usual_with_fsdp: Mapping[str, Any] = field(default_factory=dict)
    refuses_doubles: bool = False  # A key given twice is an error to its loader of YAML
    fsdp_by_config: bool = False  # ``fsdp_config`` alone turns FSDP on
    degrees: Mapping[str, list[str]] = field(default_factory=dict)
    """Keys by the degree they say; ``dp_shard``: the ranks over which states are split."""
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Settings that a name stands for in place of a file, by key and name."""
    accelerate: str = ""  # the key that names a file of Accelerate's
    optimizers: str = ""  # Words of ``optim`` that TrainingArguments do not have

    @property
    def is_own(self) -> bool:
        """The words are those of TrainingArguments themselves."""
        return self.name == OWN


@cache
def tool_names() -> tuple[str, ...]:
    """Their names, sorted; no table is read."""
    files = [Path(entry.name) for entry in resources.files(__package__).iterdir()]
    names = {file.stem for file in files if file.suffix == ".yaml"}
    return tuple(sorted(names - {OWN}))


@cache
def load_tool(name: str) -> FrontEnd:
    """The table of a program."""
    table: dict[str, Any] = load_own(__package__, f"{name}.yaml")
    return FrontEnd(name=name, **table)


def is_of(tool: FrontEnd, names: AbstractSet[str]) -> bool:
    """Return True if keys at the top of a file are those of a program."""
    has_all = any(names >= {*group} for group in tool.tells)
    return has_all and not names & {*tool.but_not}


def is_one_of(value: object, wanted: Sequence[Any]) -> bool:
    """Return True if a value, or one of a list, is of a table; flags by any word for them."""
    if isinstance(value, list):
        return any(is_one_of(each, wanted) for each in value)
    flags = [each for each in wanted if isinstance(each, bool)]
    return value in wanted or as_flag(value) in flags


def is_meant(entry: Mapping[str, Any], value: object) -> bool:
    """Return True if a value is in ``values``, not in ``other_than``, or, without them, given."""
    if "values" in entry:
        return is_one_of(value, entry["values"])
    if value in (None, "") or as_flag(value) is False:
        return False
    if "other_than" in entry:
        return not is_one_of(value, entry["other_than"])
    return value not in ([], {})

"""Families of ``config.json`` as families.yaml has them: their keys, and the model these say."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from planner.catalog.figures import Strict, validate
from planner.catalog.hf.expressions import (
    FULL,
    SLIDING,
    Kinds,
    Names,
    Value,
    every_nth_full,
    plain_names,
    value_of,
)
from planner.catalog.model_file import refused
from planner.documents.tree import load_yaml
from planner.errors import Problem
from planner.spec.model import Layers, Width

# Keys of a model file (:class:`planner.catalog.model_file.ModelFile`).
Raw: TypeAlias = dict[str, Any]
FAMILIES_FILE = Path(__file__).with_name("families.yaml")
Count = Annotated[int, Field(ge=0, le=10**9)]
# The activations of transformers that a model file can name.
Activation = Literal[
    "gelu",
    "gelu_10",
    "gelu_python",
    "gelu_new",
    "gelu_fast",
    "gelu_accurate",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "silu",
    "swish",
    "relu",
    "relu2",
]
# What a key may hold.
KINDS: Mapping[str, Any] = {
    "activation": Activation,
    "bool": bool,
    "count": Count,
    "factor": Annotated[float, Field(gt=0, le=1e6)],
    "fraction": Annotated[float, Field(ge=0, le=1)],
    "indices": Annotated[tuple[Count, ...], Field(strict=False, max_length=10_000)],
    "integer": int,
    "labels": dict[str, Any],
    "layers": Layers,
    "sides": Width | Annotated[tuple[Width, Width], Field(strict=False)],
    "t5_activation": Literal[
        "relu",
        "gelu",
        "gelu_new",
        "silu",
        "gated-relu",
        "gated-gelu",
        "gated-gelu_new",
        "gated-silu",
    ],
    "text": Annotated[str, Field(max_length=10_000)],
    "width": Width,
    "width or auto": Width | Literal["auto"],
    "words": Annotated[tuple[str, ...], Field(strict=False, max_length=10_000)],
}
_OR_NULL = " or null"


class Key(Strict):
    """A key of a config: what it may hold, and its default; without one it must be given."""

    kind: str
    default: Any = None

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind.removesuffix(_OR_NULL) not in KINDS:
            raise ValueError(f"must be one of {', '.join(KINDS)}, or one of them{_OR_NULL}")
        return kind

    @property
    def is_required(self) -> bool:
        """True if a config must give it."""
        return "default" not in self.model_fields_set

    def field(self) -> tuple[Value, Value]:
        """Return the type and the default of the field that checks it."""
        of_value = KINDS[self.kind.removesuffix(_OR_NULL)]
        or_null = of_value | None if self.kind.endswith(_OR_NULL) else of_value
        return or_null, ... if self.is_required else self.default


class Only(Strict):
    """A key that changes the layers, of which only some values are modelled."""

    allowed: Annotated[tuple[Any, ...], Field(strict=False, min_length=1)]
    why: str


class Refusal(Strict):
    """What the planner cannot express, beyond wrong types and ``only``: a problem when true."""

    when: str
    key: str
    what: str
    given: str
    allowed: str


class Note(Strict):
    """Remark for the user on how the config was interpreted."""

    when: str | bool = True
    say: str


class Windows(Strict):
    """Tokens a windowed layer sees, the kind of every layer, whether layer_types says others."""

    tokens: str | None = None
    layers: str
    reads_layer_types: bool = False


class Family(Strict):
    """One type: the keys that are read (others are ignored), and how they say a model file."""

    class_name: str = Field(alias="class")  # the class of transformers whose parameters are counted
    keys: dict[str, Key]
    aliases: dict[str, str] = Field(default={})  # other spellings of keys
    # Keys that are refused unless they have a value that is modelled.
    only: dict[str, Only] = Field(default={})
    # Computed from the keys and the values before, for use below.
    values: dict[str, str] = Field(default={})
    windows: Windows | None = None
    refuse: tuple[Refusal, ...] = Field(default=(), strict=False)
    model: dict[str, Any]  # keys of a model file
    notes: tuple[Note, ...] = Field(default=(), strict=False)
    # Types whose language model has these layers.
    read_as_this: tuple[str, ...] = Field(default=(), strict=False)
    # Whether the keys stand in `text_config`, even where there is none.
    text_part_only: bool = False

    @cached_property
    def config_class(self) -> type[BaseModel]:
        """The keys as a class that checks those of a file."""
        fields: dict[str, Any] = {name: key.field() for name, key in self.keys.items()}
        return create_model(
            self.class_name,
            __config__=ConfigDict(extra="ignore", strict=True, frozen=True),
            **fields,
        )

    @cached_property
    def words(self) -> Mapping[str, str]:
        """Keys of a model file, whole and their last part, and what they are called here."""
        found = {ours: theirs for ours, theirs in plain_names(self.model) if theirs in self.keys}
        return {ours.rpartition(".")[2]: theirs for ours, theirs in found.items()} | found

    def names(self, keys: Names) -> Raw:
        """Return the keys with all that is computed from them, less what needs an absent one."""
        names = {"class_name": self.class_name, **keys}
        for name, text in self.values.items():
            with suppress(KeyError):
                names[name] = value_of(text, names)
        if self.windows:
            with suppress(KeyError):
                names["window"] = value_of(self.windows.tokens, names)
                names["built_layers"] = value_of(self.windows.layers, names)
        return names

    def findings(self, names: Names) -> Iterator[Problem]:
        """Yield what the planner cannot express, of names that are all there."""
        if self.windows:
            reader = None if self.windows.reads_layer_types else self.class_name
            given, built = names["layer_types"], names["built_layers"]
            finding = wrong_layer_types(given, built, names["window"], reader)
            yield from [finding] if finding else []
        for refusal in self.refuse:
            found = value_of(refusal.model_dump(), names)
            if found:
                given = found["given"]
                shown = list(given)[:20] if isinstance(given, tuple) else given
                yield refused(found["key"], found["what"], shown, found["allowed"])

    def raw(self, names: Names) -> Raw:
        """Return the keys of a model file, less those that need an absent name."""
        raw: Raw = value_of(self.model, names)
        for key in {"extra_params", "extra_params_per_layer"} & raw.keys():
            raw[key] = [extra for extra in raw[key] if extra.get("count")]
        if self.windows and {"layer_types", "built_layers"} <= names.keys():
            kinds = names["layer_types"] or names["built_layers"]
            window = names["window"] if SLIDING in kinds else None
            raw["sliding_window"] = window or 0
            raw["full_attention_step"] = (full_attention_step(kinds) or 0) if window else 0
        return raw

    def noted(self, names: Names) -> Iterator[str]:
        """Yield what a user should know about how the config was understood."""
        for note in self.notes:
            found = value_of(note.model_dump(), names)
            if found:
                yield found["say"]


class FamiliesFile(Strict):
    """The file: which keys are of which kind, and blocks of a type or what types share."""

    kinds: dict[str, list[str]]
    bases: dict[str, Raw]
    types: dict[str, Raw]


@cache
def families() -> Mapping[str, Family]:
    """Return the families by their type, sorted."""
    return read_families(FAMILIES_FILE)


def read_families(path: Path) -> Mapping[str, Family]:
    """Return the families of a file by type, sorted; ``tools/families.py`` checks expressions."""
    file = validate(FamiliesFile, load_yaml(path), str(path))
    written = {**file.bases, **file.types}
    blocks = {name: _merged(name, written) for name in sorted(file.types)}
    kinds = {key: kind for kind, named in file.kinds.items() for key in named}
    for block in blocks.values():
        # keys that give their default only, as keys with a kind
        for name, given in block["keys"].items():
            if not isinstance(given, Mapping):
                kind = kinds.get(name, "bool" if isinstance(given, bool) else "width")
                block["keys"][name] = {"kind": kind, "default": given}
    return {name: validate(Family, block, f"{path}: {name}") for name, block in blocks.items()}


def _merged(name: str, blocks: Mapping[str, Raw]) -> Raw:
    """A block with what it is ``like``: merged sections key by key, the others where left out."""
    own = dict(blocks[name])
    parent = own.pop("like", None)
    if parent is None:
        return own
    inherited = _merged(parent, blocks)
    # these two hold of the type alone
    kept = {k: v for k, v in inherited.items() if k not in ("read_as_this", "text_part_only")}
    for key in kept.keys() & own.keys() & {"keys", "values", "windows", "model"}:
        own[key] = _joined(kept[key], own[key])
    return kept | own


def _joined(inherited: Value, own: Value) -> Value:
    if not isinstance(inherited, Mapping) or not isinstance(own, Mapping):
        return own
    return {**inherited, **{key: _joined(inherited.get(key), own[key]) for key in own}}


def full_attention_step(kinds: Sequence[str]) -> int | None:
    """Return n where every n-th layer sees all, 0 where none does, None for other patterns."""
    if FULL not in kinds:
        return 0
    step = kinds.index(FULL) + 1
    return step if tuple(kinds) == every_nth_full(len(kinds), step) else None


def wrong_layer_types(
    given: Kinds | None, built: Kinds, window: int | None, reader: str | None
) -> Problem | None:
    """Return why ``layer_types``, or the layers built without it, cannot be or be expressed.

    ``reader`` is the class that goes by its own rule, None where ``layer_types`` is followed.
    """
    kinds = built if given is None else given
    allowed = f"all {FULL}, all {SLIDING}, or every n-th {FULL}"
    if len(kinds) != len(built):
        what = "needs one entry per layer"
        return refused("layer_types", what, f"{len(kinds)} entries", len(built))
    if unknown := sorted(set(kinds) - {FULL, SLIDING}):
        what = "kinds of layers that are not modelled"
        return refused("layer_types", what, ", ".join(map(repr, unknown)), allowed)
    if reader and kinds != built:
        what = f"{reader} does not read it and builds other layers"
        return refused("layer_types", what, _shown(kinds), _shown(built))
    if window and full_attention_step(kinds) is None:
        key = "max_window_layers" if given is None else "layer_types"
        return refused(key, "a pattern that is not modelled", _shown(kinds), allowed)
    if SLIDING in kinds and not window:
        return refused("layer_types", f"{SLIDING} without a window", _shown(kinds), FULL)
    return None


def _shown(kinds: Kinds) -> str:
    """Runs of equal layers: ``5 sliding_attention, 1 full_attention, ...``."""
    runs = [(len(list(same)), kind) for kind, same in groupby(kinds)]
    text = ", ".join(f"{count} {kind}" for count, kind in runs[:4])
    return f"{text}, ..." if len(runs) > 4 else text

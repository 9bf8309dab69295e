"""The schema of a model file: keys as in ModelSpec, plus counts and provenance; and its rules.

Its sections are parts of a ModelSpec as they stand there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from planner.catalog.figures import Name, Source, Strict, validate
from planner.catalog.hf.expressions import value_of
from planner.documents.tree import load_own
from planner.errors import InputError, Problem
from planner.limits import MAX_PARAMETERS
from planner.spec.model import Biases, Layers, ModelSpec, Tokens, Width

Parameters = Annotated[int, Field(gt=0, le=MAX_PARAMETERS)]


class ExtraParams(Strict):
    """A tensor outside the repeated shape: its name, its size, and its shape in words."""

    name: Name
    count: Parameters
    reason: str


class Provenance(Strict):
    """Basis of the figures of the file."""

    basis: Literal["read", "recalled", "mixed"]
    note: str = ""
    sources: tuple[Source, ...] = Field(default=(), strict=False)


class ModelKeys(Strict):
    """Keys of a model file that are unlike those of a ModelSpec, or that it needs."""

    name: Name | None = None
    family: Name | Literal[""] = ""
    num_layers: Layers
    num_decoder_layers: Layers | None = None
    hidden_size: Width
    num_heads: Width
    num_kv_heads: Width | None = None
    head_dim: Width | None = None
    ffn_size: Width | None = None
    biases: Biases = Biases()
    num_learned_positions: Tokens | None = None
    special_blocks: Name | Literal[""] = ""
    extra_params: tuple[ExtraParams, ...] = Field(default=(), strict=False)
    extra_params_per_layer: tuple[ExtraParams, ...] = Field(default=(), strict=False)
    left_out: tuple[ExtraParams, ...] = Field(default=(), strict=False)
    params_expected: Parameters | None = None
    params_active_expected: Parameters | None = None
    params_published_b: Annotated[float, Field(gt=0)] | None = None
    params_active_published_b: Annotated[float, Field(gt=0)] | None = None
    provenance: Provenance | None = None


# What is left out takes the default given in :mod:`planner.catalog.models`.
_AS_IN_SPEC: dict[str, Any] = {
    field.name: (field.type, ... if field.default is MISSING else field.default)
    for field in fields(ModelSpec)
    if field.name not in ModelKeys.model_fields
}
ModelFile: type[ModelKeys] = create_model("ModelFile", __base__=ModelKeys, **_AS_IN_SPEC)


def refused(key: str, what: str, given: object, allowed: object, where: str = "") -> Problem:
    """Return a broken rule: the key to change, what is wrong with it, what it may be."""
    return Problem(where=where, key=key, message=f"{what}; given {given}, allowed {allowed}")


# What keys that are left out are taken for, and the rules.
_LEFT_OUT, _RULES = load_own(__package__, "model_rules.yaml").values()


def broken_rules(raw: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield one problem for every rule that a file breaks.

    Rules read a file before it is validated, so that what they find is reported together with
    unknown keys and wrong types; one whose keys are missing or malformed stays silent.
    """
    names = {**_LEFT_OUT, **raw} | {
        f"{section}.{key}": value
        for section in ("moe", "mla", "mixer", "biases")
        if isinstance(raw.get(section), Mapping)
        for key, value in raw[section].items()
    }
    for rule in _RULES:
        try:
            is_broken = value_of(rule["when"], names)
        except (KeyError, TypeError, ZeroDivisionError):
            continue
        if is_broken:
            what, allowed = value_of([rule["what"], rule["allowed"]], names)
            yield refused(rule["key"], what, names[rule["key"]], allowed, where)


def read_model(raw: Mapping[str, Any], where: str) -> ModelKeys:
    """Return what a model file holds; raises InputError with every problem of it."""
    if not ModelKeys.model_fields.keys() & raw.keys():
        raise InputError.single(
            where,
            "num_layers",
            "is missing, as are all keys of a model; planner check reads files of a training job",
        )
    return validate(ModelFile, raw, where, broken_rules(raw, where))

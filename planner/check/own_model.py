"""The model that a file describes or names, held against the one that it is checked for."""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import cast

from planner.formats.format import Finding, OwnModel, Value
from planner.spec.model import ModelSpec

RULE = "job.model"
_SIZES = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_size", "head_dim")


def unlike(own: OwnModel, model: ModelSpec, path: str) -> Iterator[Finding]:
    """A finding per word of the file that is not the model's."""
    if "" in own.places:
        name = own.places[""]
        fields = [field for field in _SIZES if _of(own.spec, field) != _of(model, field)]
        if fields:
            shown = ", ".join(f"{_words(field)} {_of(own.spec, field)}" for field in fields)
            yield _finding(path, name, f"names {own.spec.name} ({shown}); checked for {model.name}")
        return
    for field, place in own.places.items():
        given, wanted = _of(own.spec, field), _wanted(model, field)
        if given != wanted and not _is_as_good(own.spec, model, field):
            text = f"{_words(field)} of {model.name} is {_shown(wanted)}; given {_shown(given)}"
            yield _finding(path, place, text)


def _finding(path: str, place: Value, message: str) -> Finding:
    return Finding(
        rule=RULE, severity="error", message=message, path=path, key=place.key, line=place.line
    )


def _of(model: ModelSpec, field: str) -> object:
    """The value of a field, None of a part that the model lacks."""
    parts: Iterable[str] = field.split(".")
    return reduce(lambda part, name: getattr(part, name, None), parts, cast("object", model))


def _wanted(model: ModelSpec, field: str) -> object:
    """As a file would say it: biases of experts are those of the MLP."""
    if field == "biases.mlp" and model.moe:
        return model.moe.expert_bias
    return _of(model, field)


def _is_as_good(own: ModelSpec, model: ModelSpec, field: str) -> bool:
    """Whether another value builds the model all the same."""
    if field == "vocab_size":
        return model.vocab_size < own.vocab_size < model.vocab_size + PADDING
    if field == "ffn_size" and model.moe:
        return own.ffn_size == model.moe.expert_ffn_size
    return field in ("qk_norm", "head_dim") and model.mla is not None


PADDING = 128 * 64
"""A vocabulary is made divisible by 128 times tensor parallelism."""


def _words(field: str) -> str:
    return field.rpartition(".")[2].replace("_", " ")


def _shown(value: object) -> str:
    return {True: "yes", False: "no", None: "none"}.get(value, str(value))  # type: ignore[call-overload, no-any-return]

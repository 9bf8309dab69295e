"""What every family of ``config.json`` shares: typed keys, their other spellings, refusals."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.model_file import Layers, Width
from planner.catalog.model_rules import Finding

Raw: TypeAlias = dict[str, Any]
"""Keys of a model file (:class:`planner.catalog.model_file.ModelFile`)."""
Count = Annotated[int, Field(ge=0, le=10**9)]
Indices = Annotated[tuple[Count, ...], Field(strict=False, max_length=10_000)]
Words = Annotated[tuple[str, ...], Field(strict=False, max_length=10_000)]
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
"""The activations of transformers that a model file can name."""
_EXACT_GELU = ("gelu", "gelu_10", "gelu_python")
_RENAMED = {"swish": "silu", "relu2": "squared-relu"}

__all__ = [
    "Activation",
    "Count",
    "Finding",
    "HfConfig",
    "Indices",
    "Layers",
    "Only",
    "Raw",
    "Width",
    "Words",
    "activation",
    "extra",
]


class Only(NamedTuple):
    """A key that changes the layers, of which only some values are modelled."""

    allowed: tuple[object, ...]
    why: str


class HfConfig(BaseModel):
    """One family: fields are the keys that are read, with the defaults of transformers.

    Keys of no family (dropout, token ids, ...) are ignored.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    CLASS: ClassVar[str]
    """The class of transformers whose parameters are counted."""
    ALIASES: ClassVar[Mapping[str, str]] = {}
    """Other spellings of keys."""
    ONLY: ClassVar[Mapping[str, Only]] = {}
    """Keys that are refused unless they have a value that is modelled."""
    WORDS: ClassVar[Mapping[str, str]] = {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "moe.num_experts": "num_experts",
        "moe.top_k": "num_experts_per_tok",
        "hidden_size": "hidden_size",
        "head_dim": "head_dim",
    }
    """Keys of a model file that its rules may name, and what they are called here."""

    def raw(self) -> Raw:
        """Return the keys of a model file; asked only where there are no findings."""
        raise NotImplementedError

    def findings(self) -> Iterator[Finding]:
        """Yield what the planner cannot express, beyond wrong types and ``ONLY``."""
        yield from ()

    def notes(self) -> Iterator[str]:
        """Yield what a user should know about how the config was understood."""
        yield from ()


def activation(name: Activation) -> str:
    """Return the model file's word for an activation of transformers."""
    if name in _EXACT_GELU:
        return "gelu"
    return "gelu-tanh" if name.startswith("gelu") else _RENAMED.get(name, name)


def extra(name: str, count: int, reason: str) -> tuple[Raw, ...]:
    """Return named parameters outside the repeated shape; none when there are none."""
    return ({"name": name, "count": count, "reason": reason},) if count else ()

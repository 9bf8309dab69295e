"""SavedTables: the tensors an implementation keeps for backward, by section of a layer.

The tables are data, ``planner/frameworks/saved/NAME.yaml``, each entry with its source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

# Elements per token on one rank; :func:`planner.layers.saved.token_widths` gives their sizes.
Width = Literal[
    "one",
    "hidden",
    "hidden_sp",
    "query",
    "kv",
    "context",
    "heads",
    "scores",
    "ffn",
    "shared_ffn",
    "experts",
    "experts_gathered",
    "pairs",
    "pairs_gathered",
    "pairs_hidden",
    "pairs_ffn",
    "query_rank",
    "expanded",
    "kv_rank",
    "rope",
    "logits",
    "adapter_input",
    "adapter_rank",
    "adapter_mask",
]
# ``trained``: for gradients of the layer's own weights only, of which frozen ones have none;
# ``trained_sequence_parallel``: both.
Condition = Literal[
    "always",
    "dropout",
    "context_exchange",
    "sequence_parallel",
    "tensor_parallel",
    "trained",
    "trained_sequence_parallel",
]


@dataclass(frozen=True, kw_only=True)
class SavedTensorSpec:
    """One tensor: its width per token, bytes per element, and when it exists at all."""

    name: str
    width: Width
    element_bytes: float
    multiple: float = 1.0
    is_linear_input: bool = False  # kept quantised by kernels that train in fp8
    when: Condition = "always"
    fp8_bytes: float | None = None  # per element under fp8, if other than linear inputs have there
    is_freed: bool = False  # by then, but not to be used again: reserved only


@dataclass(frozen=True, kw_only=True)
class SavedTables:
    """Entries by section (``norm.rmsnorm``, ``attention_core.flash``, ``mlp.gated``, ...)."""

    name: str
    sections: Mapping[str, tuple[SavedTensorSpec, ...]] = field(default_factory=dict)

    def entries(self, section: str) -> tuple[SavedTensorSpec, ...]:
        """Entries of a section; none where the implementation keeps nothing there."""
        return self.sections.get(section, ())

    def in_32_bits(self, parts: tuple[str, ...] = ("",)) -> "SavedTables":
        """Return the tables for activations of 32 bits: what has 16 is twice as large.

        In sections that start with one of ``parts``; all without. What is a widened copy beside its
        16-bit original is counted as both; no linear layer casts a copy of its own.
        """
        wide = {"element_bytes": 4.0}
        once = wide | {"multiple": 1.0}
        return self._changed(
            lambda one: {} if one.element_bytes != 2.0 else once if one.is_linear_input else wide,
            parts,
        )

    def of_frozen_weights(self) -> "SavedTables":
        """Return the tables without what only gradients of weights need.

        What is left is kept for something else, and not as linear layers keep it in 8 bits.
        """
        sections = {
            section: tuple(one for one in entries if not one.when.startswith("trained"))
            for section, entries in self.sections.items()
        }
        return replace(self, sections=sections)._changed(lambda _: {"is_linear_input": False})

    def with_linear_input_bytes(
        self, element_bytes: float, *, is_fp8: bool = False
    ) -> "SavedTables":
        """Return the tables with inputs of linear layers kept at another width.

        In fp8 some entries have their own: what a compiler rebuilds and casts again.
        """

        def kept(one: SavedTensorSpec) -> dict[str, Any]:
            if is_fp8 and one.fp8_bytes is not None:
                return {"element_bytes": one.fp8_bytes}
            return {"element_bytes": element_bytes} if one.is_linear_input else {}

        return self._changed(kept)

    def _changed(
        self, change: Callable[[SavedTensorSpec], dict[str, Any]], parts: tuple[str, ...] = ("",)
    ) -> "SavedTables":
        """The tables with fields of entries changed, in sections that start with one of parts."""
        sections = dict(self.sections)
        for section, entries in self.sections.items():
            if section.startswith(parts):
                sections[section] = tuple(replace(one, **change(one)) for one in entries)
        return replace(self, sections=sections)

"""Names a user may say about the search space: dimensions, their words, features."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.spec.strategy import (
    GPU_DEGREES,
    LAYER_POLICIES,
    OFFLOAD_POLICIES,
    RECOMPUTED,
    SEARCHED_FIELDS,
    STRATEGY_FIELDS,
)
from planner.units import Array

RECOMPUTE = "recompute"
# Words of ``recompute``, and the kinds they leave: it says nothing of where activations lie.
RECOMPUTE_KINDS: Mapping[str, tuple[str, ...]] = {
    "none": ("none", *OFFLOAD_POLICIES),
    **{name: (name,) for name in RECOMPUTED},
}
# No dimension is larger.
LARGEST = 2**20


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """The values one column of strategies can take at all."""

    name: str
    least: int = 1
    largest: int = LARGEST
    words: Mapping[str, int] = field(default_factory=dict)
    """Codes by name; empty where the values are numbers."""

    @property
    def domain(self) -> Array:
        """Every value, ascending."""
        if self.words:
            return np.array(sorted(set(self.words.values())), dtype=np.float64)
        return np.arange(self.least, self.largest + 1, dtype=np.float64)

    @property
    def allowed(self) -> str:
        """The values in words."""
        if self.words:
            return ", ".join(self.words)
        return f"whole numbers from {self.least} to {self.largest:,}"

    def shown(self, value: int) -> str:
        """The name of a code, or the number."""
        return next((word for word, code in self.words.items() if code == value), str(value))


DIMENSIONS: Mapping[str, Dimension] = {
    name: Dimension(
        name=name,
        least=known.least,
        largest=min(known.most, LARGEST),
        words={"off": 0, "on": 1, "false": 0, "true": 1, "0": 0, "1": 1}
        if known.is_flag
        else {word: i for i, word in enumerate(known.words)},
    )
    for name, known in ((name, STRATEGY_FIELDS[name]) for name in SEARCHED_FIELDS)
}
ALIASES: Mapping[str, str] = {"sp": "sequence_parallel", "zero": "zero_stage"}
# Numbers that follow from dimensions (the last also from the global batch).
DERIVED: Mapping[str, tuple[str, ...]] = {
    "gpus": GPU_DEGREES,
    "dp_shard": ("dp", "dp_replicate"),
    "num_micro_batches": ("dp", "micro_batch"),
}
# What can be forbidden, and what holds then.
FEATURES: Mapping[str, str] = {
    "offload": "offload == none",
    RECOMPUTE: "recompute == none",
    "interleaving": "vpp == 1",
    "sequence-parallel": "sequence_parallel == off",
    "context-parallel": "cp == 1",
    "expert-parallel": "ep == 1",
    "tensor-parallel": "tp == 1",
    "pipeline": "pp == 1",
    "hybrid-sharding": "dp_replicate == 1",
}
# What the first layers of every chunk may be under while the others are under nothing.
PART_KINDS = tuple(name for name, policy in LAYER_POLICIES.items() if policy.by_chunk)
# Layers of one stage under different policies, whatever the framework can say.
MIXED_LAYERS = "mixed-layers"
# What a search looks at only where it is allowed.
OFF_BY_DEFAULT = ("cross-domain-tp", MIXED_LAYERS)
# What was once left out, and is searched now without a word.
ALWAYS = ("short-context-parallel", "large-micro-batch")
WORDS = frozenset(word for dimension in DIMENSIONS.values() for word in dimension.words) | {
    *RECOMPUTE_KINDS
}


def known_names() -> tuple[str, ...]:
    """Return every name an expression may compare."""
    return (*DIMENSIONS, *ALIASES, *DERIVED, RECOMPUTE)

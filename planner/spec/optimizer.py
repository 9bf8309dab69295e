"""OptimizerSpec: what an optimizer keeps per parameter, and what its step moves.

The values live in ``planner/frameworks/optimizers.yaml``, each with its source. The fp32 master
weights are the framework's (its mixed precision), not the optimizer's.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.units import Array, ceil_div

TensorKind = Literal["matrix", "vector", "embedding", "head"]


@dataclass(frozen=True, kw_only=True)
class TensorStates:
    """What an optimizer keeps of one kind of tensor."""

    element_bytes: float
    """States as large as the tensor, per element."""
    factor_bytes: float = 0.0
    """Per row and per column: a second moment kept as row and column means."""
    block_bytes: float = 0.0
    """Scales per block of quantised states, all states together."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One optimizer as one framework (or none in particular) runs it."""

    name: str
    matrix: TensorStates
    """Weights of linear layers, experts included."""
    vector: TensorStates
    """Norms and biases."""
    embedding: TensorStates
    head: TensorStates
    """The vocabulary projection where it is not tied to the embedding."""
    step_traffic_bytes: float
    """HBM bytes per matrix element in a step: fp32 gradient, fp32 master, states; 16-bit weights
    and the 8-bit blocks' scales excluded."""
    block_elements: int = 256
    """Elements that share a scale, where states are quantised."""
    min_quantised_elements: int = 0
    """Smaller tensors keep ``small_element_bytes`` instead of quantised states."""
    small_element_bytes: float = 0.0
    master_bytes: float | None = None
    """Master weights where the setting shrinks them; None: the framework's usual ones."""
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages it runs under."""
    offload: Literal["part", "whole", "no"] = "part"
    """How much of its states can be offloaded, as far as the framework offloads at all."""
    hybrid_sharding: bool = True
    """Its states can be sharded inside groups that are replicated, where the framework does so."""
    setting: str = ""
    """How the framework is told."""

    def states(self, kind: TensorKind) -> TensorStates:
        """Return what is kept of a kind of tensor."""
        by_kind = {
            "matrix": self.matrix,
            "vector": self.vector,
            "embedding": self.embedding,
            "head": self.head,
        }
        return by_kind[kind]


def state_bytes(
    optimizer: OptimizerSpec, kind: TensorKind, rows: Array | int, columns: Array | int = 1
) -> Array:
    """Bytes of optimizer states of one tensor; a vector has one column.

    ``n e + (r + c) f + ceil(n / block) b`` with ``n = r c``; a quantised tensor below
    ``min_quantised_elements`` takes ``n · small_element_bytes``. Broadcasts over arrays.
    Source: arXiv 1804.04235 section 3 (row and column means), arXiv 2110.02861 section 2
    (block-wise scales); bytes as in ``optimizers.yaml``. Excludes step counters, the one
    quantisation map all tensors share (1 KiB a state), and master weights.
    """
    kept = optimizer.states(kind)
    num_elements = np.asarray(rows, dtype=float) * columns
    num_factors = np.asarray(rows, dtype=float) + columns
    whole: Array = num_elements * kept.element_bytes + num_factors * kept.factor_bytes
    if kept.block_bytes == 0.0:
        return whole
    quantised = whole + ceil_div(num_elements, optimizer.block_elements) * kept.block_bytes
    small = num_elements * optimizer.small_element_bytes
    return np.where(num_elements < optimizer.min_quantised_elements, small, quantised)

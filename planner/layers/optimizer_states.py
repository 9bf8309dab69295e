"""Optimizer states per parameter of a layer, the embedding and the head, tensor by tensor."""

from dataclasses import dataclass
from functools import cache
from math import prod

from planner.layers.weights import Weight, layer_kinds, weight_shapes
from planner.spec.model import ModelSpec
from planner.spec.optimizer import OptimizerSpec, TensorKind, state_bytes


@dataclass(frozen=True, kw_only=True)
class MeanStates:
    """Bytes per parameter, without master weights."""

    layer: float
    first: float
    """Embeddings."""
    last: float
    """Vocabulary head and final norm."""


def _bytes_of(optimizer: OptimizerSpec, weight: Weight, matrix: TensorKind) -> float:
    """States of one tensor; the leading dimensions of stacked experts count as copies."""
    if len(weight.shape) == 1:
        return weight.count * float(state_bytes(optimizer, "vector", weight.shape[0]))
    *copies, rows, columns = weight.shape
    return weight.count * prod(copies) * float(state_bytes(optimizer, matrix, rows, columns))


def _mean(optimizer: OptimizerSpec, weights: list[Weight], matrix: TensorKind) -> float:
    num_params = sum(weight.count * prod(weight.shape) for weight in weights)
    total = sum(_bytes_of(optimizer, weight, matrix) for weight in weights)
    return total / num_params if num_params else optimizer.states(matrix).element_bytes


@cache
def mean_states(model: ModelSpec, optimizer: OptimizerSpec) -> MeanStates:
    """State bytes over parameters, tensor by tensor (planner.spec.optimizer.state_bytes).

    Layers of several kinds are averaged. Excludes what sharding does to small tensors: shards
    below ``min_quantised_elements``, and factors that follow a shard's shape.
    """
    layers = [weight for kind in layer_kinds(model) for weight in weight_shapes(model, kind)]
    embedding = list(weight_shapes(model, "embedding"))
    head = [*weight_shapes(model, "head"), *weight_shapes(model, "final_norm")]
    if model.tied_embeddings:
        head = embedding
    return MeanStates(
        layer=_mean(optimizer, layers, "matrix"),
        first=_mean(optimizer, embedding, "embedding"),
        last=_mean(optimizer, head, "embedding" if model.tied_embeddings else "head"),
    )

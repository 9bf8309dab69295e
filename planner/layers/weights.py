"""Weights of a transformer tensor by tensor, as transformers' modules hold them.

States of some optimizers depend on more than counts: factored and quantised ones on the shape of
every tensor. The counts and the bias flags come from :mod:`planner.layers.parameters`; this module
adds shapes. Queries, keys and values are tensors of their own, all routed experts are one.

Shapes are written (out, in) as in ``torch.nn.Linear``; letters as in that module. Sources:
transformers/models/llama/modeling_llama.py and mixtral/modeling_mixtral.py (5.23).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Literal, TypeAlias

from planner.layers.parameters import (
    LETTERS,
    LayerKind,
    ParamCount,
    embedding_params,
    final_norm_params,
    head_params,
    hidden_norm,
    layer_counts,
    layer_params,
)
from planner.spec.model import ModelSpec
from planner.spec.training import OptimizerSpec, TensorKind, state_bytes

# One layer of a kind, or one of the ends; ``extra`` is the model's named extras.
Part: TypeAlias = LayerKind | Literal["embedding", "final_norm", "head", "extra"]


@dataclass(frozen=True)
class Weight:
    """One parameter tensor."""

    name: str
    shape: tuple[int, ...]


def _pieces(model: ModelSpec, name: str, rows: int) -> dict[str, int]:
    """Names and rows of the tensors that together are this matrix."""
    if name.endswith("qkv"):
        stem = name.removesuffix("qkv")
        return {
            f"{stem}q": model.query_size * (1 + model.gated_attention),
            f"{stem}k": model.kv_size,
            f"{stem}v": model.projected_value_size,
        }
    if model.gated_mlp and name in ("mlp_up", "shared_expert_up"):
        return {f"{name.removesuffix('_up')}_gate": rows // 2, name: rows // 2}
    return {name: rows}


def _tensors(model: ModelSpec, name: str, part: ParamCount) -> Iterator[Weight]:
    """Weight and bias tensors of one entry of :mod:`planner.layers.parameters`."""
    rows, columns, num_biases = int(part.rows), int(part.columns), int(part.biases)
    if not rows * columns or columns == 1:
        yield from _vector(name, rows * columns)
        yield from _vector(name, num_biases, kind="bias")
        return
    for piece, height in _pieces(model, name, rows).items():
        if height:
            yield Weight(f"{piece}.weight", (height, columns))
        yield from _vector(piece, height * num_biases // rows, kind="bias")


def _all_tensors(model: ModelSpec, parts: Mapping[str, ParamCount]) -> list[Weight]:
    return [weight for name, part in parts.items() for weight in _tensors(model, name, part)]


def _vector(name: str, size: int, *, kind: str = "weight") -> list[Weight]:
    return [Weight(f"{name}.{kind}", (size,))] if size else []


def _norms(model: ModelSpec, together: ParamCount) -> list[Weight]:
    """Norms of the hidden state, of which there are so many parameters together."""
    number = int(together.rows) // model.hidden_size
    return _all_tensors(model, {f"norm_{index}": hidden_norm(model) for index in range(number)})


def _layer(model: ModelSpec, kind: LayerKind) -> list[Weight]:
    """One layer in the order in which its module registers its tensors."""
    parts = layer_params(model, kind)
    norms, extra = _norms(model, parts.pop("norms")), parts.pop("extra")
    tensors = [
        # All routed experts are one tensor of three dimensions.
        replace(weight, shape=(model.moe.num_experts, *weight.shape))
        if model.moe and weight.name.startswith("routed")
        else weight
        for weight in _all_tensors(model.with_attention(LETTERS.get(kind, "F")), parts)
    ]
    return [*tensors, *norms, *_vector("extra", int(extra.rows))]


def weight_shapes(model: ModelSpec, part: Part) -> list[Weight]:
    """Every tensor of one layer of a kind, of the embedding, the final norm or the head.

    Element counts add up to :func:`planner.layers.parameters.count_parameters`. Extras have
    no shape in a model file; each sum of extras is one vector. Padding the vocabulary is left
    to the framework.
    """
    if part == "embedding":
        return _all_tensors(model, embedding_params(model))
    if part == "final_norm":
        return _norms(model, final_norm_params(model)["final_norm"])
    if part == "head":
        return _all_tensors(model, head_params(model))
    return _vector("extra", model.extra_params) if part == "extra" else _layer(model, part)


@dataclass(frozen=True, kw_only=True)
class MeanStates:
    """Bytes per parameter, without master weights."""

    layer: float
    first: float  # Embeddings
    last: float  # Vocabulary head and final norm


def _bytes_of(optimizer: OptimizerSpec, weight: Weight, matrix: TensorKind) -> float:
    """States of one tensor; the leading dimensions of stacked experts count as copies."""
    if len(weight.shape) == 1:
        return state_bytes(optimizer, "vector", weight.shape[0])
    *copies, rows, columns = weight.shape
    return prod(copies) * state_bytes(optimizer, matrix, rows, columns)


def _mean(optimizer: OptimizerSpec, weights: list[Weight], matrix: TensorKind) -> float:
    num_params = sum(prod(weight.shape) for weight in weights)
    total = sum(_bytes_of(optimizer, weight, matrix) for weight in weights)
    return total / num_params if num_params else optimizer.states(matrix).element_bytes


@cache
def mean_states(model: ModelSpec, optimizer: OptimizerSpec) -> MeanStates:
    """State bytes over parameters, tensor by tensor (planner.spec.training.state_bytes).

    Layers of several kinds are averaged. Excludes what sharding does to small tensors: shards
    below ``min_quantised_elements``, and factors that follow a shard's shape.
    """
    layers = list[Weight]()
    for kind, number in layer_counts(model).items():
        layers += number * weight_shapes(model, kind) if number else []
    embedding = weight_shapes(model, "embedding")
    head = embedding
    if not model.tied_embeddings:
        head = [*weight_shapes(model, "head"), *weight_shapes(model, "final_norm")]
    return MeanStates(
        layer=_mean(optimizer, layers, "matrix"),
        first=_mean(optimizer, embedding, "embedding"),
        last=_mean(optimizer, head, "embedding" if model.tied_embeddings else "head"),
    )

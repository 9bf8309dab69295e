"""Weights of a transformer tensor by tensor, as PyTorch modules hold them (no tensor parallelism).

Sharding depends on more than counts: fully sharded data parallelism splits every tensor along
its first dimension, ZeRO flattens tensors in the order in which the module registers them. The
counts and the bias flags come from :mod:`planner.layers.parameters`; this module adds shapes.

Shapes are written (out, in) as in ``torch.nn.Linear``; letters as in that module.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Literal, TypeAlias

from planner.layers.parameters import (
    LayerKind,
    ParamCount,
    attention_params,
    cross_attention_params,
    embedding_params,
    final_norm_params,
    head_params,
    mlp_params,
    moe_params,
)
from planner.spec.model import ModelSpec
from planner.spec.training import OptimizerSpec, TensorKind, state_bytes

# One layer of a kind, or one of the ends; ``extra`` is the model's named extras.
Part: TypeAlias = LayerKind | Literal["embedding", "final_norm", "head", "extra"]
LayoutName: TypeAlias = Literal["transformers", "gpt2", "megatron", "torchtitan"]


@dataclass(frozen=True)
class Weight:
    """One parameter tensor, or ``count`` of the same shape (one per routed expert)."""

    name: str
    shape: tuple[int, ...]
    is_expert: bool = False
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model's code groups its matrices into tensors."""

    fused_qkv: bool = False
    fused_gate_up: bool = False
    transposed: bool = False
    """Matrices of layers are (in, out)."""
    norms_between: bool = False
    """Norms are registered before the half they feed, not after both halves."""
    stacked_experts: bool = False
    """All routed experts in one tensor of three dimensions; gate and up are fused there."""


# Sources: transformers/models/llama/modeling_llama.py and mixtral/modeling_mixtral.py (5.23);
# transformers/models/gpt2/modeling_gpt2.py with Conv1D of transformers/pytorch_utils.py;
# megatron/core/extensions/transformer_engine.py (one tensor per expert);
# torchtitan/models/llama3/__init__.py (fuse_qkv) and common/moe.py (w1 and w3 apart, which shards
# alike).
LAYOUTS: dict[LayoutName, Layout] = {
    "transformers": Layout(stacked_experts=True),
    "gpt2": Layout(fused_qkv=True, transposed=True, norms_between=True, stacked_experts=True),
    "megatron": Layout(fused_qkv=True, fused_gate_up=True, norms_between=True),
    "torchtitan": Layout(fused_qkv=True, stacked_experts=True),
}


def _matrix_shape(model: ModelSpec, name: str, weights: int) -> tuple[int, int]:
    """(out, in) of a matrix from its size: one side is the hidden size or a latent rank."""
    name = name.removeprefix("cross_")
    if name in ("attention_output", "mlp_down") or name.endswith("expert_down"):
        return model.hidden_size, weights // model.hidden_size
    width = model.hidden_size
    if model.mla and name == "query_up":
        width = model.mla.q_lora_rank or width
    if model.mla and name == "kv_up":
        width = model.mla.kv_lora_rank
    return weights // width, width


def _pieces(model: ModelSpec, name: str, rows: int, layout: Layout) -> dict[str, int]:
    """Names and rows of the tensors that together are this matrix."""
    if name.endswith("qkv") and not layout.fused_qkv:
        stem = name.removesuffix("qkv")
        return {
            f"{stem}q": model.query_size,
            f"{stem}k": model.kv_size,
            f"{stem}v": model.kv_size,
        }
    stacked = layout.stacked_experts and name.startswith("routed")
    if name.endswith("_up") and _is_gated(model, name) and not (layout.fused_gate_up or stacked):
        return {f"{name.removesuffix('_up')}_gate": rows // 2, name: rows // 2}
    return {name: rows}


def _is_gated(model: ModelSpec, name: str) -> bool:
    return model.gated_mlp and name.startswith(("mlp", "routed", "shared"))


def _linear(model: ModelSpec, name: str, part: ParamCount, layout: Layout) -> list[Weight]:
    """Weight and bias tensors of one entry of :mod:`planner.layers.parameters`."""
    if not int(part.weights):
        return [Weight(f"{name}.bias", (int(part.biases),))] if int(part.biases) else []
    rows, columns = _matrix_shape(model, name, int(part.weights))
    tensors = []
    for piece, height in _pieces(model, name, rows, layout).items():
        shape = (columns, height) if layout.transposed else (height, columns)
        tensors.append(Weight(f"{piece}.weight", shape))
        if int(part.biases):
            tensors.append(Weight(f"{piece}.bias", (height * int(part.biases) // rows,)))
    return tensors


def _linears(model: ModelSpec, parts: dict[str, ParamCount], layout: Layout) -> list[Weight]:
    return [t for name, part in parts.items() for t in _linear(model, name, part, layout)]


def _vector(name: str, size: int, *, biased: bool = False) -> list[Weight]:
    names = (f"{name}.weight", f"{name}.bias") if biased else (f"{name}.weight",)
    return [Weight(each, (size,)) for each in names] if size else []


def _block_norm(model: ModelSpec, name: str) -> list[Weight]:
    shifted = model.norm == "layernorm" and model.biases.norm
    return _vector(name, model.hidden_size, biased=shifted)


def _attention(model: ModelSpec, layout: Layout) -> list[Weight]:
    """Projections of self-attention; a latent norm follows its down-projection, others the end."""
    query, key = {
        "none": (0, 0),
        "head": (model.head_dim, model.head_dim),
        "full": (model.query_size, model.kv_size),
    }[model.qk_norm]
    latent = {}
    if model.mla:
        latent = {"query_down": model.mla.q_lora_rank, "kv_down": model.mla.kv_lora_rank}
    tensors = []
    for name, part in attention_params(model).items():
        tensors += _linear(model, name, part, layout)
        tensors += _vector(f"{name}_norm", latent.get(name, 0))
    return [*tensors, *_vector("q_norm", query), *_vector("k_norm", key)]


def _moe(model: ModelSpec, layout: Layout) -> list[Weight]:
    """Router, routed experts (stacked, or one tensor each) and the shared expert."""
    num_experts = model.moe.num_experts if model.moe else 0
    tensors = []
    for weight in _linears(model, moe_params(model), layout):
        if not weight.name.startswith("routed"):
            tensors.append(weight)
        elif layout.stacked_experts:
            tensors.append(replace(weight, shape=(num_experts, *weight.shape), is_expert=True))
        else:
            tensors.append(replace(weight, count=num_experts, is_expert=True))
    return tensors


def _layer(model: ModelSpec, kind: LayerKind, layout: Layout) -> list[Weight]:
    """One layer in the order in which its module registers its tensors."""
    halves = [_attention(model, layout)]
    if kind == "cross":
        cross = _linears(model, cross_attention_params(model), layout)
        halves.append([*_block_norm(model, "cross_norm"), *cross])
    mlp = _linears(model, mlp_params(model), layout)
    halves.append(_moe(model, layout) if kind == "moe" else mlp)
    norms = [_block_norm(model, f"norm_{index}") for index in range(model.norms_per_layer)]
    if layout.norms_between and len(norms) >= 2:
        halves = [norms[0], *halves[:-1], norms[1], halves[-1], *norms[2:]]
    else:
        halves += norms
    extra = _vector("extra", model.extra_params_per_layer)
    return [weight for half in [*halves, extra] for weight in half]


def weight_shapes(
    model: ModelSpec, part: Part, layout: LayoutName = "transformers"
) -> tuple[Weight, ...]:
    """Every tensor of one layer of a kind, of the embedding, the final norm or the head.

    Element counts add up to :func:`planner.layers.parameters.count_parameters`. Extras have
    no shape in a model file; each sum of extras is one vector. Padding the vocabulary is left
    to the framework. Sources: see :data:`LAYOUTS`.
    """
    whole = Layout()
    if part == "embedding":
        return tuple(_linears(model, embedding_params(model), whole))
    if part == "final_norm":
        num_norms = int(final_norm_params(model)["final_norm"].weights) // model.hidden_size
        norms = [_block_norm(model, f"norm_{index}") for index in range(num_norms)]
        return tuple(weight for norm in norms for weight in norm)
    if part == "head":
        return tuple(_linears(model, head_params(model), whole))
    if part == "extra":
        return tuple(_vector("extra", model.extra_params))
    return tuple(_layer(model, part, LAYOUTS[layout]))


def layer_kinds(model: ModelSpec) -> list[LayerKind]:
    """Kind of every layer in order; with a step of n, every n-th layer is a mixture.

    Source: transformers/models/llama4/configuration_llama4.py (``moe_layers``).
    """
    kinds: list[LayerKind] = ["dense"] * model.num_layers
    if model.moe:
        first, step = model.moe.num_leading_dense_layers, model.moe.moe_layer_step
        for index in range(first + step - 1, model.num_layers, step):
            kinds[index] = "moe"
    return kinds + ["cross"] * model.num_decoder_layers


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
        return weight.count * state_bytes(optimizer, "vector", weight.shape[0])
    *copies, rows, columns = weight.shape
    return weight.count * prod(copies) * state_bytes(optimizer, matrix, rows, columns)


def _mean(optimizer: OptimizerSpec, weights: list[Weight], matrix: TensorKind) -> float:
    num_params = sum(weight.count * prod(weight.shape) for weight in weights)
    total = sum(_bytes_of(optimizer, weight, matrix) for weight in weights)
    return total / num_params if num_params else optimizer.states(matrix).element_bytes


@cache
def mean_states(model: ModelSpec, optimizer: OptimizerSpec) -> MeanStates:
    """State bytes over parameters, tensor by tensor (planner.spec.training.state_bytes).

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

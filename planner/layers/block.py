"""Whole layers, and what stands before the first and behind the last one."""

from dataclasses import dataclass, field, replace

import numpy as np

from planner.layers.adapters import dequantised_bytes, frozen_end, with_adapters
from planner.layers.attention import (
    attention_ops,
    norm_op,
    tp_entry_comms,
    tp_exit_comms,
)
from planner.layers.mixers import mixer_ops
from planner.layers.mlp import dense_ops, moe_ops
from planner.layers.op import (
    ZERO,
    BothComms,
    Comm,
    Comms,
    Gemm,
    LayerShape,
    Op,
    SavedTensor,
    waited_for,
)
from planner.layers.parameters import (
    LETTERS,
    ONE_PART,
    TWO_PARTS,
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_MIXER,
    WITH_MLP,
    final_norm_params,
    hidden_norm,
    layer_counts,
    layer_kind,
    mlp_params,
    mtp_params,
    stream_params,
)
from planner.layers.saved import saved_by, with_selective_policy, without_last_gemm
from planner.spec.items import SHAPE, item
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits, KernelTraits
from planner.units import Array, ceil_div


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers of one make-up and how many of them the model has."""

    name: str
    num_layers: int
    ops: tuple[Op, ...]
    num_leading: int = 0  # Number of these that come before all others (DeepSeek's dense layers)
    backward: tuple[SavedTensor, ...] = ()
    """Gradients that live together while the layer runs backward."""
    freed: tuple[SavedTensor, ...] = ()
    """Blocks a forward leaves behind that nothing else fits into."""
    dequantised_bytes: Array = field(default_factory=lambda: ZERO)
    """Bytes of the largest matrix that backward makes in 16 bits."""


def padded_vocab_size(model: ModelSpec, tp: Array, padding: int) -> Array:
    """Vocabulary rounded up to a multiple of ``padding · tp``; unchanged when padding is 1.

    Source: Megatron-LM ``--make-vocab-size-divisible-by`` (default 128).
    """
    if padding <= 1:
        return ZERO + model.vocab_size
    multiple = padding * np.asarray(tp)
    return ceil_div(model.vocab_size, multiple) * multiple * 1.0


def layer_groups(
    model: ModelSpec, shape: LayerShape, traits: FrameworkTraits
) -> tuple[LayerGroup, ...]:
    """Return the kinds of layers of a model and their numbers, dense ones first."""
    kernels = traits.kernels
    norm = norm_op("mlp_norm", model, shape, kernels)
    mlp = dense_ops(
        model, shape, kernels, ffn_size=float(model.ffn_size), parts=mlp_params(model, shape.tp)
    )
    groups = []
    for kind, num_layers in layer_counts(model).items():
        if not num_layers:
            continue
        own = model.with_attention(LETTERS.get(kind, "F"))
        ops: tuple[Op, ...] = attention_ops(own, shape, kernels) if kind in WITH_ATTENTION else ()
        if kind in WITH_MIXER and model.mixer:
            mixer = mixer_ops(model, model.mixer, shape, kernels)
            ops += mixer[1:] if ops else mixer  # side by side both read the same norm
        if kind == "cross":
            # Self-attention once more but for its norm; the encoder's sequence is as long.
            ops += (Op(name="cross_norm", params=hidden_norm(model).total),)
            ops += attention_ops(model, shape, kernels)[1:]
        second = (*ops, norm, *mlp) if kind == "double" else ()
        if kind in WITH_EXPERTS:
            ops += (norm, *moe_ops(model, shape, kernels))
        if kind in WITH_MLP:
            # Beside a mixture both read the same norm.
            ops += mlp if kind == "double" else (norm, *mlp)
        ops += second
        if model.num_streams > 1:
            ops += (streams_op(model, shape),)
        ops += (Op(name="extra", params=ZERO + model.extra_params_per_layer),)
        ops = with_selective_policy(ops, own, shape, traits.recompute)
        if not traits.training.is_frozen:  # adapters run behind the product they stand beside
            ops = without_last_gemm(ops, model, kernels)
        ops = with_adapters(
            ops,
            model,
            shape,
            kernels,
            traits.training,
            is_overlapped=traits.overlap.tensor_parallel_overlap != "none",
        )
        # A sum of weights and adapters has a gradient as large.
        made = [each.num_bytes for op in ops for each in op.saved if each.name.endswith(".sum")]
        made.append(dequantised_bytes(model, traits.training))
        dense_first = range(model.moe.num_leading_dense_layers if model.moe else 0)
        groups.append(
            LayerGroup(
                name=kind,
                num_layers=num_layers,
                ops=ops,
                num_leading=sum(layer_kind(model, position) == kind for position in dense_first),
                backward=backward_tensors(kind, model, shape, kernels),
                freed=saved_by("freed", "freed", model, shape, kernels),
                dequantised_bytes=max(made, key=np.max),
            )
        )
    return tuple(groups)


@item("memory.activations.streams", inputs=(*SHAPE, "model.num_streams"))
def streams_op(model: ModelSpec, shape: LayerShape) -> Op:
    """Hyper-connections before attention and before the feed-forward part, of n streams.

    Each has a product of (n² + 2n) x n·h, whole on every tp rank. Elements moved: n·h read for the
    product, n·h and h where streams are joined to one, 2n·h and h where they are mixed and that
    one's result added. Kept: the streams, and the result. Excludes the Sinkhorn iterations on n x n
    numbers per token. Source: arXiv 2512.24880, section 4; transformers modeling_deepseek_v4.py.
    """
    tokens, wide = shape.num_tokens / shape.sp, float(model.stream_size)
    part = stream_params(model)
    moved = tokens * 2.0 * (4.0 * wide + 2.0 * model.hidden_size) * shape.element_bytes
    return Op(
        name="streams",
        params=ZERO + part.total,
        gemms=(Gemm(m=tokens, n=ZERO + part.rows, k=ZERO + wide),),
        forward_bytes=moved,
        backward_bytes=2.0 * moved,
        saved=(shape.kept("streams.kept", 2.0 * (wide + model.hidden_size) / shape.sp),),
    )


def backward_tensors(
    kind: str, model: ModelSpec, shape: LayerShape, traits: KernelTraits
) -> tuple[SavedTensor, ...]:
    """Gradients alive together in a layer's backward: the table's ``backward`` section.

    By default the gradient the layer receives and the one it returns, h each.
    """
    width = "gated" if model.gated_mlp else "plain"
    place = "experts" if kind in WITH_EXPERTS else "mlp"
    return saved_by("backward", f"backward.{place}_{width}", model, shape, traits) or saved_by(
        "backward", "backward.default", model, shape, traits
    )


def embedding_comms(model: ModelSpec, shape: LayerShape) -> BothComms:
    """Collectives behind an embedding split by vocabulary, forward and backward.

    As behind a row-parallel product (:func:`attention.tp_exit_comms`): a rank has the rows of its
    part of the vocabulary only. Where positions are learned they are added to the whole sum, which
    is all-reduced, and split by tokens afterwards. Source: Megatron-Core
    megatron/core/tensor_parallel/layers.py VocabParallelEmbedding, models/common/embeddings/
    language_model_embedding.py reduce_scatter_embeddings; torchtitan the same through DTensor.
    """
    forward, backward = tp_exit_comms(model, shape)
    if not model.num_learned_positions:
        return forward, backward
    whole = sum(comm.num_bytes for comm in forward)
    return (Comm(collective="all_reduce", axis="tp", num_bytes=ZERO + whole),), backward


def head_comms(model: ModelSpec, shape: LayerShape) -> BothComms:
    """Collectives of a head and loss split by vocabulary, forward and backward.

    Before the head as before any column-parallel product (:func:`attention.tp_entry_comms`). The
    loss all-reduces three fp32 numbers per token: the largest logit, the one predicted, the sum of
    exponentials; 12 bytes. Source: Megatron-Core megatron/core/tensor_parallel/cross_entropy.py;
    torch's loss_parallel the same. Nothing runs beside them. Excludes what Megatron hides behind
    the head's own gradients, and the gather of all logits for a loss that is not split.
    """
    entry, backward = tp_entry_comms(model, shape)
    loss = Comm(
        collective="all_reduce",
        axis="tp",
        num_bytes=shape.num_tokens * 4.0 * (shape.tp > 1),
    )
    return waited_for((*entry, loss, loss, loss)), waited_for(backward)


def embedding_op(model: ModelSpec, shape: LayerShape, traits: FrameworkTraits) -> Op:
    """Token and position embedding of the first stage.

    Parameters: V_padded · h / tp + positions · h + extras. Traffic: gather forward, scatter-add
    backward, 4 and 8 bytes per element. Saved: the table's ``embedding`` section, and the input
    of a norm after the embedding (its output is the first layer's input).
    """
    vocab = padded_vocab_size(model, shape.tp, traits.support.vocab_padding)
    elements = shape.num_tokens * model.hidden_size
    saved = saved_by("embedding", "embedding", model, shape, traits.kernels)
    if model.embedding_norm:
        norm = f"norm.{model.norm}"
        saved += saved_by("embedding_norm", norm, model, shape, traits.kernels)[:1]
    return frozen_end(
        Op(
            name="embedding",
            params=vocab / shape.tp * model.hidden_size
            + float(model.num_learned_positions * model.hidden_size + model.extra_params),
            forward_bytes=elements * 2.0 * shape.element_bytes,
            backward_bytes=elements * 4.0 * shape.element_bytes,
            saved=saved,
            comms=embedding_comms(model, shape),
        ),
        traits.training,
        traits.kernels,
    )


def head_op(model: ModelSpec, shape: LayerShape, traits: FrameworkTraits) -> Op:
    """Final norm, vocabulary projection and loss of the last stage.

    Parameters: the final norm, and V_padded · h / tp unless tied to an embedding on the same
    rank (the pipeline's copy is added where stages are priced). Saved: the table's ``head``
    section: logits and what the loss keeps, the norm's input and output.
    """
    vocab = padded_vocab_size(model, shape.tp, traits.support.vocab_padding) / shape.tp
    tokens, hidden = shape.num_tokens, float(model.hidden_size)
    bias = vocab if model.biases.lm_head else 0.0
    own = vocab * hidden * (0.0 if model.tied_embeddings else 1.0)
    return frozen_end(
        Op(
            name="head",
            runs_in_16_bit="head" not in traits.kernels.in_8_bit,
            params=own + bias + final_norm_params(model)["final_norm"].total,
            gemms=(Gemm(m=tokens, n=vocab, k=ZERO + hidden),),
            forward_bytes=tokens * vocab * traits.kernels.loss_traffic_bytes / 2.0,
            backward_bytes=tokens * vocab * traits.kernels.loss_traffic_bytes / 2.0,
            saved=saved_by("head", "head", model, shape, traits.kernels)
            + saved_by("loss", "loss", model, shape, traits.kernels, widths={"logits": vocab}),
            comms=head_comms(model, shape),
        ),
        traits.training,
        traits.kernels,
    )


def block_kinds(kinds: tuple[LayerGroup, ...]) -> tuple[LayerGroup, ...]:
    """The kinds of layers that a further block is made like: those behind the leading ones."""
    behind = tuple(
        replace(kind, num_layers=kind.num_layers - kind.num_leading, num_leading=0)
        for kind in kinds
    )
    return tuple(kind for kind in behind if kind.num_layers) or kinds


def mtp_blocks(
    model: ModelSpec, kinds: tuple[LayerGroup, ...]
) -> tuple[int, tuple[LayerGroup, ...]]:
    """Number of blocks in one layer of multi-token prediction, and the kinds they are made like.

    By ``mtp_pattern`` (Nemotron's ``*E``: attention, then experts), else one like the layers behind
    the leading ones.
    """
    if not model.mtp_pattern:
        return 1, block_kinds(kinds)
    two = {letter: kinds[model.moe is not None] for letter, kinds in TWO_PARTS.items()}
    named = [(ONE_PART | two)[letter] for letter in model.mtp_pattern]
    own = (replace(kind, num_layers=named.count(kind.name), num_leading=0) for kind in kinds)
    return len(named), tuple(kind for kind in own if kind.num_layers)


def mtp_ops(model: ModelSpec, shape: LayerShape, traits: FrameworkTraits) -> tuple[Op, ...]:
    """Embedding, projection, and head with its loss of one further token.

    Embedding and head are the model's, run once more; what they hold is counted where they stand.
    """
    return (
        replace(embedding_op(model, shape, traits), name="mtp_embedding", params=ZERO, saved=()),
        projection_op(model, shape, traits),
        replace(
            head_op(model, shape, traits),
            name="mtp_head",
            params=ZERO + mtp_params(model)["mtp_final_norm"].total,
        ),
    )


@item("memory.transient.mtp", inputs=(*SHAPE, "model.vocab_size", "job.mtp_layers"))
def projection_op(model: ModelSpec, shape: LayerShape, traits: FrameworkTraits) -> Op:
    """Both norms, and the projection of 2h to h.

    Parameters: 2 gains, 2h · h / tp. Saved: what both norms read, and their joined outputs,
    ``2 · 2h`` elements each, divided by tp under sequence parallelism. The projection is split by
    column, its output gathered and split again by tokens.
    """
    parts = mtp_params(model, shape.tp)
    tokens, hidden = shape.num_tokens, ZERO + model.hidden_size
    entry, entry_back = tp_entry_comms(model, shape)
    gather = Comm(
        collective="all_gather",
        axis="tp",
        num_bytes=tokens * hidden * shape.element_bytes * (shape.tp > 1),
    )
    # 8 bytes per element of the joined input: read and written by the norms, and where they join.
    joined = tokens * 2.0 * hidden / shape.sp * 8.0 * shape.wideness
    _, leave_back = tp_exit_comms(model, shape)
    return Op(
        name="mtp_projection",
        params=parts["mtp_norms"].total + parts["mtp_projection"].total,
        gemms=(Gemm(m=tokens, n=hidden / shape.tp, k=2.0 * hidden),),
        forward_bytes=joined,
        backward_bytes=joined,
        saved=saved_by("norms", f"norm.{model.norm}", model, shape, traits.kernels, count=2.0),
        comms=((*_twice(entry), gather), (*_twice(entry_back), *leave_back)),
    )


def _twice(comms: Comms) -> Comms:
    """Collectives of 2h per token in place of h."""
    return tuple(replace(comm, num_bytes=2.0 * comm.num_bytes) for comm in comms)

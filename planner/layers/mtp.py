"""One layer of multi-token prediction as Ops, but for its block, which is one of the model's.

Source: DeepSeek-V3, arXiv 2412.19437, section 2.2; Megatron-Core,
megatron/core/transformer/multi_token_prediction.py.
"""

from dataclasses import replace

from planner.layers.attention import tp_entry_comms, tp_exit_comms
from planner.layers.block import LayerGroup, embedding_op, head_op
from planner.layers.op import ZERO, Comm, Gemm, LayerShape, Op
from planner.layers.parameters import mtp_params
from planner.layers.saved import saved_by
from planner.spec.items import SHAPE, item
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits

JOIN_BYTES = 8.0
"""Per element of the joined input: read and written by the norms, and where they are joined."""


def block_kinds(kinds: tuple[LayerGroup, ...]) -> tuple[LayerGroup, ...]:
    """The kinds of layers that a further block is made like: those behind the leading ones."""
    behind = tuple(
        replace(kind, num_layers=kind.num_layers - kind.num_leading, num_leading=0)
        for kind in kinds
    )
    return tuple(kind for kind in behind if kind.num_layers) or kinds


def mtp_ops(model: ModelSpec, shape: LayerShape, traits: FrameworkTraits) -> tuple[Op, ...]:
    """Embedding, projection, and head with its loss of one further token.

    Embedding and head are the model's, run once more; what they hold is counted where they stand.
    """
    embedding, head = embedding_op(model, shape, traits), head_op(model, shape, traits)
    final_norm = ZERO + mtp_params(model)["mtp_final_norm"].total
    return (
        replace(embedding, name="mtp_embedding", params=ZERO, saved=()),
        projection_op(model, shape, traits),
        replace(head, name="mtp_head", params=final_norm),
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
    gathered = tokens * hidden * shape.element_bytes * (shape.tp > 1)
    joined = tokens * 2.0 * hidden / shape.sp * JOIN_BYTES * shape.wideness
    _, leave_back = tp_exit_comms(model, shape)
    return Op(
        name="mtp_projection",
        params=parts["mtp_norms"].total + parts["mtp_projection"].total,
        gemms=(Gemm(m=tokens, n=hidden / shape.tp, k=2.0 * hidden),),
        forward_bytes=joined,
        backward_bytes=joined,
        saved=saved_by("norms", f"norm.{model.norm}", model, shape, traits.kernels, count=2.0),
        forward_comms=(
            *_twice(entry),
            Comm(collective="all_gather", axis="tp", num_bytes=gathered),
        ),
        backward_comms=(*_twice(entry_back), *leave_back),
    )


def _twice(comms: tuple[Comm, ...]) -> tuple[Comm, ...]:
    """Collectives of 2h per token in place of h."""
    return tuple(replace(comm, num_bytes=2.0 * comm.num_bytes) for comm in comms)

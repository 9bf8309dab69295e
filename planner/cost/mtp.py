"""What layers of multi-token prediction cost on the stage of the head."""

from dataclasses import dataclass

from planner.cost.layer_time import (
    Setting,
    TimeItems,
    add_items,
    layer_passes,
    op_backward,
    op_forward,
    scale_items,
)
from planner.layers.block import LayerGroup
from planner.layers.mtp import block_kinds, mtp_ops
from planner.layers.op import ZERO, LayerShape, Op
from planner.layers.parameters import mtp_params
from planner.spec.model import ModelSpec
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class MtpCosts:
    """All layers of multi-token prediction together, on distinct layer shapes."""

    time: TimeItems
    """Forward and backward of a micro-batch."""
    params: Array
    expert_params: Array
    linear_params: Array
    """Of the projection, whose shape no other linear layer has."""
    saved_bytes: Array
    """Kept for backward from one micro-batch, which is over before the next one starts."""


def mtp_costs(
    model: ModelSpec, shape: LayerShape, kinds: tuple[LayerGroup, ...], setting: Setting
) -> MtpCosts:
    """``n · (block + embedding + projection + head and loss)`` of n layers.

    The block is as the model's layers behind its leading ones (arXiv 2412.19437, section 2.2);
    embedding and head are the model's, run once more. Excludes the copy that joins all hidden
    states.
    """
    number = setting.job.mtp_layers
    if not number:
        return MtpCosts(
            time={}, params=ZERO, expert_params=ZERO, linear_params=ZERO, saved_bytes=ZERO
        )
    ops, blocks = mtp_ops(model, shape, setting.traits), block_kinds(kinds)
    passes = layer_passes(blocks, setting)
    around = [price(op, setting) for op in ops for price in (op_forward, op_backward)]
    num_behind = sum(kind.num_layers for kind in blocks)
    shared = [(kind.num_layers / num_behind, kind.ops) for kind in blocks]
    everything: list[tuple[float, tuple[Op, ...]]] = [(1.0, ops), *shared]

    def of(figure: str, *, expert: bool | None = None) -> Array:
        total: Array = ZERO + number * sum(
            share * getattr(op, figure)
            for share, group in everything
            for op in group
            if expert is None or op.is_expert == expert
        )
        return total

    return MtpCosts(
        time=scale_items(add_items(passes.forward, passes.backward, *around), float(number)),
        params=of("params", expert=False),
        expert_params=of("params", expert=True),
        linear_params=mtp_params(model, shape.tp)["mtp_projection"].total,
        saved_bytes=of("saved_bytes"),
    )

"""Experts with a capacity: how many tokens they get where some are dropped, or padding is added."""

import numpy as np

from planner.layers.op import LayerShape
from planner.spec.traits import KernelTraits
from planner.units import Array


def received_share(shape: LayerShape, traits: KernelTraits) -> Array:
    """Tokens that the busiest rank of experts gets, over the mean of what routers choose.

    With an imbalance i over ep > 1 ranks and a capacity factor c: ``1 + i`` without a capacity,
    ``min(1 + i, c)`` where an expert's tokens beyond ``c T k / E`` of every rank's T tokens are
    dropped, and ``c`` where every expert is padded to that. Source: GShard, arXiv 2006.16668,
    section 2.2 (recalled); Switch Transformer, arXiv 2101.03961, section 2.2 (recalled);
    get_capacity and topk_softmax_with_capacity in megatron/core/transformer/moe/moe_utils.py.
    Excludes rounding up to whole tokens, tokens dropped by one rank's share of the batch although
    others' have room, and what dropping does to the loss.
    """
    factor = traits.expert_capacity_factor
    if not factor:
        return shape.busiest
    if traits.pads_to_capacity:
        return np.full_like(shape.busiest, factor)
    return np.minimum(shape.busiest, factor)


def sent_share(traits: KernelTraits) -> float:
    """Rows that a rank sorts to send, over its tokens times top-k: ``c`` padded, else at most 1.

    Source as of :func:`received_share`; MoEAlltoAllTokenDispatcher, num_out_tokens.
    """
    factor = traits.expert_capacity_factor
    if not factor:
        return 1.0
    return factor if traits.pads_to_capacity else min(1.0, factor)

"""Experts with a capacity, against figures by hand."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import shape_of

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.layers.mlp import moe_ops
from planner.layers.op import Op, dispatched_token_fraction, kept_token_fraction
from planner.spec.traits import KernelTraits

IMBALANCE = 0.5
KERNELS = load_traits("megatron").kernels


def limited(factor: float, *, pads: bool = False) -> KernelTraits:
    return replace(KERNELS, expert_capacity_factor=factor, pads_to_capacity=pads)


@pytest.mark.parametrize(
    ("factor", "pads", "received", "sent"),
    [
        (0.0, False, [1.0, 1.5], 1.0),
        # The busiest rank's surplus beyond the capacity is dropped; what fits is not padded.
        (1.25, False, [1.0, 1.25], 1.0),
        (2.0, False, [1.0, 1.5], 1.0),
        (0.8, False, [0.8, 0.8], 0.8),
        # Padded, every expert has as many rows, however tokens are routed.
        (1.25, True, [1.25, 1.25], 1.25),
        (1.0, True, [1.0, 1.0], 1.0),
    ],
)
def test_a_capacity_bounds_the_busiest_rank_and_padding_fills_all(
    factor: float, pads: bool, received: list[float], sent: float
) -> None:
    shape = replace(shape_of(ep=1), ep=np.array([1.0, 8.0]), imbalance_fraction=IMBALANCE)
    traits = limited(factor, pads=pads)
    assert kept_token_fraction(shape, traits).tolist() == received
    assert dispatched_token_fraction(traits) == sent


def test_products_memory_and_exchange_grow_with_the_padding() -> None:
    model = load_model("mixtral-8x7b")

    def ops(traits: KernelTraits, **degrees: int) -> dict[str, Op]:
        shape = replace(shape_of(seq_len=4096, **degrees), imbalance_fraction=IMBALANCE)
        return {op.name: op for op in moe_ops(model, shape, traits)}

    padded, even = ops(limited(1.25, pads=True), ep=8), ops(limited(1.0, pads=True), ep=8)
    for read in (
        lambda found: found["expert_up"].gemms[0].flops,
        lambda found: found["expert_activation"].saved_bytes,
        lambda found: found["dispatch"].comms[0][0].num_bytes,
        lambda found: found["dispatch"].forward_bytes,
        lambda found: found["combine"].backward_bytes,
    ):
        assert float(read(padded)[0] / read(even)[0]) == pytest.approx(1.25)
    # Two passes of what the busiest rank keeps beside the experts, 1.5 of what all send.
    dropped = ops(limited(1.25), ep=8)["dispatch"].forward_bytes / even["dispatch"].forward_bytes
    assert dropped == pytest.approx((2.0 * 1.25 + 1.5) / 3.5)
    more, once = (ops(limited(each, pads=True), tp=2, etp=2)["dispatch"] for each in (1.25, 1.0))
    assert more.comms[0][1].num_bytes / once.comms[0][1].num_bytes == pytest.approx(1.25)

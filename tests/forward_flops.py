"""Matrix FLOPs of an op's forward pass, which the program never adds up by itself."""

from planner.layers.op import Op
from planner.units import Array


def forward_flops(op: Op) -> Array:
    products = sum((gemm.flops for gemm in op.gemms), start=0.0)
    return products + (op.attention.flops if op.attention else 0.0)

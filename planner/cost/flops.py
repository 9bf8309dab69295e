"""Model FLOPs: the numerator of MFU."""

import numpy as np

from planner.layers.block import layer_groups
from planner.layers.op import LayerShape
from planner.spec.job import JobSpec
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits

FLOPS_CONVENTION = (
    "model FLOPs = 3 x forward matmul FLOPs (6 per matmul parameter and token), attention over "
    "the full square (12 L s h per token), vocabulary projection included, embedding lookup and "
    "recomputation excluded (arXiv 2204.02311, appendix B); MFU divides by the dense peak of the "
    "job's precision"
)


def model_flops_per_iteration(model: ModelSpec, job: JobSpec, traits: FrameworkTraits) -> float:
    """FLOPs of one optimizer step under FLOPS_CONVENTION.

    ``3 · Σ_ops forward_flops · global_batch``; three for forward and the two backward products.
    The attention square is counted whole, whatever the kernel skips; padding of the vocabulary
    is not counted. Source: PaLM, arXiv 2204.02311, appendix B.
    """
    one = np.ones(1)
    shape = LayerShape(
        micro_batch=one, seq_len=job.seq_len, tp=one, cp=one, ep=one, sequence_parallel=0 * one
    )
    flops = 0.0
    for group in layer_groups(model, shape, traits):
        for op in group.ops:
            flops += group.num_layers * sum(gemm.flops.item() for gemm in op.gemms)
            if op.attention:
                flops += group.num_layers * op.attention.square_flops.item()
    unpadded = 2.0 * job.seq_len * model.vocab_size * model.hidden_size
    return 3.0 * (flops + unpadded) * job.global_batch

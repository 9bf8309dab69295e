"""What ZenFlow keeps: states of the columns that the device steps, and the host's second buffers.

Read in deepspeed/runtime/zenflow and deepspeed/ops/adam/zenflow_torch_adam.py, release 0.19.8.
"""

import numpy as np

from planner.cost.context import Context
from planner.cost.data_parallel import weight_bytes
from planner.cost.memory import offloads
from planner.spec.strategy import StrategyColumns
from planner.spec.zenflow import ZenFlow
from planner.units import Array

_MOMENTS, _GRADIENT, _COPY = 2.0, 1.0, 1.0
"""Of a weight in a column that was chosen, as wide as the weight itself: two moments; the gradient
that its step takes; the weight put aside while the host's comes (temp_copy_param)."""
_SECOND_BUFFERS_BYTES = 16.0
"""Of a parameter of the host's: a second fp32 gradient, two further moments, the weights as the
last step left them (overlap_grad, exp_avg1, exp_avg_sq1, stale_param)."""


def selected_bytes(zenflow: ZenFlow, element_bytes: float, share: Array | float) -> Array:
    """``k · share · w · 4``: bytes per parameter that the device keeps for the columns chosen.

    k is the ratio of columns, w the width of a weight; two moments, gradient and copy are as wide.
    ``share`` of the columns is a rank's: all below stage 3, where every rank steps them alike, a
    shard there. With moments and copies on the host the gradient is left. Source:
    ZenFlowSelectiveAdamW. Excludes vectors (biases, norms), which are all stepped, column sums and
    the choice itself, and the bucket in which moments come from the host.
    """
    kept = _GRADIENT if zenflow.offload else _MOMENTS + _GRADIENT + _COPY
    return np.asarray(zenflow.topk_ratio * share * element_bytes * kept)


def host_buffer_bytes(
    zenflow: ZenFlow, element_bytes: float, share: Array | float, owned: Array | float
) -> Array:
    """``16 · owned``, and ``k · share · w · 3``: bytes per parameter that the host keeps more.

    The first where the host steps beside training: buffers that one iteration fills while the step
    reads the others. The second where moments and copies of the columns chosen stay there.
    Source: start_optimizer_process and zenflow_optimizer_process in
    deepspeed/runtime/zenflow/zenflow_utils.py. Excludes what is not pinned twice.
    """
    away = zenflow.topk_ratio * share * element_bytes * (_MOMENTS + _COPY)
    doubled = _SECOND_BUFFERS_BYTES * zenflow.overlap_step * owned
    return np.asarray(doubled + zenflow.offload * away)


def selected_state_bytes(
    context: Context, strategy: StrategyColumns, num_shards: Array
) -> tuple[Array, Array]:
    """Bytes per parameter more on the device and on the host, where the optimizer's are there."""
    zenflow, width = context.traits.zenflow, weight_bytes(context)
    owned = 1.0 / num_shards
    share = np.where(strategy.zero_stage >= 3, owned, 1.0)
    away = offloads(strategy, "optimizer")
    return (
        away * selected_bytes(zenflow, width, share),
        away * host_buffer_bytes(zenflow, width, share, owned),
    )

"""An even split of layers, estimated for strategies of any pipeline degree at once.

Stages between the ends differ only in layers and micro-batches in flight, so four of them tell
the slowest stage and the highest peak: the first, the second, the first with an extra layer, and
the last.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.pipeline import makespan_s
from planner.cost.stage import StageModel
from planner.units import Array, Mask


@dataclass(frozen=True, kw_only=True)
class EvenEstimate:
    """Time and memory of every strategy under an even split without recomputation."""

    iteration_s: Array
    peak_bytes: Array
    fits: Mask


def even_estimate(model: StageModel, num_layers: int) -> EvenEstimate:
    """Estimate every row; the remainder of ``num_layers / pp`` goes to the last stages.

    Equal to the full stage matrices (a test holds it).
    """
    pp = model.strategy.pp * 1.0
    fewest = np.floor(num_layers / pp)
    num_larger = num_layers - fewest * pp
    first_larger = np.minimum(pp - num_larger, pp - 1)
    stages = np.stack([0.0 * pp, np.minimum(1.0, pp - 1), first_larger, pp - 1]).T
    layers = fewest[:, None] + (stages >= (pp - num_larger)[:, None])
    slowest = model.time_s(layers, None, stages).max(axis=1)
    total = num_layers * model.layer_s + model.first_s + model.last_s + pp * model.link_s
    makespan = makespan_s(model.strategy, slowest, total, model.bubble_filled_s)
    tail = model.step_end_s(layers, stages).max(axis=1)
    peak = model.peak_bytes(layers, None, stages).max(axis=1)
    host = model.host_bytes(layers, None, stages).max(axis=1)
    return EvenEstimate(
        iteration_s=makespan + tail + model.constant_s,
        peak_bytes=peak,
        fits=np.asarray((peak <= model.usable_bytes) & (host <= model.host_limit_bytes)),
    )

"""Layers per stage where a stage runs several model chunks.

Chunks are equal, k = ceil(L / (p v)) layers, but where layers are missing: the first stage may lack
up to a chunk, taken off its first chunk, which the embedding fills up, the last stage likewise off
its last chunk, which the head fills up, and stages between them some layers of their chunks; one
stage at least holds v full chunks. The closed form of the schedule takes a stage's time as the sum
of its chunks, and a bubble as a share of it, which holds for chunks that are equal on the slowest
stage. Megatron-LM ``--pipeline-model-parallel-layout``, torchtitan ``module_fqns_per_model_part``.
"""

import numpy as np

from planner.spec.strategy import SCHEDULES, StrategyColumns
from planner.units import Array, Mask


def has_equal_chunks(strategy: StrategyColumns) -> Mask:
    """Rows with one split only, of equal chunks: as other schedules' closed forms ask."""
    return np.asarray((strategy.vpp > 1) & (strategy.schedule != SCHEDULES.index("1f1b")))


def chunk_size(num_layers: int, pp: Array, vpp: Array) -> Array:
    """Layers of a full chunk: ``ceil(L / (p v))``."""
    return np.asarray(np.ceil(num_layers / (np.asarray(pp) * np.asarray(vpp))))


def max_chunk_layers(num_layers: int, pp: Array, vpp: Array) -> Array:
    """Layers that some stage holds at least: v full chunks; without interleaving ceil(L / p)."""
    return np.asarray(np.asarray(vpp) * chunk_size(num_layers, pp, vpp))


def slowest_stage_s(
    strategy: StrategyColumns, num_layers: int, layer_s: Array, first_s: Array, last_s: Array
) -> Array:
    """Least possible slowest stage without memory limits: mean, tallest, and either end."""
    pp, vpp = strategy.pp, strategy.vpp
    mean = (layer_s * num_layers + first_s + last_s) / pp
    full = max_chunk_layers(num_layers, pp, vpp)
    fewest = np.maximum(full - chunk_size(num_layers, pp, vpp), 1.0)
    ends = fewest * layer_s + np.maximum(first_s, last_s)
    return np.maximum(np.maximum(mean, layer_s * full), ends)


def chunks_fit(num_layers: int, pp: Array, vpp: Array, uneven: Mask | bool) -> Mask:
    """Return where some split exists: equal chunks, or one full stage and the others' fewest."""
    pp, vpp = np.asarray(pp), np.asarray(vpp)
    full = max_chunk_layers(num_layers, pp, vpp)
    size = chunk_size(num_layers, pp, vpp)
    at_end = 2.0 * full - size + (pp - 2) * vpp
    between = np.where(pp > 2, 3.0 * full - 2.0 * size + (pp - 3) * vpp, np.inf)
    legal = (pp > 1) & (np.minimum(at_end, between) <= num_layers)
    return np.where(uneven, legal, num_layers % (pp * vpp) == 0)


def range_at(strategy: StrategyColumns, num_layers: int, stages: Array) -> tuple[Array, Array]:
    """Fewest and most layers of the given stages, whatever the others hold; 1 x P or C x P.

    Rows may have fewer stages than columns; what is beyond holds none.
    """
    pp = strategy.pp[:, None] * 1.0
    vpp = strategy.vpp[:, None] * 1.0
    full = max_chunk_layers(num_layers, pp, vpp)
    size = chunk_size(num_layers, pp, vpp)
    is_end = (stages == 0) | (stages == pp - 1)
    interleaved = vpp > 1
    fewest = np.where(interleaved, np.where(is_end, full - size, vpp), 1.0)
    most = np.where(interleaved, full, num_layers - pp + 1.0)
    equal = has_equal_chunks(strategy)[:, None]
    inside = stages < pp
    fewest = np.where(equal, num_layers / pp, fewest) * inside
    return fewest, np.where(equal, num_layers / pp, most) * inside


def fits_chunks(layers: Array, vpp: Array, pp: Array | None = None) -> Mask:
    """Splits (C x P) that ``chunk_layers`` can lay out; all without interleaving.

    ``pp`` where rows have fewer stages than columns.
    """
    vpp = np.asarray(vpp)[:, None] * 1.0
    num_stages = np.full(vpp.shape, layers.shape[1]) if pp is None else np.asarray(pp)[:, None]
    stages = np.arange(layers.shape[1])[None, :]
    size = np.ceil(layers.sum(axis=1, keepdims=True) / (num_stages * vpp))
    is_end = (stages == 0) | (stages == num_stages - 1)
    least = np.where(stages < num_stages, np.where(is_end, (vpp - 1.0) * size, vpp), 0.0)
    full = layers.max(axis=1, keepdims=True) == vpp * size
    legal = (layers >= least).all(axis=1) & full[:, 0]
    return np.asarray(legal | (vpp == 1)[:, 0])


def regular_layers(num_layers: int, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Equal stages; or the last one, or both ends, a layer short for the head and the embedding.

    None where layers divide in none of these ways; of interleaved stages one has full chunks.
    """
    size, missing = divmod(num_layers - 1, pp * vpp)
    missing = pp * vpp - 1 - missing
    if missing > min(2, pp) or (vpp > 1 and missing >= pp):
        return None
    layers = [(size + 1) * vpp] * pp
    layers[-1] -= missing > 0
    layers[0] -= missing > 1
    return tuple(layers) if min(layers) > 0 else None


def default_layers(num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Return layers per stage that are as equal as they can be.

    Without interleaving, what is left over goes to the last stages. Interleaved stages are full;
    what is missing is taken from the last stage, then the first, up to a chunk each, then from
    those between, the later ones first.
    """
    base, extra = divmod(num_layers, pp)
    even = tuple(base + (stage >= pp - extra) for stage in range(pp))
    if vpp == 1:
        return even
    size = -(-num_layers // (pp * vpp))
    layers = [size * vpp] * pp
    missing = size * vpp * pp - num_layers
    ends = [(pp - 1, size), (0, size)]
    between = [(stage, size * vpp - vpp) for stage in range(pp - 2, 1, -1)]
    for stage, spare in (*ends, *between):
        taken = min(missing, spare)
        layers[stage], missing = layers[stage] - taken, missing - taken
    return tuple(layers) if not missing else even

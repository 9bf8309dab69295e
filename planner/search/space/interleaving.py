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
    """True for rows that must have equal chunks: interleaved, of a schedule other than 1F1B."""
    is_interleaved = strategy.vpp > 1
    is_other = strategy.schedule != SCHEDULES.index("1f1b")
    return np.asarray(is_interleaved & is_other)


def chunk_size(num_layers: int, pp: Array, vpp: Array) -> Array:
    """Layers of a full chunk: ``ceil(L / (p v))``."""
    num_chunks = np.asarray(pp) * np.asarray(vpp)
    return np.asarray(np.ceil(num_layers / num_chunks))


def full_stage_layers(num_layers: int, pp: Array, vpp: Array) -> Array:
    """Layers of a stage whose chunks are all full, as one at least is: ``v · ceil(L / (p v))``."""
    return np.asarray(np.asarray(vpp) * chunk_size(num_layers, pp, vpp))


def slowest_stage_s(
    strategy: StrategyColumns, num_layers: int, layer_s: Array, first_s: Array, last_s: Array
) -> Array:
    """Least possible slowest stage without memory limits: mean, tallest, and either end."""
    pp, vpp = strategy.pp, strategy.vpp
    mean = (layer_s * num_layers + first_s + last_s) / pp
    full = full_stage_layers(num_layers, pp, vpp)
    size = chunk_size(num_layers, pp, vpp)
    fewest = np.maximum(full - size, 1.0)
    longer_end_s = np.maximum(first_s, last_s)
    ends = fewest * layer_s + longer_end_s
    tallest = layer_s * full
    return np.maximum(np.maximum(mean, tallest), ends)


def has_legal_split(num_layers: int, pp: Array, vpp: Array, uneven: Mask | bool) -> Mask:
    """True where layers can be split: into equal chunks, or with one full stage if ``uneven``."""
    pp, vpp = np.asarray(pp), np.asarray(vpp)
    full = full_stage_layers(num_layers, pp, vpp)
    size = chunk_size(num_layers, pp, vpp)
    # The full stage is at an end, or between the two.
    at_end = 2.0 * full - size + (pp - 2) * vpp
    three = 3.0 * full - 2.0 * size
    between = np.where(pp > 2, three + (pp - 3) * vpp, np.inf)
    fewest = np.minimum(at_end, between)
    legal = (pp > 1) & (fewest <= num_layers)
    divides = num_layers % (pp * vpp) == 0
    return np.where(uneven, legal, divides)


def range_at(strategy: StrategyColumns, num_layers: int, stages: Array) -> tuple[Array, Array]:
    """Fewest and most layers of the given stages, whatever the others hold; 1 x P or C x P.

    Rows may have fewer stages than columns; what is beyond holds none.
    """
    pp = strategy.pp[:, None] * 1.0
    vpp = strategy.vpp[:, None] * 1.0
    full = full_stage_layers(num_layers, pp, vpp)
    size = chunk_size(num_layers, pp, vpp)
    is_end = (stages == 0) | (stages == pp - 1)
    interleaved = vpp > 1
    of_chunks = np.where(is_end, full - size, vpp)
    fewest = np.where(interleaved, of_chunks, 1.0)
    all_but_others = num_layers - pp + 1.0
    most = np.where(interleaved, full, all_but_others)
    equal = has_equal_chunks(strategy)[:, None]
    each = num_layers / pp
    inside = stages < pp
    fewest = np.where(equal, each, fewest)
    most = np.where(equal, each, most)
    return fewest * inside, most * inside


def fits_chunks(layers: Array, vpp: Array, pp: Array | None = None) -> Mask:
    """True for splits (C x P) that ``chunk_layers`` can lay out; always without interleaving.

    ``pp`` where rows have fewer stages than columns.
    """
    vpp = np.asarray(vpp)[:, None] * 1.0
    num_columns = layers.shape[1]
    num_stages = np.full(vpp.shape, num_columns) if pp is None else np.asarray(pp)[:, None]
    stages = np.arange(num_columns)[None, :]
    num_layers = layers.sum(axis=1, keepdims=True)
    size = np.ceil(num_layers / (num_stages * vpp))
    is_end = (stages == 0) | (stages == num_stages - 1)
    least = np.where(is_end, (vpp - 1.0) * size, vpp)
    least = np.where(stages < num_stages, least, 0.0)
    tallest = layers.max(axis=1, keepdims=True)
    is_full = (tallest == vpp * size)[:, 0]
    legal = (layers >= least).all(axis=1) & is_full
    is_alone = (vpp == 1)[:, 0]
    return np.asarray(legal | is_alone)


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

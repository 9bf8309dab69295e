"""Layers per stage under an interleaved schedule: equal chunks, or short ones at the ends."""

import numpy as np

from planner.units import Array

NOT_POSSIBLE = 3.0


def missing_layers(num_layers: int, pp: Array, vpp: Array) -> Array:
    """Layers short of equal chunks: 0; 1, taken from the last chunk; 2, also from the first.

    The loss (and the embedding) then stand in for a layer: Megatron-LM
    ``--account-for-loss-in-pipeline-split``, ``--account-for-embedding-in-pipeline-split``;
    torchtitan's shorter first and last stage. NOT_POSSIBLE where even that is uneven.
    """
    chunks = np.asarray(pp) * np.asarray(vpp)
    missing = np.full(np.broadcast(chunks).shape, NOT_POSSIBLE)
    for count in (2, 1, 0):
        missing = np.where((num_layers + count) % chunks == 0, float(count), missing)
    return missing


def interleaved_layers(num_layers: int, num_stages: int, vpp: Array) -> Array:
    """The one split an interleaved strategy may have, C x P."""
    missing = missing_layers(num_layers, np.full_like(vpp, num_stages), vpp)
    layers = np.repeat(((num_layers + missing) / num_stages)[:, None], num_stages, axis=1)
    layers[:, 0] -= missing == 2
    layers[:, -1] -= missing >= 1
    return layers

"""Parameters one rank holds, to the last one: whole layers, by their true position.

The cost model averages layers of kinds that take turns; here every stage holds the layers it
really has.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from planner.layers.block import padded_vocab_size
from planner.layers.parameters import (
    ONE_PART,
    TWO_PARTS,
    LayerKind,
    Parts,
    embedding_params,
    final_norm_params,
    head_params,
    layer_params,
)
from planner.spec.model import ModelSpec
from planner.units import ceil_div

EXPERT_PARTS = ("routed_expert_up", "routed_expert_down")


class RankParameters(NamedTuple):
    """Parameters of one rank by the ranks that hold the same ones."""

    dense: int  # Replicated over data parallelism
    experts: int  # Routed experts, replicated over tp · cp · dp / (etp · ep)

    @property
    def total(self) -> int:
        """All parameters of the rank."""
        return self.dense + self.experts


def layer_kind(model: ModelSpec, position: int) -> LayerKind:
    """Kind of the layer at this position, counted from 0 through both stacks.

    Mixtures are every ``moe_layer_step``-th layer after the leading dense ones; the layers of a
    second stack also attend to the first.
    """
    if position >= model.num_layers:
        return "cross"
    letter = model.layer_pattern[position] if model.layer_pattern else "F"
    if letter in ONE_PART:
        return ONE_PART[letter]
    is_mixture = False
    if model.moe is not None:
        after = position - model.moe.num_leading_dense_layers
        is_mixture = after >= 0 and (after + 1) % model.moe.moe_layer_step == 0
    return TWO_PARTS[letter][is_mixture]


def stage_layers(chunks: Sequence[int], *, vpp: int, stage: int) -> list[int]:
    """Positions of the layers of one pipeline stage.

    ``chunks`` holds the layers of every model chunk from embedding to head; chunk c is on stage
    c mod p, with p = chunks / vpp (interleaved schedule, arXiv 2104.04473, section 2.2).
    """
    num_stages = len(chunks) // vpp
    ends = list(accumulate(chunks))
    return [
        position
        for chunk in range(stage, len(chunks), num_stages)
        for position in range(ends[chunk] - chunks[chunk], ends[chunk])
    ]


def _sum(parts: Parts) -> int:
    return sum(int(part.total) for part in parts.values())


def _layer_parameters(
    model: ModelSpec, kind: LayerKind, *, tp: int, ep: int, etp: int
) -> RankParameters:
    parts = layer_params(model, kind, tp)
    split = layer_params(model, kind, etp)
    one_expert = _sum({name: split[name] for name in EXPERT_PARTS if parts.pop(name, None)})
    held = int(ceil_div(model.moe.num_experts, ep)) if model.moe else 0
    return RankParameters(dense=_sum(parts), experts=held * one_expert)


def rank_parameters(
    model: ModelSpec,
    chunks: Sequence[int],
    *,
    stage: int,
    vpp: int = 1,
    tp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    vocab_padding: int = 1,
) -> RankParameters:
    """Parameters of one tensor- and expert-parallel rank of a pipeline stage.

    ``Σ layers of the stage + [first] (embedding + extras) + [last] (final norm + head)``, where a
    mixture counts E / ep of its E experts, each split over etp (None: tp), and a tied head is a
    second copy of the token embedding on a last stage that is not the first. ``chunks`` as in
    :func:`stage_layers`: without interleaving, the layers of every stage. The vocabulary is padded
    to a multiple of ``vocab_padding · tp``. Shards as in :mod:`planner.layers.parameters`; both
    final norms of an encoder-decoder are counted on the last stage.
    """
    num_stages = len(chunks) // vpp
    padded = padded_vocab_size(model, np.asarray(tp), vocab_padding).item()
    padded_model = replace(model, vocab_size=int(padded))
    kinds = [layer_kind(model, n) for n in stage_layers(chunks, vpp=vpp, stage=stage)]
    layers = {
        kind: _layer_parameters(model, kind, tp=tp, ep=ep, etp=etp or tp)
        for kind in sorted(set(kinds))
    }
    dense = sum(layers[kind].dense for kind in kinds)
    embedding = embedding_params(padded_model, tp)
    if stage == 0:
        dense += _sum(embedding) + model.extra_params
    if stage == num_stages - 1:
        dense += _sum(final_norm_params(model)) + _sum(head_params(padded_model, tp))
        if model.tied_embeddings and num_stages > 1:
            dense += int(embedding["token_embedding"].total)
    return RankParameters(dense=dense, experts=sum(layers[kind].experts for kind in kinds))

"""Penalties: what a mechanism must gain before a plan that uses it goes before one without it.

Plans are ranked by ``modelled time x product of the penalties of what they use``. A penalty is
the error with which the mechanism's gain is known, as a factor of at least 1: a gain inside that
error is no reason to use it. So plans whose modelled times tie are ordered by simplicity, and a
mechanism without evidence counts with the unfavourable end of its range.

Three kinds of evidence (``EvidencePenalty.basis``):

- ``pairs``: the median error of time ratios over published pairs that differ in just this;
- ``drift``: how far measured over predicted time moves per doubling of a degree, times
  ``b² / (b² + s²)`` with its standard error s, so that what is hardly known counts little;
- ``prior``: a stated assumption, where nothing was published.

Figures of the first two are those of ``planner/frameworks/ratio_errors.yaml``, rounded, which
``tools/accuracy.py`` writes; a test holds both together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from planner.cost.context import Context
from planner.search.ranking.mechanisms import Uses, degree_uses, state_uses
from planner.search.space.interleaving import regular_layers
from planner.spec.strategy import LAYER_POLICY_NAMES, POLICIES, Strategy, StrategyColumns
from planner.units import GB, Array


@dataclass(frozen=True, kw_only=True)
class EvidencePenalty:
    """One mechanism, its factor, and why."""

    factor: float
    """Factor on the iteration time, at least 1; per doubling where the mechanism is a degree."""
    basis: Literal["pairs", "drift", "prior"] = "prior"
    kind: str = ""  # Key of ratio_errors.yaml, for ``pairs`` and ``drift``
    reason: str


# Every mechanism that counts, with its reason; the order is that of the documentation.
PENALTIES: Mapping[str, EvidencePenalty] = MappingProxyType(
    {
        "optimizer_offload": EvidencePenalty(
            factor=1.3,
            reason="its constants are fitted on 16 published pairs with and without, whose ratio "
            "is 7 % off on average and 17 % at worst beside the measured time without, 40 % off of "
            "two modelled times (two pairs held out: 13 %, taken as not pinned); a host was seen "
            "to take twice as long for the step; assumed as much as recomputing everything costs, "
            "which people prefer",
        ),
        "parameter_offload": EvidencePenalty(
            factor=1.4,
            reason="beside the optimizer's: Falcon-7B on 8 A100 took 13.7 s with both, 1.1 times "
            "the modelled time, taken as not pinned (DeepSpeed issue 3901); one pair, fitted on",
        ),
        "nvme": EvidencePenalty(
            factor=1.5,
            reason="beside what is offloaded: no published training run states its NVMe rates",
        ),
        "activation_offload": EvidencePenalty(
            factor=1.20,
            reason="over PCIe, shared with gradients and data: two of 203 tuned recipes use it "
            "there, on B300; published pairs, 0 to 5 %, send inputs of recomputed layers only",
        ),
        "activation_offload_fast_link": EvidencePenalty(
            factor=1.02,
            reason="over NVLink-C2C: NVIDIA's tuned choice for 70B and 405B on GB200 and GB300; "
            "published pairs cost 0 to 5 %",
        ),
        "split_backward": EvidencePenalty(
            factor=1.05,
            reason="zero-bubble and DualPipe schedules: a fork of Megatron or new code of "
            "torchtitan; no published run with a whole configuration",
        ),
        "virtual_stages": EvidencePenalty(
            factor=1.01,
            reason="per doubling: the smaller bubble is arithmetic, further transfers and launches "
            "are small; 14 published runs drift by -0.1 % a doubling, with an error of 3.7 %",
        ),
        "tensor_parallel": EvidencePenalty(
            factor=1.015,
            basis="drift",
            kind="tp",
            reason="per doubling: published runs slow down more with tp than the model says",
        ),
        "tensor_parallel_across_domains": EvidencePenalty(
            factor=1.10,
            reason="no published run leaves the scale-up domain with tp",
        ),
        "context_parallel": EvidencePenalty(
            factor=1.01,
            basis="drift",
            kind="cp",
            reason="per doubling: rings wait for their slowest member",
        ),
        "short_context_pieces": EvidencePenalty(
            factor=1.03,
            reason="per halving of the tokens of a sequence on one rank of cp below 4,096: no "
            "published run and one tuned recipe of 203 cut it finer; small products and exchanges "
            "that do not hide",
        ),
        "no_sequence_parallel": EvidencePenalty(
            factor=1.012,
            basis="pairs",
            kind="recomputation, sequence parallel",
            reason="tensor parallelism without sequence parallelism, where it is offered: all "
            "tuned recipes with tp have both",
        ),
        "large_micro_batch": EvidencePenalty(
            factor=1.01,
            reason="per doubling of a micro-batch of several sequences beyond the tokens of any "
            "tuned recipe; below, larger ones gain more in published runs than the model says",
        ),
        "sharded_weights": EvidencePenalty(
            factor=1.02,
            reason="ZeRO stage 3 where the framework offers less: gathers of every layer must "
            "hide behind its products, on every node at once",
        ),
        "weights_across_domains": EvidencePenalty(
            factor=1.08,
            reason="ZeRO stage 3 beyond one scale-up domain where pipelining is offered too: all "
            "but two tuned recipes that shard weights have a domain of 72 or GPUs of 270 GiB; "
            "none on 80 GB, where it was offered as well",
        ),
        "sharded_gradients": EvidencePenalty(
            factor=1.03,
            reason="ZeRO stage 2 where pipelining is offered too: no tuned recipe stops there, "
            "all that shard gradients shard weights",
        ),
        "weights_over_many_ranks": EvidencePenalty(
            factor=1.45,
            reason="there, per doubling of the ranks that share them beyond 192: six published "
            "pairs of ZeRO-3 and tensor with pipeline parallelism on 384 to 2,240 A100 "
            "(arXiv 2104.04473, table 2) have ZeRO-3 1.45 to 4.1 times slower than modelled "
            "beside the other, 1.45 per doubling from 192 on",
        ),
        "full_sharding_over_many_ranks": EvidencePenalty(
            factor=1.10,
            reason="where the framework shards whole weights always, per doubling beyond 512 "
            "ranks: the model meets published runs up to there, and none is larger",
        ),
        "hybrid_sharding": EvidencePenalty(
            factor=1.01,
            reason="replicated sharding groups: two collectives for one, few published runs",
        ),
        "other_placement": EvidencePenalty(
            factor=1.02,
            reason="an order of axes that is not the framework's first: no published run says so",
        ),
        "many_local_experts": EvidencePenalty(
            factor=1.15,
            reason="per doubling beyond the most whole experts a tuned recipe holds on a rank: "
            "small grouped products, their launches and weight gradients; pairs at 64 on B200 "
            "are 2 % off, nothing is published beyond",
        ),
        "many_expert_ranks": EvidencePenalty(
            factor=1.05,
            reason="per doubling beyond the most expert ranks of a published training run",
        ),
        "selective": EvidencePenalty(
            factor=1.02,
            basis="pairs",
            kind="recomputation",
            reason="some activations recomputed",
        ),
        "full": EvidencePenalty(
            factor=1.02,
            basis="pairs",
            kind="recomputation",
            reason="all activations recomputed",
        ),
        "further_module": EvidencePenalty(
            factor=1.002,
            reason="per module selected beyond the first: of sets that tie the smaller one",
        ),
        "unusual_modules": EvidencePenalty(
            factor=1.005,
            reason="modules that the framework's profile does not select by itself",
        ),
        "part_of_the_layers": EvidencePenalty(
            factor=1.005,
            reason="a policy for some layers only: one policy for all is simpler, and stages stay "
            "alike",
        ),
        "uneven_stages": EvidencePenalty(
            factor=1.008,
            reason="layers that pp does not divide evenly need a layout written out; 23 of 125 "
            "tuned recipes have one",
        ),
    }
)


def factor_of(name: str) -> float:
    """The factor of one entry of PENALTIES."""
    return PENALTIES[name].factor


def _product(uses: Uses) -> Array:
    """``Π factor ** times``."""
    logs = [np.log(factor_of(name)) * np.asarray(times) for name, times in uses]
    return np.asarray(np.exp(np.sum(np.broadcast_arrays(*logs), axis=0)))


def degree_penalty(context: Context, columns: StrategyColumns) -> Array:
    """The part of :func:`penalty` that the degrees alone decide, whatever becomes of states.

    So it is a lower bound of the whole for every strategy of a shape.
    """
    return _product(degree_uses(context, columns))


def evidence_penalty(context: Context, columns: StrategyColumns) -> Array:
    """Product of the penalties of what each strategy uses, at least 1; one per row.

    Dimensionless, to be multiplied with the modelled time. Source of every factor: PENALTIES.
    Excludes what is decided per layer and per stage (:func:`policy_penalty`,
    :func:`split_penalty`).
    """
    return _product([*degree_uses(context, columns), *state_uses(context, columns)])


def policy_penalty(
    kind: str, modules: Sequence[str] | None, context: Context, *, partial: bool = False
) -> float:
    """Factor of a policy for saved activations, one of LAYER_POLICY_NAMES.

    ``modules`` are those that selective recomputation repeats; None is the profile's own set.
    ``partial``: only some of the layers are under it. Source: PENALTIES.
    """
    if kind not in LAYER_POLICY_NAMES:
        raise ValueError(f"unknown policy {kind!r}; allowed are {', '.join(LAYER_POLICY_NAMES)}")
    if kind == "none":
        return 1.0
    factor = factor_of("part_of_the_layers") if partial else 1.0
    if kind == "offloaded":
        # From 100 GB/s on a host link is part of the machine, not a bus: PCIe 5 reaches 52 GB/s,
        # Grace's NVLink-C2C 180 to 359 (hwdb, host_link_gb_per_s_per_direction).
        is_fast = context.cluster.node.host_link_bytes_per_s >= 100.0 * GB
        name = "activation_offload_fast_link" if is_fast else "activation_offload"
        return factor * factor_of(name)
    if kind != "selective":
        return factor * factor_of(kind)
    selected = context.traits.recompute.selected
    chosen = selected if modules is None else tuple(modules)
    factor *= factor_of("selective") * factor_of("further_module") ** max(len(chosen) - 1, 0)
    return factor * (1.0 if set(chosen) == set(selected) else factor_of("unusual_modules"))


def split_penalty(layers_per_stage: Sequence[int], vpp: int = 1) -> float:
    """Factor of a split of the layers: more than 1 where it is not the regular one."""
    layers = tuple(layers_per_stage)
    is_regular = layers == regular_layers(sum(layers), len(layers), vpp)
    return 1.0 if is_regular else factor_of("uneven_stages")


def penalties_of(context: Context, strategy: Strategy) -> dict[str, float]:
    """The factor of everything one plan uses, by name; what tells policies apart as ``policy``."""
    columns = strategy.columns()
    uses = [*degree_uses(context, columns), *state_uses(context, columns)]
    found = {name: factor_of(name) ** float(np.asarray(times)[0]) for name, times in uses}
    for kind, counts in zip(POLICIES, strategy.policy_counts, strict=True):
        if any(counts):
            partial = counts != strategy.layers_per_stage
            modules = strategy.recompute_modules
            found[kind] = policy_penalty(kind, modules, context, partial=partial)
    found["uneven_stages"] = split_penalty(strategy.layers_per_stage, strategy.vpp)
    return {name: factor for name, factor in found.items() if factor > 1.0}

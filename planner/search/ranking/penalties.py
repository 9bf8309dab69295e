"""What weighs on a layout beside its modelled time, in the two steps behind it.

Layouts are ranked in three steps:

1. the modelled time, times the *penalty* of each mechanism that nobody has published at this kind
   of job: it must gain more than the uncertainty of its gain (``Context.ranking`` ``evidence``);
2. layouts within TIE_FRACTION of the fastest by that are ties: published runs do not tell them
   apart;
3. of ties the simplest comes first (``simplicity``). What is less simple counts in *steps*, each
   worth TIE_FRACTION of the time: a whole step decides between any two ties, a part of one where
   the times differ by less than that part of the width.

Shares of a step stand for the widths of narrower kinds of differences: those of
``planner/frameworks/ratio_errors.yaml``, which ``tools/accuracy.py`` writes; a test holds them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, log, log1p
from types import MappingProxyType

import numpy as np

from planner.cost.context import Context
from planner.cost.states import offloads
from planner.spec.strategy import (
    PLACEMENT_NAMES,
    SCHEDULES,
    Strategy,
    StrategyColumns,
)
from planner.units import GB, Array, Mask

# Names of PENALTIES and SIMPLICITY, and how often each strategy uses the mechanism: exponents of
# their factors, dimensionless; a mask counts as 0 and 1.
Uses = list[tuple[str, Array | Mask]]

# Median error of ratios of layouts that differ in degrees and micro-batch: 526 published pairs.
TIE_FRACTION = 0.05
# 80 % of ratios of degrees alone (172 pairs) are within 11.9 %: the unpublished must gain more.
UNPUBLISHED = 1.12


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """A mechanism whose gain is hardly known, and what it must gain."""

    reason: str
    factor: float = UNPUBLISHED  # On the time; per doubling where the mechanism is a degree
    num_runs: int = 0  # Published runs or pairs it rests on


@dataclass(frozen=True, kw_only=True)
class Simplicity:
    """What makes a layout less simple."""

    steps: float  # Each worth TIE_FRACTION of the time; per doubling where it is a degree
    reason: str


PENALTIES: Mapping[str, Penalty] = MappingProxyType(
    {
        "optimizer_offload": Penalty(
            factor=1.3,
            num_runs=16,
            reason="16 published pairs with and without: the ratio of two modelled times is up to "
            "40 % off, as hosts differ",
        ),
        "parameter_offload": Penalty(
            factor=1.2,
            num_runs=1,
            reason="beside the optimizer's: one pair, on which its constants are fitted",
        ),
        "nvme": Penalty(
            reason="beside what is offloaded: no published training run states its NVMe rates",
        ),
        "activation_offload": Penalty(
            reason="over PCIe, shared with gradients and data; two of 203 tuned recipes use it",
        ),
        "activation_offload_fast_link": Penalty(
            factor=1.05,
            num_runs=8,
            reason="over NVLink-C2C: published pairs with and without differ by 0 to 5 %",
        ),
        "split_backward": Penalty(
            reason="zero-bubble and DualPipe schedules: a fork of Megatron or new in torchtitan",
        ),
        "tensor_parallel_across_domains": Penalty(
            reason="tensor parallelism beyond the scale-up domain"
        ),
        "tensor_parallel_beside_zero": Penalty(
            reason="tensor parallelism beside ZeRO-3, or under frameworks without pipelines",
        ),
        "small_tensor_parallel_under_fsdp": Penalty(
            reason="where weights are always sharded, tensor parallelism leaving room in the node: "
            "all of 20 published runs fill it",
        ),
        "context_parallel_under_fsdp": Penalty(
            reason="sequences below 16k split beside sharded weights: none of 31 tuned recipes",
        ),
        "short_context_pieces": Penalty(
            reason="per halving of a rank's part of a sequence below 4,096 tokens: one of 203 "
            "tuned recipes cuts it finer",
        ),
        "many_context_ranks": Penalty(
            reason="per doubling beyond 16, the most in a published run (at 128k and 1M tokens)",
        ),
        "deep_pipeline_with_small_tensor_parallel": Penalty(
            num_runs=12,
            reason="dense models, tensor parallelism leaving room in the node, per doubling beyond "
            "16 stages: 12 runs, all of three sweeps; others with more stages fill the node",
        ),
        "sharded_gradients": Penalty(
            reason="ZeRO-2 where pipelining is offered: all that shard gradients shard weights",
        ),
        "weights_across_domains": Penalty(
            num_runs=2,
            reason="ZeRO-3 beyond one scale-up domain where pipelining is offered: two tuned "
            "recipes, with GPUs of 270 GiB or a domain of 72",
        ),
        "replicated_shards": Penalty(
            reason="replicas of FSDP's groups where pipelining is offered: none of 9 recipes",
        ),
        "sharded_experts": Penalty(
            num_runs=3,
            reason="ZeRO-3 of mixtures where pipelining is offered: none of 91 tuned recipes, and "
            "slower than stages in published comparisons",
        ),
        "weights_over_many_ranks": Penalty(
            factor=1.45,
            num_runs=6,
            reason="there, per doubling of the ranks that share them beyond 192: six pairs of "
            "ZeRO-3 and tensor with pipeline parallelism (arXiv 2104.04473, table 2)",
        ),
        "full_sharding_over_many_ranks": Penalty(
            reason="where the framework always shards weights, per doubling beyond 512 ranks",
        ),
        "experts_not_spread": Penalty(
            num_runs=1,
            reason="every expert on every rank, where they can be spread: one of 92 recipes",
        ),
        "many_local_experts": Penalty(
            reason="per doubling beyond 32 whole experts on a rank, the most in a tuned recipe",
        ),
        "many_expert_ranks": Penalty(
            reason="per doubling beyond 64 expert ranks, the most in a published training run",
        ),
    }
)

# In the order of the documentation: from what is hardest to run to what is a matter of taste.
SIMPLICITY: Mapping[str, Simplicity] = MappingProxyType(
    {
        "optimizer_offload": Simplicity(steps=3.0, reason="states on the host"),
        "parameter_offload": Simplicity(steps=2.0, reason="weights on the host, too"),
        "nvme": Simplicity(steps=2.0, reason="states on disks"),
        "activation_offload": Simplicity(steps=2.0, reason="activations sent to the host by PCIe"),
        "activation_offload_fast_link": Simplicity(
            steps=0.5,
            reason="by NVLink-C2C: NVIDIA's choice for 70B and 405B on GB200 and GB300",
        ),
        "most_activations_offloaded": Simplicity(
            steps=1.0, reason="more than half of the layers': none of 8 tuned recipes that offload"
        ),
        "full": Simplicity(steps=1.2, reason="layers recomputed whole: 37 of 195 tuned recipes"),
        "selective": Simplicity(steps=0.4, reason="some activations recomputed: pairs 2.0 % off"),
        "part_of_the_layers": Simplicity(
            steps=0.7, reason="up to half of the layers recomputed whole"
        ),
        "unusual_modules": Simplicity(
            steps=0.15, reason="modules that the framework does not select by itself"
        ),
        "further_module": Simplicity(steps=0.06, reason="per module selected beyond the first"),
        "uneven_stages": Simplicity(
            steps=2.0,
            reason="none of 57 tuned recipes, but for 61 layers, a prime number: all of 25",
        ),
        "small_context_pieces": Simplicity(
            steps=0.3,
            reason="per halving of a rank's part of a sequence below 16k tokens: one of 17 runs "
            "of 32k and more cuts finer",
        ),
        "context_parallel": Simplicity(
            steps=0.5, reason="per doubling: tensor parallelism comes first where the node has room"
        ),
        "tensor_parallel": Simplicity(steps=0.3, reason="per doubling: runs drift by 1.5 %"),
        "pipeline_parallel": Simplicity(
            steps=0.35,
            reason="per doubling: tensor parallelism comes first (arXiv 2104.04473, takeaway 1)",
        ),
        "virtual_stages": Simplicity(steps=0.2, reason="per doubling: more transfers and launches"),
        "many_virtual_stages": Simplicity(
            steps=1.0, reason="per doubling beyond 12, the most in 211 tuned recipes"
        ),
        "tensor_parallel_of_mixtures": Simplicity(
            steps=1.2,
            reason="sequences below 16k, experts spread: 5 of 91 tuned recipes of mixtures",
        ),
        "tensor_parallel_under_fsdp": Simplicity(
            steps=1.0, reason="where weights are always sharded: 20 of 115 published runs"
        ),
        "few_expert_ranks": Simplicity(
            steps=0.6, reason="per halving below 8 ranks: 5 of 91 tuned recipes of mixtures"
        ),
        "sharded_weights": Simplicity(
            steps=1.0, reason="ZeRO-3 where less is offered: gathers of every layer on every node"
        ),
        "deep_pipeline": Simplicity(
            steps=1.0, reason="per doubling beyond 16 stages, the most in 211 tuned recipes"
        ),
        "odd_degrees": Simplicity(
            steps=1.0,
            reason="stages of no power of two; 0.3 where they divide GPUs and layers: 59 runs",
        ),
        "hybrid_sharding": Simplicity(steps=0.3, reason="replicas of sharding groups"),
        "other_placement": Simplicity(
            steps=0.6, reason="an order of the axes that is not the framework's first"
        ),
        "no_sequence_parallel": Simplicity(
            steps=0.4, reason="tensor without sequence parallelism: no tuned recipe"
        ),
        "large_micro_batch": Simplicity(
            steps=0.3, reason="per doubling beyond 32k tokens, the most of a tuned recipe"
        ),
    }
)


def factor_of(context: Context, name: str) -> float:
    """Factor on the time of a mechanism used once, under the context's ranking."""
    factor = 0.0
    if context.ranking != "time" and name in PENALTIES:
        factor += log(PENALTIES[name].factor)
    if context.ranking == "simplicity" and name in SIMPLICITY:
        factor += SIMPLICITY[name].steps * log1p(TIE_FRACTION)
    return float(np.exp(factor))


def _doublings(value: Array, beyond: Array | float = 1.0) -> Array:
    """``log2(value / beyond)`` where that is positive, else 0."""
    if value.dtype.kind == "i" and np.ndim(beyond) == 0 and value.max(initial=0) < len(value):
        # Degrees repeat: each is computed once.
        degrees = np.arange(value.max() + 1.0)
        return np.asarray(_doublings(degrees, beyond)[value])
    ratio = value / np.asarray(beyond, dtype=np.float64)
    return np.asarray(np.log2(np.maximum(ratio, 1.0)))


def degree_uses(context: Context, columns: StrategyColumns) -> Uses:
    """Return what degrees, micro-batches and experts use: ``experts / ep`` are whole on a rank.

    Bounds from which on a degree counts are those of tuned recipes and published runs.
    """
    domain = context.cluster.domain.num_accelerators
    both = gcd(context.cluster.num_accelerators, context.model.num_blocks)
    support, seq_len = context.traits.support, context.job.seq_len
    is_short = seq_len < 16384
    shards_always, moe = min(support.zero_stages) >= 2, context.model.moe
    num_experts = moe.num_experts if moe and "ep" in support.features else 0
    splits, cuts, deep = columns.tp > 1, columns.cp > 1, _doublings(columns.pp, 16)
    is_small = columns.tp < min(domain, context.cluster.node.num_accelerators)
    return [
        ("tensor_parallel", _doublings(columns.tp)),
        ("tensor_parallel_across_domains", columns.tp > domain),
        ("tensor_parallel_under_fsdp", splits & shards_always),
        ("small_tensor_parallel_under_fsdp", splits & is_small & shards_always),
        ("pipeline_parallel", _doublings(columns.pp)),
        ("deep_pipeline", deep),
        ("deep_pipeline_with_small_tensor_parallel", deep * (is_small & (num_experts == 0))),
        (
            "odd_degrees",
            (np.bitwise_and(columns.pp, columns.pp - 1) > 0) * np.where(both % columns.pp, 1, 0.3),
        ),
        ("context_parallel", _doublings(columns.cp)),
        ("many_context_ranks", _doublings(columns.cp, 16)),
        ("small_context_pieces", cuts * _doublings(16384 * columns.cp, seq_len)),
        # Published runs have at least 4,096 tokens of a sequence on a context-parallel rank.
        ("short_context_pieces", cuts * _doublings(4096 * columns.cp, seq_len)),
        ("virtual_stages", _doublings(columns.vpp)),
        ("many_virtual_stages", _doublings(columns.vpp, 12)),
        ("tensor_parallel_of_mixtures", splits & (columns.ep > 1) & is_short),
        (
            "few_expert_ranks",
            _doublings(np.minimum(columns.num_gpus / columns.pp, min(num_experts, 8)), columns.ep),
        ),
        (
            "no_sequence_parallel",
            splits & (columns.sequence_parallel == 0) & ("sequence_parallel" in support.features),
        ),
        # The most tokens of one micro-batch of several sequences on one rank in a tuned recipe.
        (
            "large_micro_batch",
            (columns.micro_batch > 1)
            * _doublings(columns.micro_batch * seq_len / columns.cp, 32768),
        ),
        ("experts_not_spread", (columns.ep == 1) & (num_experts > 0)),
        # The most in a tuned recipe: 256 over ep 8, 32 over ep 1.
        ("many_local_experts", _doublings(num_experts / columns.ep, 32)),
        # The most in a tuned recipe or a published training run.
        ("many_expert_ranks", _doublings(columns.ep, 64)),
    ]


def sharding_uses(context: Context, columns: StrategyColumns) -> Uses:
    """Return what ZeRO stages and offload use, whatever the ranks that share states.

    Of offload the optimizer, then parameters, then the disk, cumulatively, and the same for every
    percentage: a part offloaded takes the machinery of the whole.
    """
    support = context.traits.support
    is_choice = min(support.zero_stages) < 2
    by_choice = (columns.zero_stage == 3) & is_choice
    is_fsdp = by_choice | ("pp" not in support.features)
    return [
        ("tensor_parallel_beside_zero", (columns.tp > 1) & is_fsdp),
        (
            "context_parallel_under_fsdp",
            (columns.cp > 1) & (context.job.seq_len < 16384) & (is_fsdp | (not is_choice)),
        ),
        ("sharded_gradients", (columns.zero_stage == 2) & (is_choice and "pp" in support.features)),
        ("sharded_weights", by_choice),
        (
            "sharded_experts",
            by_choice & ("pp" in support.features) & (context.model.moe is not None),
        ),
        ("optimizer_offload", columns.offload > 0),
        ("parameter_offload", offloads(columns, "parameters") > 0),
        ("nvme", offloads(columns, "nvme") > 0),
    ]


def state_uses(context: Context, columns: StrategyColumns) -> Uses:
    """Return what ZeRO stages, rank orders, schedules and offload use."""
    support = context.traits.support
    usual = PLACEMENT_NAMES.index(support.placements[0])
    is_choice = min(support.zero_stages) < 2
    shards_weights = columns.zero_stage == 3
    ranks = columns.dp / columns.dp_replicate * columns.cp
    # Published pairs show no loss up to 192 ranks that share the weights under ZeRO stage 3.
    by_choice = shards_weights * _doublings(ranks, 192)
    # The most under FSDP in a published run, which the model meets (torchtitan, Composer).
    always = shards_weights * _doublings(ranks, 512)
    splits_backward = np.array([name not in ("1f1b", "gpipe") for name in SCHEDULES])
    beside = is_choice and "pp" in support.features
    spread = ranks * columns.tp > context.cluster.domain.num_accelerators
    return [
        *sharding_uses(context, columns),
        ("weights_across_domains", shards_weights & beside & spread),
        ("replicated_shards", (columns.zero_stage >= 2) & beside & (columns.dp_replicate > 1)),
        ("weights_over_many_ranks", by_choice * is_choice),
        ("full_sharding_over_many_ranks", always * (not is_choice)),
        ("hybrid_sharding", (columns.dp_replicate > 1) & (columns.zero_stage > 0)),
        ("other_placement", columns.placement != usual),
        ("split_backward", splits_backward[columns.schedule]),
    ]


def evidence_penalty(
    context: Context, columns: StrategyColumns, *parts: Callable[[Context, StrategyColumns], Uses]
) -> Array:
    """Product of the factors of what each strategy uses, ``Π factor ** times``; one per row.

    Dimensionless, to be multiplied with the modelled time. Source of every factor: PENALTIES, and
    SIMPLICITY where the context ranks by it. ``parts``: what is counted, all if none is named; what
    degrees, or ZeRO stage and offload, use alone is a lower bound. Excludes what is decided per
    layer and per stage (:func:`policy_penalty`, :func:`uneven_penalty`).
    """
    logs = np.zeros(len(columns))
    for part in parts or (degree_uses, state_uses):
        for name, times in part(context, columns):
            if (factor := factor_of(context, name)) != 1.0:
                logs += log(factor) * times
    return np.exp(logs)


def _activation_offload(context: Context) -> str:
    """Name of the mechanism on the context's hosts."""
    # From 100 GB/s on a host link is part of the machine, not a bus: PCIe 5 reaches 52 GB/s,
    # Grace's NVLink-C2C 180 to 359 (hwdb, host_link_gb_per_s_per_direction).
    is_fast = context.cluster.node.host_link_bytes_per_s >= 100.0 * GB
    return "activation_offload_fast_link" if is_fast else "activation_offload"


def policy_penalty(
    kind: str, modules: Sequence[str] | None, context: Context, *, partial: bool = False
) -> float:
    """Factor of a policy for saved activations.

    ``modules`` are those that selective recomputation repeats; None is the profile's own set.
    ``partial``: at most half of the layers are recomputed whole or offloaded.
    """
    if kind == "none":
        return 1.0
    if kind == "full":
        return factor_of(context, "part_of_the_layers" if partial else "full")
    if kind == "offloaded":
        most = 1.0 if partial else factor_of(context, "most_activations_offloaded")
        return factor_of(context, _activation_offload(context)) * most
    selected = context.traits.recompute.selected
    chosen = selected if modules is None else tuple(modules)
    factor = factor_of(context, "selective")
    factor *= factor_of(context, "further_module") ** max(len(chosen) - 1, 0)
    return factor * (1.0 if set(chosen) == set(selected) else factor_of(context, "unusual_modules"))


def uneven_penalty(context: Context, num_layers: int) -> float:
    """Factor of stages that differ: 1 for a prime number of layers, which has no even split."""
    is_prime = all(num_layers % pp for pp in range(2, num_layers))
    return 1.0 if is_prime else factor_of(context, "uneven_stages")


def penalties_of(context: Context, strategy: Strategy) -> dict[str, float]:
    """The penalty of everything one plan uses, by name."""
    context = replace(context, ranking="evidence")
    columns = strategy.columns()
    uses = [*degree_uses(context, columns), *state_uses(context, columns)]
    found = {name: factor_of(context, name) ** float(np.asarray(times)[0]) for name, times in uses}
    if strategy.layers_under["offloaded"]:
        name = _activation_offload(context)
        found[name] = factor_of(context, name)
    return {name: factor for name, factor in found.items() if factor > 1.0}

"""What ways to keep replicas in step cost that are no plain all-reduce of gradients.

Per gradient of a rank, w bytes wide, over n data-parallel ranks. Formulas take numbers or columns.
"""

from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from planner.collectives.cost import Link
from planner.collectives.parameter_server import parameter_server_all_reduce
from planner.cost.collectives import collective_s
from planner.cost.context import Context
from planner.cost.kernels import memory_bound_s
from planner.cost.memory import reduced_gradient_bytes, shard_degree
from planner.cost.topology import Group, group_of
from planner.layers.weights import Part, layer_kinds, weight_shapes
from planner.spec.cluster import ClusterSpec
from planner.spec.exchange import ONE_BIT, PERIODIC, GradientExchange
from planner.spec.items import FABRIC, HBM, item
from planner.spec.model import ModelSpec
from planner.spec.strategy import StrategyColumns
from planner.units import Array

INDEX_BYTES = 4.0
"""Of a gradient that is sent alone."""
SIGN_BYTES = 1.0 / 8.0
_OUTER_BYTES = 4.0
"""Of an element of the outer optimizer's weights, momentum and change: fp32."""
_OUTER_PASSES = 6.0
"""Weights, outer weights and momentum read and written, once a round (arXiv 2311.08105,
algorithm 1, lines 12 to 14)."""
_POWERSGD_PASSES = 11.0
"""Error added 3, copy 2, two products 1 each, product back 1, new error 3: powerSGD_hook."""
_TOP_K_PASSES = 8.0
"""Error added 3, a threshold found and applied 2, what is sent taken out of the error 3."""
_ONE_BIT_BYTES = 170.0
"""Error added 12, norm 4, signs and new error 84, the servers' half 34, unpacked again 36: kernels
of compressed_allreduce in deepspeed/runtime/comm/nccl.py, release 0.14; counted."""


def low_rank_elements(shape: tuple[int, ...], rank: int) -> int:
    """Elements of P and Q in place of a tensor's: ``r (n + m)``, or ``n m`` where that is no half.

    A tensor is the matrix of its first dimension and the product of the others, ``r`` at most its
    rank. Source: arXiv 1905.13727, section 3; min_compression_rate 2 of torch's PowerSGDState.
    """
    rows, columns = shape[0], prod(shape[1:])
    kept = min(rows, columns, rank) * (rows + columns)
    return kept if 2 * kept < rows * columns else rows * columns


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """All weights of a model: elements, tensors, and elements of PowerSGD's factors."""

    elements: int
    number: int
    low_rank: int


@cache
def tensors_of(model: ModelSpec, rank: int = 1) -> Tensors:
    """Count a model's tensors as transformers' modules hold them (planner.layers.weights)."""
    parts: list[Part] = [*layer_kinds(model), "embedding", "final_norm", "head", "extra"]
    weights = [weight for part in parts for weight in weight_shapes(model, part)]
    return Tensors(
        elements=sum(each.count * prod(each.shape) for each in weights),
        number=sum(each.count for each in weights),
        low_rank=sum(each.count * low_rank_elements(each.shape, rank) for each in weights),
    )


def low_rank_fraction(model: ModelSpec, exchange: GradientExchange) -> float:
    """Elements of PowerSGD's P and Q, and of what stays whole, over those of the gradients."""
    tensors = tensors_of(model, int(exchange.value))
    return tensors.low_rank / tensors.elements


def hidden_exchange_s(
    context: Context, elements: Array, wire_bytes: Array | float, group: Group
) -> Array:
    """Seconds of one bucket's exchange, beside backward where buckets are.

    fp16, bf16: an all-reduce of 2 bytes. powersgd: three all-reduces, of P, of Q and of what stays
    whole, together ``f w`` bytes an element (:func:`low_rank_fraction`). topk: every rank gathers
    ``n d (w + 4)``, values and indices of the share d. int8: it gathers ``n`` bytes. 1-bit: the
    share of iterations that are warm-up, plainly. Periodic ones: nothing. Source:
    planner/spec/exchange.py; 1712.01887, section 3. Excludes scales, a few bytes a tensor, and
    entropy coding.
    """
    exchange, cluster = context.traits.exchange, context.cluster
    name, share = exchange.name, exchange.value
    if name in ("fp16", "bf16"):
        return collective_s("all_reduce", elements * 2.0, group, cluster)
    if name == "powersgd":
        part = elements * wire_bytes * low_rank_fraction(context.model, exchange) / 3.0
        return 3.0 * collective_s("all_reduce", part, group, cluster)
    if name == "topk":
        sent = share * (wire_bytes + INDEX_BYTES)
        return collective_s("all_gather", elements * sent * group.size, group, cluster)
    if name == "int8":
        return collective_s("all_gather", elements * group.size, group, cluster)
    plain = collective_s("all_reduce", elements * wire_bytes, group, cluster)
    return plain * (share if name in ONE_BIT else 0.0)


def encoding_bytes(exchange: GradientExchange, wire_bytes: Array, num_ranks: Array) -> Array:
    """HBM bytes per gradient to make what is sent and to take in what comes.

    fp16, bf16: ``2 (w + 2)``. powersgd: 11 passes of w. topk: 8 of them, and ``2 n d (w + 4)`` to
    add what all ranks send. int8: ``w + 1 + n (1 + 2 w)``. 1-bit: 170 behind the warm-up. DiLoCo:
    6 passes in fp32 every H iterations. Counted in the code or algorithm that
    planner/spec/exchange.py names. Excludes orthogonalising P, whose columns are few, and fused
    kernels, which would take a third to a half.
    """
    name, share = exchange.name, exchange.value
    costs: dict[str, Array | float] = {
        "fp16": 2.0 * (wire_bytes + 2.0),
        "bf16": 2.0 * (wire_bytes + 2.0),
        "powersgd": _POWERSGD_PASSES * wire_bytes,
        "topk": _TOP_K_PASSES * wire_bytes + 2.0 * num_ranks * share * (wire_bytes + INDEX_BYTES),
        "int8": wire_bytes + 1.0 + num_ranks * (1.0 + 2.0 * wire_bytes),
        "diloco": _OUTER_PASSES * _OUTER_BYTES / max(share, 1.0),
    }
    costs |= dict.fromkeys(ONE_BIT, (1.0 - share) * _ONE_BIT_BYTES)
    return np.asarray(costs.get(name, 0.0))


def exchange_state_bytes(context: Context, strategy: StrategyColumns) -> Array:
    """Bytes per parameter that a rank keeps for the exchange, before sharding.

    topk: the error, w. powersgd: the error, and P and Q, ``w (1 + f)``. 1-bit: errors of the
    worker and, for 1/n of the parameters, of the server, in fp32. DiLoCo: outer weights and
    momentum in fp32. Others: none. Source: error_dict, p_memory_dict and q_memory_dict of torch's
    PowerSGDState; worker_error and server_error in deepspeed/runtime/fp16/onebit/adam.py; arXiv
    2311.08105, algorithm 1. Excludes keeping DiLoCo's on the host, where they may lie between
    rounds.
    """
    exchange, states = context.traits.exchange, context.traits.states
    wire = reduced_gradient_bytes(strategy, states)
    if exchange.name == "powersgd":
        return wire * (1.0 + low_rank_fraction(context.model, exchange))
    if exchange.name in ONE_BIT:
        return 4.0 + 4.0 / strategy.dp
    kept = {"topk": wire, "diloco": 2.0 * _OUTER_BYTES + 0.0 * wire}
    return kept.get(exchange.name, 0.0 * wire)


def weight_wire_bytes(context: Context) -> float:
    """Bytes of a weight that replicas average: those of the master weights, where there are any."""
    states = context.traits.states
    return states.master_weight_bytes or states.weight_bytes


def replica_group(context: Context, strategy: StrategyColumns) -> Group:
    """Ranks that hold the same weights: all of dp below sharding, else those of its replicas."""
    everyone = group_of("dp_shard", strategy, context.cluster)
    across = group_of("dp_replicate", strategy, context.cluster)
    members = tuple(
        np.where(strategy.zero_stage == 0, one, other)
        for one, other in zip(everyone.members, across.members, strict=True)
    )
    return Group(members=members, domain=everyone.domain, spans=everyone.spans)


def waited_exchange_s(
    exchange: GradientExchange,
    elements: Array,
    weight_bytes: float,
    group: Group,
    cluster: ClusterSpec,
) -> Array:
    """Seconds per iteration of an exchange of ``elements`` in one message that nothing hides.

    Local SGD, DiLoCo: ``all-reduce(elements · b) / H``. 1-bit, behind the warm-up: signs go to the
    ranks that add them up and come back, an all-to-all and an all-gather of 1/8 byte an element.
    Source: planner/spec/exchange.py. Excludes DiLoCo's overlap with later steps and its parts that
    travel one by one (arXiv 2501.18512).
    """
    if exchange.name in PERIODIC:
        whole = collective_s("all_reduce", elements * weight_bytes, group, cluster)
        return whole / exchange.value
    if exchange.name in ONE_BIT:
        signs = elements * SIGN_BYTES
        there = collective_s("all_to_all", signs, group, cluster)
        back = collective_s("all_gather", signs, group, cluster)
        return (1.0 - exchange.value) * (there + back)
    return np.zeros_like(elements)


@item(
    "time.gradient_exchange",
    title="exchange between replicas",
    inputs=("traits.exchange.name", "traits.exchange.value", "strategy.dp", *FABRIC, *HBM),
    also=(waited_exchange_s, encoding_bytes, hidden_exchange_s, low_rank_elements),
)
def exchange_s_per_param(context: Context, strategy: StrategyColumns, _owned: Array) -> Array:
    """Seconds per parameter of a rank that exchange takes beside plain all-reduces of gradients.

    ``waited / elements + encoding / HBM``, at messages of the model's mean tensor: what travels
    behind backward (:func:`waited_exchange_s`), and the passes of encoding, which kernels of
    backward wait for. What hides behind backward is ``time.data_parallel``
    (:func:`hidden_exchange_s`).
    """
    exchange, states = context.traits.exchange, context.traits.states
    tensors, group = tensors_of(context.model), replica_group(context, strategy)
    shards = np.where(strategy.zero_stage >= 1, shard_degree(strategy, states), 1.0)
    elements = tensors.elements / tensors.number / shards
    weights = weight_wire_bytes(context)
    waited = waited_exchange_s(exchange, elements, weights, group, context.cluster) / elements
    wire = reduced_gradient_bytes(strategy, states)
    passes = encoding_bytes(exchange, wire, group.size)
    return (waited + memory_bound_s(passes, context.cluster.accelerator)) / shards


def _worker_link(group: Group, cluster: ClusterSpec) -> Link:
    """What joins a worker to servers all over its group: the slowest level crossed."""
    latency, rate = 0.0, np.inf
    for place, level in enumerate(cluster.levels):
        below = group.members[place - 1] if place else 1.0
        if bool(np.all(group.members[place] > below)):
            latency, rate = level.latency_s, min(rate, level.achieved_bytes_per_s)
    return Link(latency_s=latency, bytes_per_s=rate)


def server_s(
    elements: Array, wire_bytes: Array | float, weight_bytes: float, num_ranks: Array, link: Link
) -> Array:
    """Seconds in which a worker pushes its gradients and pulls weights, servers on all workers.

    Those of :func:`parameter_server_all_reduce` with as many servers as workers, and
    ``(w + b) / 2`` bytes an element each way. An asynchronous worker does so beside its computation
    and waits for nobody: it takes ``max(compute, this)`` an iteration, and its gradients meet
    weights that are n - 1 updates younger in the mean. Source: Li et al., OSDI 2014; Jiang et al.,
    OSDI 2020 (both recalled). Excludes adding up inside a node first, as BytePS does, the servers'
    own work and copies to the host.
    """
    size = elements * (wire_bytes + weight_bytes) / 2.0
    return parameter_server_all_reduce(size, num_ranks, link, num_ranks).time_s


def asynchronous_s(context: Context, strategy: StrategyColumns, elements: Array) -> Array:
    """:func:`server_s` of a strategy's replicas."""
    group = replica_group(context, strategy)
    wire = reduced_gradient_bytes(strategy, context.traits.states)
    link = _worker_link(group, context.cluster)
    return server_s(elements, wire, weight_wire_bytes(context), group.size, link)


def sent_bytes(context: Context, strategy: StrategyColumns, elements: Array) -> Array:
    """Bytes that a rank sends for so many gradients in a mean iteration; rings and pairs.

    All-reduce ``2 (n-1)/n S``, all-gather of the ranks' own S ``(n-1) S``, an all-to-all and an
    all-gather of signs ``2 (n-1)/n S/8``. Source: arXiv 1905.13727, section 4.2 (reduce against
    gather); arXiv 2102.02888, section 5. For 1-bit the mean of warm-up and the rest. Excludes
    padding, and traffic of sharding inside a replica.
    """
    exchange = context.traits.exchange
    name, share = exchange.name, exchange.value
    ranks = replica_group(context, strategy).size
    wire = reduced_gradient_bytes(strategy, context.traits.states)
    ring = 2.0 * (ranks - 1.0) / ranks
    by_name: dict[str, Array] = {
        "fp16": ring * 2.0,
        "bf16": ring * 2.0,
        "int8": (ranks - 1.0) * 1.0,
        "topk": (ranks - 1.0) * share * (wire + INDEX_BYTES),
        **dict.fromkeys(ONE_BIT, ring * (share * wire + (1.0 - share) * SIGN_BYTES)),
        **dict.fromkeys(PERIODIC, ring * weight_wire_bytes(context) / max(share, 1.0)),
        "async-server": wire + weight_wire_bytes(context),
    }
    if name == "powersgd":
        by_name[name] = ring * wire * low_rank_fraction(context.model, exchange)
    return elements * by_name.get(name, ring * wire)

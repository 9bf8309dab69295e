"""The feed-forward part of a layer as Ops: dense, or a mixture of experts."""

from dataclasses import replace

from planner.layers.attention import tp_entry_comms, tp_exit_comms
from planner.layers.op import (
    ZERO,
    BothComms,
    Comm,
    Comms,
    Gemm,
    LayerShape,
    Op,
    dispatched_token_fraction,
    kept_token_fraction,
    linear,
    total_bytes,
)
from planner.layers.parameters import Parts, moe_params
from planner.layers.saved import saved_by
from planner.spec.items import SHAPE, item
from planner.spec.model import ModelSpec, MoeSpec
from planner.spec.traits import KernelTraits
from planner.units import Array

# In torch's own kernels, forward and backward, as the source of ``kernels.unfused`` counts them: to
# clamp an element of an expert's width; to weigh and add experts' second biases, per pair and
# hidden element, in kernels that start for every expert of a rank.
CLAMP_BYTES = (26.0, 32.0)
EXPERT_BIAS_BYTES = (71.0, 110.0)
EXPERT_BIAS_KERNELS = (2.0, 7.0)


def _mlp_traffic(model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> tuple[float, float]:
    """Bytes of activation traffic per feed-forward element, forward and backward."""
    # Without a gate a read and a write, in backward two reads and a write.
    forward, backward = traits.gated_mlp_bytes if model.gated_mlp else (4.0, 6.0)
    return forward * shape.wideness, backward * shape.wideness


def _kind(model: ModelSpec) -> str:
    return "gated" if model.gated_mlp else "plain"


@item("memory.activations.mlp", inputs=(*SHAPE, "model.ffn_size", "traits.kernels.saved.name"))
def dense_ops(
    model: ModelSpec,
    shape: LayerShape,
    traits: KernelTraits,
    *,
    ffn_size: float,
    parts: Parts,
    name: str = "mlp",
) -> tuple[Op, ...]:
    """Up (and gate) projection, activation, down projection.

    Parameters: 2 or 3 matrices of h x ffn, split over tp by columns then rows. Saved: the table's
    ``mlp.gated`` or ``mlp.plain`` section (pre-activations and activation output).
    """
    forward_traffic, backward_traffic = _mlp_traffic(model, shape, traits)
    width = ffn_size / shape.tp
    tokens, hidden = shape.num_tokens, ZERO + model.hidden_size
    num_up = 2.0 if model.gated_mlp else 1.0
    activation = f"{name}_activation"
    section = f"mlp.{_kind(model)}"
    return (
        Op(
            name=f"{name}_up",
            params=parts[f"{name}_up"].total,
            gemms=(Gemm(m=tokens, n=num_up * width, k=hidden, follows_norm=name == "mlp"),),
            comms=tp_entry_comms(model, shape),
        ),
        Op(
            name=activation,
            forward_bytes=tokens * width * forward_traffic,
            backward_bytes=tokens * width * backward_traffic,
            saved=saved_by(activation, section, model, shape, traits, widths={"ffn": width}),
        ),
        Op(
            name=f"{name}_down",
            params=parts[f"{name}_down"].total,
            gemms=(Gemm(m=tokens, n=hidden, k=width),),
            comms=tp_exit_comms(model, shape),
        ),
    )


def expert_split_comms(
    model: ModelSpec, moe: MoeSpec, shape: LayerShape, traits: KernelTraits
) -> tuple[BothComms, BothComms]:
    """Return what ranks of a split expert exchange: before and after it, forward and backward.

    ``gathers_expert_pairs``: T·k·etp/tp pairs of h elements, times :func:`kept_token_fraction`,
    are gathered over etp behind the all-to-all, and their partial outputs reduce-scattered before
    the way back; backward is the mirror image. Else the T tokens are gathered over tp before
    routing, as for a dense MLP, once where there is a shared expert too. Source:
    megatron/core/transformer/moe/token_dispatcher.py (MoEAlltoAllTokenDispatcher);
    torchtitan/models/common/moe_sharding.py.
    """
    split = shape.etp > 1
    if traits.gathers_expert_pairs:
        pairs = shape.num_tokens * moe.mean_experts * shape.expert_share * split
        elements = kept_token_fraction(shape, traits) * pairs * model.expert_hidden_size
        num_bytes = elements * shape.element_bytes
        gather = (Comm(collective="all_gather", axis="etp", num_bytes=num_bytes),)
        scatter = (Comm(collective="reduce_scatter", axis="etp", num_bytes=num_bytes),)
        return (gather, scatter), (scatter, gather)

    def over_split(comms: Comms) -> Comms:
        return tuple(replace(comm, num_bytes=comm.num_bytes * split) for comm in comms)

    entry, entry_back = map(
        over_split, ((), ()) if moe.shared_ffn_size else tp_entry_comms(model, shape)
    )
    leave, leave_back = map(over_split, tp_exit_comms(model, shape))
    return (entry, entry_back), (leave, leave_back)


def exchange_op(
    name: str, model: ModelSpec, moe: MoeSpec, shape: LayerShape, traits: KernelTraits
) -> Op:
    """Send every token to its top-k experts (or back): k·h elements per token over ep.

    Under sequence parallelism every tp rank sends its own slice of the tokens; all wait for the
    busiest rank, which receives :func:`kept_token_fraction` of that. Each way has half of
    :func:`sorting_traffic`.

    HybridEP has every rank gather the routing map of all, T·E bytes each, before the forward
    dispatch, and a token that goes to one of the expected ``ep (1 - (1 - 1/ep)^k)`` ranks takes the
    probabilities of all experts of the receiver's domain along, 4 bytes each; their gradients
    return with backward's combine. Source: DeepEP, branch hybrid-ep, csrc/hybrid_ep,
    allgather_routing_map and the dispatch kernel's expert_output_prob.
    """
    elements = shape.num_tokens / shape.sp * moe.mean_experts * model.expert_hidden_size
    kept = (shape.ep > 1) * kept_token_fraction(shape, traits)
    exchange = Comm(
        collective="all_to_all",
        axis="ep",
        num_bytes=elements * shape.element_bytes * kept,
        copies_per_token=1.0 if traits.dispatcher == "alltoall" else moe.mean_experts,
    )
    forward_bytes, backward_bytes = sorting_traffic(shape, traits)
    before, after = expert_split_comms(model, moe, shape, traits)
    forward, backward = before if name == "dispatch" else after
    ways = [exchange, exchange]
    if traits.dispatcher == "hybridep":
        choices = shape.num_tokens / shape.sp * moe.num_experts * (shape.ep > 1)
        distinct = shape.ep * (1.0 - (1.0 - 1.0 / shape.ep) ** moe.mean_experts)
        carrying = 0 if name == "dispatch" else 1  # forward's dispatch and backward's combine
        ways[carrying] = replace(exchange, domain_bytes=4.0 * choices * distinct)
        if name == "dispatch":
            routing = Comm(collective="all_gather", axis="ep", num_bytes=choices * shape.ep)
            forward = (routing, *forward)
    return Op(
        name=name,
        forward_bytes=elements * forward_bytes / 2.0,
        backward_bytes=elements * backward_bytes / 2.0,
        is_permutation=traits.dispatcher != "hybridep",
        comms=((ways[0], *forward), (ways[1], *backward)),
    )


def sorting_traffic(shape: LayerShape, traits: KernelTraits) -> tuple[Array, Array]:
    """Bytes per pair and hidden element to sort tokens by expert and back, forward and backward.

    ``sorting · sent + chunk_sorting · received``. A plain all-to-all sorts where tokens come from
    (over :func:`dispatched_token_fraction`), and its chunks beside the experts (over
    :func:`kept_token_fraction`); deduplicating dispatchers sort there alone. Source: the traits,
    counted in the frameworks' dispatchers.
    """
    plain = shape.wideness * (traits.dispatcher == "alltoall")
    sent = plain * dispatched_token_fraction(traits)
    received = shape.wideness * kept_token_fraction(shape, traits)
    return (
        traits.sorting_bytes[0] * sent + traits.chunk_sorting_bytes[0] * received,
        traits.sorting_bytes[1] * sent + traits.chunk_sorting_bytes[1] * received,
    )


@item("memory.activations.expert_activation", inputs=(*SHAPE, "model.moe"))
def expert_ops(
    model: ModelSpec, moe: MoeSpec, shape: LayerShape, traits: KernelTraits
) -> tuple[Op, ...]:
    """The routed experts of the busiest rank, for which the others wait: up, activation, down.

    With P = tokens · top_k · etp / tp · :func:`kept_token_fraction` pairs on that rank, spread
    evenly over its experts, one of them sees ``P · ep / num_experts`` and computes 1/etp of its
    width: 2 · P · h · f / etp FLOPs per matrix, the same for any etp. Saved: the table's
    ``experts`` section (dispatched inputs, pre-activations, activation outputs);
    read and written once more in either pass where a graph replays a whole iteration, out of fixed
    buffers; one kernel then has an expert's products with biases, clamps and activation. Excludes
    the spread inside the rank.
    """
    forward_traffic, backward_traffic = _mlp_traffic(model, shape, traits)
    # To clamp gate and up projection, per element of an expert's width.
    is_graph = traits.cuda_graph_fraction >= 1.0
    clamps = shape.wideness * (not is_graph and model.clamps_gate and "clamps" in traits.unfused)
    # The second bias waits for the router's probability and is added expert by expert; excluded
    # are sums over tokens inside the products' own kernels.
    adds = not is_graph and moe.expert_bias and "expert_biases" in traits.unfused
    forward_traffic += clamps * CLAMP_BYTES[0]
    backward_traffic += clamps * CLAMP_BYTES[1]
    parts = moe_params(model, shape.etp)
    local_experts = moe.num_experts / shape.ep
    width = moe.expert_ffn_size / shape.etp
    pairs = (
        shape.num_tokens
        * moe.mean_experts
        * shape.expert_share
        * kept_token_fraction(shape, traits)
    )
    num_up = 2.0 if model.gated_mlp else 1.0
    hidden = ZERO + model.expert_hidden_size
    biased = pairs * hidden * (adds * shape.wideness)
    kept = saved_by("expert_activation", f"experts.{_kind(model)}", model, shape, traits)
    stash_bytes = 2.0 * total_bytes(kept) * is_graph

    def product(n: Array, k: Array) -> tuple[Gemm, ...]:
        return (Gemm(m=pairs / local_experts, n=n, k=k, count=local_experts),)

    return (
        Op(
            name="expert_up",
            params=local_experts * parts["routed_expert_up"].total,
            is_expert=True,
            gemms=product(num_up * width, hidden),
        ),
        Op(
            name="expert_activation",
            forward_bytes=pairs * width * forward_traffic + stash_bytes,
            backward_bytes=pairs * width * backward_traffic + stash_bytes,
            saved=kept,
        ),
        Op(
            name="expert_down",
            params=local_experts * parts["routed_expert_down"].total,
            is_expert=True,
            gemms=product(hidden, width),
            forward_bytes=biased * EXPERT_BIAS_BYTES[0],
            backward_bytes=biased * EXPERT_BIAS_BYTES[1],
            tiny_kernels=(
                adds * EXPERT_BIAS_KERNELS[0] * local_experts,
                adds * EXPERT_BIAS_KERNELS[1] * local_experts,
            ),
        ),
    )


def moe_ops(model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> tuple[Op, ...]:
    """Router, dispatch, routed experts, combine, shared experts.

    Projections to the width of latent experts and back are whole on every tp rank; their inputs
    are kept with the norm and the experts' outputs (Megatron-Core ``--moe-latent-size``).
    """
    moe = model.moe
    assert moe is not None
    shared: tuple[Op, ...] = ()
    if moe.shared_ffn_size:
        shared = dense_ops(
            model,
            shape,
            traits,
            ffn_size=float(moe.shared_ffn_size),
            parts=moe_params(model, shape.tp),
            name="shared_expert",
        )
    tokens, router = shape.num_tokens / shape.sp, moe_params(model, shape.tp)["router"]
    hidden, latent = ZERO + model.hidden_size, ZERO + moe.latent_size
    down: tuple[Op, ...] = ()
    up: tuple[Op, ...] = ()
    if moe.latent_size:
        params = moe_params(model)["latent"].total / 2.0
        down = (linear("latent_down", tokens, latent, hidden, params),)
        up = (linear("latent_up", tokens, hidden, latent, params),)
    return (
        Op(
            name="router",
            runs_in_16_bit=True,
            params=router.total,
            gemms=(Gemm(m=tokens, n=ZERO + router.rows, k=hidden),),
            tiny_kernels=traits.router_kernels,
            saved=saved_by("router", "router", model, shape, traits),
        ),
        *down,
        exchange_op("dispatch", model, moe, shape, traits),
        *expert_ops(model, moe, shape, traits),
        exchange_op("combine", model, moe, shape, traits),
        *up,
        *shared,
    )

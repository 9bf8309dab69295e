"""The feed-forward part of a layer as Ops: dense, or a mixture of experts."""

from planner.layers.attention import tp_entry_comms, tp_exit_comms
from planner.layers.op import ELEMENT_BYTES, ZERO, Comm, Gemm, LayerShape, Op
from planner.layers.parameters import Parts, moe_params
from planner.spec.model import ModelSpec, MoeSpec
from planner.spec.traits import KernelTraits


def _mlp_traits(model: ModelSpec, traits: KernelTraits) -> tuple[float, float, float]:
    if model.gated_mlp:
        return (
            traits.mlp_saved_bytes_gated,
            traits.mlp_forward_bytes_gated,
            traits.mlp_backward_bytes_gated,
        )
    return (
        traits.mlp_saved_bytes_plain,
        traits.mlp_forward_bytes_plain,
        traits.mlp_backward_bytes_plain,
    )


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

    Parameters: 2 or 3 matrices of h x ffn, split over tp by columns then rows. Saved per token:
    ``mlp_saved_bytes · ffn / tp`` (pre-activation and activation output).
    """
    saved, forward_traffic, backward_traffic = _mlp_traits(model, traits)
    width = ffn_size / shape.tp
    tokens, hidden = shape.num_tokens, ZERO + model.hidden_size
    num_up = 2.0 if model.gated_mlp else 1.0
    entry, entry_back = tp_entry_comms(model, shape)
    leave, leave_back = tp_exit_comms(model, shape)
    return (
        Op(
            name=f"{name}_up",
            params=parts[f"{name}_up"].total,
            gemms=(Gemm(m=tokens, n=num_up * width, k=hidden),),
            forward_comms=entry,
            backward_comms=entry_back,
        ),
        Op(
            name=f"{name}_activation",
            forward_bytes=tokens * width * forward_traffic,
            backward_bytes=tokens * width * backward_traffic,
            saved_bytes=tokens * width * saved,
        ),
        Op(
            name=f"{name}_down",
            params=parts[f"{name}_down"].total,
            gemms=(Gemm(m=tokens, n=hidden, k=width),),
            forward_comms=leave,
            backward_comms=leave_back,
        ),
    )


def _router_op(model: ModelSpec, moe: MoeSpec, shape: LayerShape) -> Op:
    tokens = shape.num_tokens / shape.sp
    num_experts = ZERO + float(moe.num_experts)
    return Op(
        name="router",
        runs_in_16_bit=True,
        params=moe_params(model, shape.tp)["router"].total,
        gemms=(Gemm(m=tokens, n=num_experts, k=ZERO + model.hidden_size),),
        saved_bytes=tokens * num_experts * 12.0,
    )


def exchange_op(
    name: str, model: ModelSpec, moe: MoeSpec, shape: LayerShape, traits: KernelTraits
) -> Op:
    """Send every token to its top-k experts (or back): k·h elements per token over ep."""
    num_bytes = shape.num_tokens / shape.sp * moe.top_k * model.hidden_size * ELEMENT_BYTES
    comm = (
        Comm(
            collective="all_to_all",
            axis="ep",
            num_bytes=num_bytes * (shape.ep > 1),
            copies_per_token=float(moe.top_k) if traits.deduplicated_dispatch else 1.0,
        ),
    )
    return Op(
        name=name,
        forward_bytes=2.0 * num_bytes,
        backward_bytes=2.0 * num_bytes,
        forward_comms=comm,
        backward_comms=comm,
    )


def experts_op(model: ModelSpec, moe: MoeSpec, shape: LayerShape, traits: KernelTraits) -> Op:
    """The routed experts of one rank under balanced routing.

    Each rank computes tokens · top_k token-expert pairs; an expert sees
    ``tokens · top_k · ep / num_experts`` of them. Saved per pair: 2h in, and
    ``mlp_saved_bytes · ffn / tp``.
    """
    saved, forward_traffic, backward_traffic = _mlp_traits(model, traits)
    parts = moe_params(model, shape.tp)
    local_experts = moe.num_experts / shape.ep
    width = moe.expert_ffn_size / shape.tp
    pairs = shape.num_tokens * moe.top_k
    rows = pairs / local_experts
    num_up = 2.0 if model.gated_mlp else 1.0
    hidden = ZERO + model.hidden_size
    return Op(
        name="experts",
        params=local_experts
        * (parts["routed_expert_up"].total + parts["routed_expert_down"].total),
        is_expert=True,
        gemms=(
            Gemm(m=rows, n=num_up * width, k=hidden, count=local_experts, is_grouped=True),
            Gemm(m=rows, n=hidden, k=width, count=local_experts, is_grouped=True),
        ),
        forward_bytes=pairs * width * forward_traffic,
        backward_bytes=pairs * width * backward_traffic,
        saved_bytes=pairs * (width * saved + hidden * ELEMENT_BYTES),
    )


def moe_ops(model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> tuple[Op, ...]:
    """Router, dispatch, routed experts, combine, shared experts."""
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
    return (
        _router_op(model, moe, shape),
        exchange_op("dispatch", model, moe, shape, traits),
        experts_op(model, moe, shape, traits),
        exchange_op("combine", model, moe, shape, traits),
        *shared,
    )

"""Token mixers linear in the sequence, as Ops: projection, convolution and scan, output."""

from collections.abc import Mapping

from planner.layers.attention import norm_op, tp_entry_comms, tp_exit_comms
from planner.layers.op import ATTENTION_BLOCK, ZERO, Comm, FlashAttention, Gemm, LayerShape, Op
from planner.layers.parameters import mixer_params
from planner.spec.items import SHAPE, item
from planner.spec.model import MixerKind, MixerSpec, ModelSpec
from planner.spec.traits import KernelTraits

# Of FlashAttention-2's rate that chunked scans reach: kernels of the same instructions, which new
# matrix units make no faster. Delta rules: of the six shapes timed by flash-linear-attention's
# README on one GB200 the two that fill it have 92 and 112 TFLOP/s beside 437. Mamba-2's five Triton
# kernels, forward: 16.5 TFLOP/s at 131,072 tokens of 8 heads (its pull request 50, where its own
# gated kernel has twice that) and 106 on an H100 at 8,192 tokens of 128 heads (vllm-project/vllm
# pull request 27299), beside 190 (A100) and 341; between the two. Plausible from a half to twice.
# Mamba-1 has no products: an exponential per channel and state, of which an SM computes 16 in a
# clock (CUDA C++ programming guide, arithmetic instructions), 9 FLOPs each, beside 1,250 of
# FlashAttention-2 on an A100 and 1,410 on an H100.
SCAN_RATE_FRACTION: Mapping[MixerKind, float] = {
    "mamba1": 0.11,
    "mamba2": 0.14,
    "gated_delta_net": 0.25,
    "kimi_delta": 0.25,
    "lightning": 0.28,
}


def scan_flops_per_token(mixer: MixerSpec) -> float:
    """Forward FLOPs of the chunked scan per token, useful or not (chunks are computed whole).

    With chunks of Q, H heads of P, G key heads of N: Mamba-1 ``9N·HP`` (arXiv 2312.00752, section
    3.3; no chunks), Mamba-2 ``2Q(GN + HP) + 4N·HP`` (C·Bᵀ, its
    product with x, chunk states and their output; arXiv 2405.21060, section 6). Delta rules
    ``H (2Q(3N + 2P) + 6NP + Q²)`` (k·kᵀ, the two factors of the triangular inverse, q·kᵀ and its
    product with v; arXiv 2412.06464, section 3.3). Lightning ``H (4QP + 4P²)`` (arXiv 2501.08313,
    section 2.2). Excludes gates and decays, which are element-wise.
    """
    heads, width, key = mixer.num_heads, mixer.head_dim, mixer.key_dim
    chunk = mixer.chunk_size
    if mixer.kind == "mamba1":
        return 9.0 * key * mixer.value_size
    if mixer.kind == "mamba2":
        return 2.0 * chunk * (mixer.key_size + mixer.value_size) + 4.0 * key * mixer.value_size
    if mixer.kind == "lightning":
        return heads * (4.0 * chunk * width + 4.0 * width**2)
    return heads * (2.0 * chunk * (3 * key + 2 * width) + 6.0 * key * width + chunk**2)


def kept_elements(mixer: MixerSpec) -> float:
    """16-bit elements per token that the mixer keeps for backward, beside its input.

    Mamba-1 (Jamba): the projection's output, the convolution's, the time step, output before and
    behind the gate, and the second projection's output before and behind its norms
    (selective_scan_interface.py of mamba_ssm; transformers modeling_jamba.py). Mamba-2: the
    projection's output, the scan's output before and behind the gate, and where a norm follows the
    input of the output projection (save_for_backward of MambaSplitConv1dScanCombinedFn in mamba_ssm
    ops/triton/ssd_combined.py; the norm and projection of Megatron-Core ssm/mamba_mixer.py). Delta
    rules: the projection's output and what is convolved, queries and keys expanded to the heads of
    values, values, the output before and behind the norm, a Q x Q block per head and token, and 12
    bytes of fp32 gates per head (fla/ops/gated_delta_rule/chunk.py; Kimi Delta two blocks, and a
    gate per channel: fla/ops/kda). Lightning: q, k, v, output, gate and product. Excludes what a
    kernel rebuilds in backward.
    """
    values, keys, heads = mixer.value_size, mixer.key_size, mixer.num_heads
    if mixer.kind == "lightning":
        return 6.0 * values
    if mixer.kind == "mamba1":
        return 6.0 * values + 2.0 * (mixer.time_rank + 2.0 * mixer.key_dim)
    if mixer.kind == "mamba2":
        return 2.0 * values + 2.0 * keys + heads + (2.0 + mixer.gated_norm) * values
    gates = 6.0 * heads
    expanded = 2.0 * heads * mixer.key_dim
    convolved = values + 2.0 * keys
    if mixer.kind == "kimi_delta":
        return convolved + expanded + 5.0 * values + heads * 2.0 * mixer.chunk_size + gates
    projected = 2.0 * values + 2.0 * keys + 2.0 * heads
    return projected + convolved + expanded + 4.0 * values + heads * mixer.chunk_size + gates


@item(
    "memory.activations.mixer",
    inputs=(*SHAPE, "model.mixer"),
    also=(scan_flops_per_token, kept_elements),
)
def mixer_ops(
    model: ModelSpec, mixer: MixerSpec, shape: LayerShape, traits: KernelTraits
) -> tuple[Op, ...]:
    """Norm, input projection, convolution with scan and gated norm, output projection.

    Heads are split over tp as those of attention, and over cp by all-to-alls of the projection's
    output and back (Megatron-Core ssm/mamba_context_parallel.py). Excludes halos of convolutions,
    and chunk states passed along where sequences stay split.
    """
    tokens, hidden = shape.num_tokens, ZERO + model.hidden_size
    parts = mixer_params(model, shape.tp)
    values = mixer.value_size / shape.tp
    channels = mixer.num_channels / shape.tp
    rows, gates = parts["mixer_in"].total / model.hidden_size, parts["mixer_gates"]
    exchange = Comm(
        collective="all_to_all",
        axis="cp",
        num_bytes=tokens * (rows + values) * shape.element_bytes * (shape.cp > 1),
    )
    # Forward moves 2 elements per channel: the convolution and the norm of keys read and write.
    # The gated norm behind the scan moves 3: it reads its output and the gate, and writes.
    elements = tokens * (2.0 * channels + 3.0 * values * mixer.gated_norm)
    return (
        norm_op("attention_norm", model, shape, traits),
        Op(
            name="mixer_in",
            params=parts["mixer_in"].total + gates.total,
            gemms=(
                Gemm(m=tokens, n=rows, k=hidden, follows_norm=True),
                *((Gemm(m=tokens, n=gates.rows, k=gates.columns),) if gates.columns else ()),
            ),
            comms=tp_entry_comms(model, shape),
        ),
        Op(
            name="mixer",
            params=parts["mixer_conv"].total + parts["mixer_vectors"].total,
            attention=FlashAttention(
                kernel="flash_attn",
                square_flops=tokens * scan_flops_per_token(mixer) / shape.tp,
                causal_fraction=1.0,
                seq_len=shape.seq_len,
                head_dim=float(mixer.head_dim),
                num_tiles=mixer.num_heads / shape.tp * tokens / ATTENTION_BLOCK,
                rate_fraction=SCAN_RATE_FRACTION[mixer.kind],
            ),
            forward_bytes=elements * shape.element_bytes,
            backward_bytes=2.0 * elements * shape.element_bytes,
            saved=(shape.kept("mixer.kept", ZERO + kept_elements(mixer) / shape.tp),),
            comms=((exchange,), (exchange,)),
        ),
        Op(
            name="mixer_out",
            params=parts["mixer_out"].total,
            gemms=(Gemm(m=tokens, n=hidden, k=values),),
            comms=tp_exit_comms(model, shape),
        ),
    )

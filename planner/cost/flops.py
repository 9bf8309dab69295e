"""Model FLOPs: the numerator of MFU, and the peak it is divided by."""

from dataclasses import dataclass, replace

from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.layers.attention import latent_keys, mean_keys
from planner.layers.block import layer_groups, mtp_blocks
from planner.layers.op import LayerShape
from planner.layers.parameters import LETTERS, WITH_ATTENTION
from planner.spec.cluster import AcceleratorSpec
from planner.spec.job import JobSpec
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits

FLOPS_CONVENTION = (
    "model FLOPs = 3 x forward matmul FLOPs (6 per matmul parameter and token; 2 x and 4 "
    "where it is frozen), attention over the "
    "keys that a query may see (causal: half the square, 6 L s h per token, as Megatron-LM counts; "
    "windows as they are), vocabulary projection and multi-token prediction included, embedding "
    "lookup and recomputation excluded; mfu_full_square counts the whole square, 12 L s h (arXiv "
    "2204.02311, appendix B); both divide by the dense bf16 peak (fp16 where there is none), "
    "whatever the job's precision"
)


@dataclass(frozen=True, kw_only=True)
class ModelFlops:
    """FLOPs of one optimizer step that the model needs, whatever runs it."""

    products: float  # Products with weights: 6 per parameter and token, 4 where it is frozen
    attention: float  # Scores and weighted values of the keys that a query may see
    attention_square: float  # the same of every pair of a query and a key

    @property
    def total(self) -> float:
        """Under FLOPS_CONVENTION."""
        return self.products + self.attention

    @property
    def full_square(self) -> float:
        """FLOPs with the attention square counted whole, as PaLM, torchtitan and llm-foundry do."""
        return self.products + self.attention_square


def seen_fraction(model: ModelSpec, seq_len: float) -> float:
    """Mean keys a query of self-attention may see, over the sequence; mean over layers.

    A decoder's query sees half of them, in windowed layers ``w/s (1 - w/(2s))`` (the first w
    queries see half of w on average, the others w); an encoder's sees all. The diagonal is counted
    half, as Megatron-LM does (training/training.py, num_floating_point_operations: "only half of
    the attention matrix is non-zero").
    """
    if model.architecture != "decoder":
        return 1.0
    if model.mla and model.mla.stays_latent:
        return float(latent_keys(model, model.mla, seq_len)) / seq_len
    if model.indexer:
        return float(mean_keys(model.indexer.top_k, seq_len)) / seq_len
    window = min(model.sliding_window, seq_len) / seq_len
    windowed = window * (1.0 - 0.5 * window)
    return 0.5 * (1.0 - model.windowed_share) + windowed * model.windowed_share


def model_flops_per_iteration(
    model: ModelSpec, job: JobSpec, traits: FrameworkTraits
) -> ModelFlops:
    """FLOPs of one optimizer step under FLOPS_CONVENTION.

    ``3 · Σ_ops forward_flops · global_batch``; three for forward and the two backward products, of
    which a frozen weight has one. Attention: ``2 · s · heads · (d_qk + d_v)`` per token and layer
    over the whole square, of which ``seen_fraction`` is needed; of documents shorter than a
    sequence s is ``Σl²/Σl`` of theirs, and padding is no token. An encoder-decoder's decoder layers
    need half of their own square and all of the one over the encoder. Padding of the vocabulary is
    not counted. Every layer of multi-token prediction counts as another layer, its projection ``4 s
    h²`` and a vocabulary. Source: PaLM, arXiv 2204.02311, appendix B; arXiv 2205.05198, appendix A
    (both over the whole square); Megatron-LM, training/training.py, num_floating_point_operations.
    """
    shape = LayerShape.all_of(1.0, job.seq_len)
    frozen_share = 2.0 / 3.0 if traits.training.is_frozen else 1.0
    head = 2.0 * job.seq_len * model.vocab_size * model.hidden_size
    joined = 4.0 * job.seq_len * model.hidden_size**2
    head_share = 1.0 if "head" in traits.training.targets else frozen_share
    products = head_share * head + frozen_share * job.mtp_layers * (head + joined)
    seen = total = 0.0
    # Adapters that are merged count as those beside the experts' own products.
    kernels = replace(traits.kernels, expert_adapters="each")
    groups = layer_groups(model, shape, replace(traits, kernels=kernels))
    num_blocks, behind = mtp_blocks(model, groups)
    further = {kind.name: job.mtp_layers * kind.num_layers for kind in behind}
    share = num_blocks / sum(kind.num_layers for kind in behind)
    for group in groups:
        number = group.num_layers + further.get(group.name, 0) * share
        for op in group.ops:
            weighted = [gemm for gemm in op.gemms if gemm.has_weight]
            products += number * sum(
                (frozen_share if gemm.is_frozen else 1.0) * gemm.flops.item() for gemm in weighted
            )
            if op.name == "mixer" and op.attention:
                products += number * op.attention.flops.item()
        if group.name not in WITH_ATTENTION:
            continue
        is_cross = group.name == "cross"
        own = model.with_attention(LETTERS.get(group.name, "F"))
        square = number * 2.0 * (own.query_size + own.value_size) * (1 + (group.name == "double"))
        total += square * (1.0 + is_cross)
        seen += square * (1.5 if is_cross else seen_fraction(own, job.attended_tokens))
    passes = 3.0 * job.tokens_per_iteration / job.seq_len
    pairs = job.seq_len * job.attended_tokens
    return ModelFlops(
        products=passes * products,
        attention=passes * pairs * seen,
        attention_square=passes * pairs * total,
    )


def mfu(flops: float, iteration_s: float, num_gpus: int, accelerator: AcceleratorSpec) -> float:
    """``FLOPs / (iteration · GPUs · 16-bit peak)``, the dense matrix rate.

    Published figures of runs in 8 bits are TFLOP/s; where they are utilisations, some divide by the
    8-bit peak. One denominator keeps plans of all precisions comparable: an 8-bit plan is faster
    by as much as its MFU is higher, and can exceed what bf16 reaches. Source: arXiv 2204.02311,
    appendix B; torchtitan, components/metrics.py (tools/utils.py: bf16 peaks).
    """
    precision = usual_precision(accelerator)
    return flops / (iteration_s * num_gpus * peak_flops_per_s(accelerator, precision))

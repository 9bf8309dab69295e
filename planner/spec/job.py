"""JobSpec: what is trained, in which precision, and what the user allows."""

from dataclasses import dataclass
from typing import Literal

from planner.spec.documents import Documents
from planner.spec.model import ModelSpec

Precision = Literal["bf16", "fp16", "fp8", "fp8_block", "mxfp8", "fp4", "fp32", "tf32"]
"""Of products with weights. ``fp8``: one scale per tensor; ``fp8_block``: per 128 elements;
``mxfp8``: per 32 elements, in hardware; ``fp4``: NVFP4, per 16 elements and tensor. ``fp32`` and
``tf32`` keep everything in 32 bits; TF32 multiplies on matrix units with 10 bits of mantissa."""
WHOLE: tuple[Precision, ...] = ("fp32", "tf32")
"""Precisions that keep weights, activations and gradients in 32 bits, with no master copy."""


def element_bytes(precision: Precision) -> float:
    """Bytes of an activation, a weight that kernels read, a gradient: 2, or 4 in 32 bits."""
    return 4.0 if precision in WHOLE else 2.0


MAX_MTP_LAYERS = 16
"""More further tokens than anyone predicts."""
MAX_IMBALANCE = 100.0
"""A busier rank would hold tokens of more than a hundred others."""
USUAL_SEQ_LEN = 8192
USUAL_IMBALANCE_FRACTION = 0.2
"""Tokens that the busiest rank of experts gets beyond the mean, unless a user says otherwise.

Assumed, plausible 0.05-0.5. The busiest expert gets 0.04 more than the mean under loss-free
balancing and 0.52 to 0.72 under auxiliary losses (MaxVio over a whole set, arXiv 2408.15664, table
2; recalled), more in one batch and early in training; a rank holds several experts, over which
that averages. Natural routing in place of a forced balance costs Mixtral-8x22B 4.5 % of its time on
128 H100, which is about 0.07, and Qwen3-235B-A22B with 16 experts a rank 24 % at 16k tokens and 9 %
at 128k, which is 0.49 at every length (Megatron MoE Model Zoo, README.md, best_practice/qwen3).
"""


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One training job: batch in sequences, sequence length in tokens, token budget."""

    global_batch: int
    seq_len: int
    precision: Precision = "bf16"
    total_tokens: int | None = None
    imbalance_fraction: float = 0.0
    """Of a mixture with expert parallelism, by how much more than the mean number of tokens the
    busiest rank of experts gets; 0 is forced balance."""
    mtp_layers: int = 0
    """Layers behind the last one that are trained to predict further tokens."""
    documents: Documents | None = None
    """Of shorter documents than a sequence, how long they are; None: every sequence is one."""

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens of one optimizer step, without padding."""
        if self.documents is None or self.documents.batching == "packed":
            return self.global_batch * self.seq_len
        return round(self.global_batch * self.documents.mean)

    @property
    def is_padded(self) -> bool:
        """Whether micro-batches differ in length: memory is that of the longest, time the mean."""
        return self.documents is not None and self.documents.batching != "packed"

    @property
    def attended_tokens(self) -> float:
        """Tokens that attention joins, of the document that a token lies in."""
        return float(self.seq_len) if self.documents is None else self.documents.attended_tokens


def mtp_positions(model: ModelSpec) -> bool:
    """Whether further tokens can be predicted: causally, with positions that can be shifted."""
    return model.architecture == "decoder" and model.position in ("rope", "none")


def usual_seq_len(model: ModelSpec) -> int:
    """Where nobody says: the model's, at most USUAL_SEQ_LEN."""
    return min(model.max_seq_len, USUAL_SEQ_LEN)

"""Lengths of the documents of a batch, and how a batch combines them."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from planner.spec.model import ModelSpec
from planner.units import Array

# ``packed``: sequences filled with documents, each attending to itself; ``padded``: one document a
# sequence, all as long as the micro-batch's longest; ``grouped``: one document a sequence beside
# others of its length (group_by_length), or batches without padding (padding_free).
Batching = Literal["packed", "padded", "grouped"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)
# Decay of the steepest density: a mean of 1/500 of the longest.
STEEPEST = 500.0


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Lengths between 0 and ``longest`` tokens with a known mean.

    Nothing else being known, their density is the one of largest entropy: exponential, cut off at
    the longest (uniform where the mean is half of it, rising beyond).
    """

    batching: Batching
    mean: float
    longest: int

    @property
    def text(self) -> str:
        """Value of the option, as text."""
        return f"{self.batching}:{self.mean:.15g}"

    @property
    def words(self) -> str:
        """Text for a table: what the data loader has to do."""
        return f"{self.batching}, {self.mean:g} tokens on average"

    @property
    def note(self) -> str:
        """Assumptions about the documents, in words."""
        per_time = {
            "packed": "every sequence is full, and attention stays inside documents",
            "padded": "time is that of micro-batches of mean length, memory that of the longest",
            "grouped": "time is that of documents of mean length, memory that of the longest",
        }
        return (
            f"documents of {self.mean:g} tokens on average and {self.longest} at most, their "
            f"lengths as exponential as that allows, {self.batching}: {per_time[self.batching]}"
        )

    @cached_property
    def _below(self) -> tuple[Array, Array]:
        """Shares of the longest, and the part of documents that are no longer."""
        # Of the density over length / longest, the decay at which its mean is ``mean / longest``.
        decay, high = -STEEPEST, STEEPEST
        for _ in range(80):
            middle = (decay + high) / 2.0
            # The mean of the exponential density on 0 to 1: 1/λ - 1/(e^λ - 1).
            mean = 0.5 if abs(middle) < 1e-6 else 1.0 / middle - 1.0 / math.expm1(middle)
            if mean > self.mean / self.longest:
                decay = middle
            else:
                high = middle
        # Integrals over lengths are taken on a grid of so many; the error is below 1e-4.
        points = np.linspace(0.0, 1.0, 2048)
        below = points if abs(decay) < 1e-6 else np.expm1(-decay * points) / math.expm1(-decay)
        return points, below

    @cached_property
    def attended_tokens(self) -> float:
        """``Σ l² / Σ l``: length of the document that a token lies in, on average."""
        points, below = self._below
        square = _integral(2.0 * points * (1.0 - below)) * self.longest**2
        return min(square / self.mean, float(self.longest))

    def padded_tokens(self, count: Array) -> Array:
        """Expected length of the longest of ``count`` documents: ``L ∫ (1 - F(u)^count) du``."""
        _, below = self._below
        sizes, index = np.unique(np.asarray(count, dtype=float), return_inverse=True)
        longest = [_integral(1.0 - below**size) for size in sizes]
        return np.asarray(self.longest * np.asarray(longest)[index])


def _integral(values: Array) -> float:
    """Over 0 to 1, by trapezoids, of values on an even grid."""
    inner = values.sum() - 0.5 * (values[0] + values[-1])
    return float(inner / (len(values) - 1))


def read_documents(text: str, longest: int) -> Documents:
    """Documents from ``packed:512``; ValueError says what is wrong."""
    word, colon, number = text.rpartition(":")
    batching = next((kind for kind in BATCHINGS if kind == (word if colon else "packed")), None)
    try:
        mean = float(number)
    except ValueError:
        mean = math.nan
    if batching is None or not mean > 0.0:
        allowed = ", ".join(f"{kind}:MEAN" for kind in BATCHINGS)
        raise ValueError(f"must be one of {allowed}, MEAN in tokens; given {text!r}")
    if not longest / STEEPEST <= mean <= longest:
        raise ValueError(
            f"a mean from {longest / STEEPEST:g} tokens to the sequence length, {longest}, "
            f"which is the longest; given {mean:g}"
        )
    return Documents(batching=batching, mean=mean, longest=longest)


# Of products with weights. ``fp8``: one scale per tensor; ``fp8_block``: per 128 elements;
# ``mxfp8``: per 32 elements, in hardware; ``fp4``: NVFP4, per 16 elements and tensor. ``fp32`` and
# ``tf32`` keep everything in 32 bits; TF32 multiplies on matrix units with 10 bits of mantissa.
Precision = Literal["bf16", "fp16", "fp8", "fp8_block", "mxfp8", "fp4", "fp32", "tf32"]
# Precisions that keep weights, activations and gradients in 32 bits, with no master copy.
FULL_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32")


def element_bytes(precision: Precision) -> float:
    """Bytes of an activation, a weight that kernels read, a gradient: 2, or 4 in 32 bits."""
    return 4.0 if precision in FULL_PRECISIONS else 2.0


USUAL_SEQ_LEN = 8192
# Tokens that the busiest rank of experts gets beyond the mean, unless a user says otherwise.
#
# Assumed, plausible 0.05-0.5. The busiest expert gets 0.04 more than the mean under loss-free
# balancing and 0.52 to 0.72 under auxiliary losses (MaxVio over a whole set, arXiv 2408.15664,
# table 2; recalled), more in one batch and early in training; a rank holds several experts, over
# which that averages. Natural routing costs Mixtral-8x22B 4.5 % of its balanced time on 128 H100,
# about 0.07, and Qwen3-235B-A22B with 16 experts a rank 24 % at 16k tokens and 9 % at 128k, 0.50 at
# every length (Megatron MoE Model Zoo, README.md, best_practice/qwen3).
USUAL_IMBALANCE_FRACTION = 0.2


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One training job: batch in sequences, sequence length in tokens, token budget."""

    global_batch: int
    seq_len: int
    precision: Precision = "bf16"
    total_tokens: int | None = None
    # Excess of the tokens of the busiest expert rank over the mean, as a fraction, in a mixture
    # with expert parallelism; 0 is forced balance.
    imbalance_fraction: float = 0.0
    mtp_layers: int = 0  # layers behind the last one that are trained to predict further tokens
    documents: Documents | None = None  # shorter than a sequence; None: every sequence is one

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens of one optimizer step, without padding."""
        if self.documents is None or self.documents.batching == "packed":
            return self.global_batch * self.seq_len
        return round(self.global_batch * self.documents.mean)

    @property
    def attended_tokens(self) -> float:
        """Tokens that attention joins, of the document that a token lies in."""
        return float(self.seq_len) if self.documents is None else self.documents.attended_tokens


def mtp_positions(model: ModelSpec) -> bool:
    """Return True if further tokens can be predicted: causal, with positions that can shift."""
    return model.architecture == "decoder" and model.position in ("rope", "none")


def usual_seq_len(model: ModelSpec) -> int:
    """Return the default sequence length: the model's, at most USUAL_SEQ_LEN."""
    return min(model.max_seq_len, USUAL_SEQ_LEN)

"""JobSpec: what is trained, in which precision, and what the user allows."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["bf16", "fp16", "fp8", "fp8_block", "mxfp8", "fp4"]
"""Of products with weights. ``fp8``: one scale per tensor; ``fp8_block``: per 128 elements;
``mxfp8``: per 32 elements, in hardware; ``fp4``: NVFP4, per 16 elements and tensor."""


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One training job: batch in sequences, sequence length in tokens, token budget."""

    global_batch: int
    seq_len: int
    precision: Precision = "bf16"
    total_tokens: int | None = None

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens of one optimizer step."""
        return self.global_batch * self.seq_len

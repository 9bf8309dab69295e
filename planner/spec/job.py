"""JobSpec: what is trained, in which precision, and what the user allows."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["bf16", "fp16", "fp8", "fp4"]


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

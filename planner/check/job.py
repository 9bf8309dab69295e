"""What a file is checked for: the model, the cluster, and what else of the job is known."""

from dataclasses import dataclass

from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec

USUAL_SEQ_LEN = 8192


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job as the command or the project's settings give it; None: the file decides."""

    model: ModelSpec
    cluster: ClusterSpec
    num_gpus: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None

    @property
    def usual_seq_len(self) -> int:
        """Where neither file nor job say: the model's, at most USUAL_SEQ_LEN."""
        return min(self.model.max_seq_len, USUAL_SEQ_LEN)


def shape_of(model: ModelSpec) -> dict[str, int]:
    """The sizes that a file may state, by the names of DECISIONS."""
    return {
        "model.num_layers": model.num_layers,
        "model.hidden_size": model.hidden_size,
        "model.num_heads": model.num_heads,
        "model.num_kv_heads": model.num_kv_heads,
        "model.ffn_size": model.ffn_size,
        "model.vocab_size": model.vocab_size,
        "model.num_experts": model.moe.num_experts if model.moe else 0,
    }

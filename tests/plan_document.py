"""A sound plan file as a document: llama3-8b on two nodes of eight."""

from collections.abc import Mapping
from typing import Any

_INPUTS = {
    "model": "llama3-8b",
    "cluster": "2xdgx-h100",
    "framework": "megatron",
    "profile": "current",
    "global_batch": 128,
    "seq_len": 8192,
    "precision": "bf16",
}
_STRATEGY = {
    "dp": 8,
    "tp": 2,
    "pp": 1,
    "vpp": 1,
    "cp": 1,
    "ep": 1,
    "zero_stage": 1,
    "micro_batch": 1,
    "num_micro_batches": 16,
    "sequence_parallel": True,
    "offload": "none",
    "layers_per_stage": [32],
    "selective_layers_per_stage": [0],
    "recompute_layers_per_stage": [0],
}


def plan_document(inputs: Mapping[str, Any] | None = None, **strategy: object) -> dict[str, Any]:
    """The document with some inputs and decisions changed."""
    return {
        "schema_version": 1,
        "planner_version": "0.1.0",
        "inputs": _INPUTS | dict(inputs or {}),
        "strategy": _STRATEGY | strategy,
        "estimate": {"iter_time_s": 1.0, "peak_bytes": 1.0, "mfu": 0.5},
    }

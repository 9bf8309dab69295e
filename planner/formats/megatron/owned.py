"""Megatron's options that say how a job is cut up, and what it is."""

OWNED = frozenset(
    (
        "--tensor-model-parallel-size",
        "--sequence-parallel",
        "--context-parallel-size",
        "--expert-model-parallel-size",
        "--expert-tensor-parallel-size",
        "--use-tp-pp-dp-mapping",
        "--pipeline-model-parallel-size",
        "--pipeline-model-parallel-layout",
        "--num-layers-per-virtual-pipeline-stage",
        "--num-virtual-stages-per-pipeline-rank",
        "--decoder-first-pipeline-num-layers",
        "--decoder-last-pipeline-num-layers",
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
        "--micro-batch-size",
        "--global-batch-size",
        "--seq-length",
        "--recompute-granularity",
        "--recompute-modules",
        "--recompute-method",
        "--recompute-num-layers",
        "--recompute-activations",
        "--cpu-offloading-num-layers",
        "--optimizer",
        "--sgd-momentum",
        "--use-precision-aware-optimizer",
        "--exp-avg-dtype",
        "--exp-avg-sq-dtype",
        "--use-distributed-optimizer",
        "--num-distributed-optimizer-instances",
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy",
        "--init-model-with-meta-device",
        "--use-torch-fsdp2",
        "--optimizer-cpu-offload",
        "--optimizer-offload-fraction",
        "--bf16",
        "--fp16",
        "--fp8-format",
        "--fp8-recipe",
        "--fp4-format",
        "--fp4-recipe",
    )
)
"""Options that carry decisions: those that the strategy does not need are taken out."""
BESIDE = {"--ckpt-format": "fsdp_dtensor"}
"""Options that a decision needs with this value; with others they are none of the planner's."""
MODEL = frozenset(
    (
        "--num-layers",
        "--hidden-size",
        "--ffn-hidden-size",
        "--num-attention-heads",
        "--group-query-attention",
        "--num-query-groups",
        "--vocab-size",
        "--num-experts",
    )
)
"""Options that say which model it is."""


def is_owned(name: str, words: list[str]) -> bool:
    """Whether an option with this value carries a decision, or stands there for one."""
    return name in OWNED or (name in BESIDE and words == [BESIDE[name]])

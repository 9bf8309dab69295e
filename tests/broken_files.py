"""Configuration files of every format that do not fit, have illegal degrees, or batches that do
not divide, for llama3-8b on 2xdgx-h100; each with keys and comments that are not planner's."""

from dataclasses import dataclass

MODEL, CLUSTER = "llama3-8b", "2xdgx-h100"


@dataclass(frozen=True, kw_only=True)
class BrokenFile:
    """A file, the options it needs, and what of it no repair may touch."""

    name: str
    text: str
    foreign: tuple[str, ...]
    options: tuple[str, ...] = ()


_DEEPSPEED = """\
{
  "steps_per_print": 7,
  "train_batch_size": 128,
  "train_micro_batch_size_per_gpu": MICRO,
  "gradient_accumulation_steps": STEPS,
  "bf16": {"enabled": true},
  "gradient_clipping": 0.5,
  "tensor_parallel": {"autotp_size": TP},
  "zero_optimization": {"stage": ZERO, "round_robin_gradients": true},
  "wall_clock_breakdown": false
}
"""
_DEEPSPEED_KEPT = (
    '"steps_per_print": 7,',
    '"gradient_clipping": 0.5,',
    '"round_robin_gradients": true',
    '"wall_clock_breakdown": false',
)
_MEGATRON = """\
#!/bin/bash
# our job
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
    --group-query-attention --num-query-groups 8 --swiglu --max-position-embeddings 8192 \\
    --normalization RMSNorm --disable-bias-linear --position-embedding-type rope \\
    --untie-embeddings-and-output-weights \\
    --seq-length 8192 --tensor-model-parallel-size TP \\
    --micro-batch-size MICRO --global-batch-size 128 \\
    --use-distributed-optimizer --bf16 --lr 1e-4 \\
    --log-interval 10 --exit-interval 77
echo "done"  # for the log
"""
_MEGATRON_KEPT = (
    "# our job",
    "export CUDA_DEVICE_MAX_CONNECTIONS=1",
    "--num-layers 32",
    "--lr 1e-4",
    "--log-interval 10 --exit-interval 77",
    'echo "done"  # for the log',
)
_TORCHTITAN = """\
--module=llama3
--config=llama3_8b
--training.seq_len=8192
--training.local_batch_size=MICRO
--training.global_batch_size=128
--parallelism.tensor_parallel_degree=TP
--metrics.log_freq=10
--training.steps=77
"""
_TORCHTITAN_KEPT = ("--module=llama3", "--metrics.log_freq=10", "--training.steps=77")
_ACCELERATE = """\
# our job
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
num_machines: 2
num_processes: 16
mixed_precision: bf16
main_training_function: start  # as our script has it
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: SHARDED_STATE_DICT  # ours
parallelism_config:
  parallelism_config_dp_replicate_size: REPLICAS
  parallelism_config_dp_shard_size: SHARDS
  parallelism_config_tp_size: TP
"""
_ACCELERATE_KEPT = (
    "# our job",
    "main_training_function: start  # as our script has it",
    "fsdp_state_dict_type: SHARDED_STATE_DICT  # ours",
)
_ACCELERATE_ZERO = """\
# our job
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_machines: 2
num_processes: 16
mixed_precision: bf16
main_training_function: start  # as our script has it
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: STEPS
  gradient_clipping: 0.5  # ours
"""
_ACCELERATE_ZERO_KEPT = ("# our job", "  # as our script has it", "gradient_clipping: 0.5  # ours")
_TRAINER = """\
{
  "output_dir": "out",
  "per_device_train_batch_size": MICRO,
  "gradient_accumulation_steps": STEPS,
  "bf16": true,
  "fsdp": true,
  "fsdp_config": {"version": 2, "reshard_after_forward": true},
  "learning_rate": 1e-4,
  "logging_steps": 7
}
"""
_TRAINER_KEPT = ('"output_dir": "out",', '"learning_rate": 1e-4,', '"logging_steps": 7')
_BRIDGE = """\
model.tensor_model_parallel_size=TP
train.micro_batch_size=MICRO
train.global_batch_size=128
model.seq_length=8192
dataset.seq_length=8192
logger.log_interval=5
train.train_iters=77
"""
_BRIDGE_KEPT = ("logger.log_interval=5", "train.train_iters=77")


def _of(text: str, **values: object) -> str:
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


def _file(
    name: str, text: str, kept: tuple[str, ...], *options: str, **values: object
) -> BrokenFile:
    return BrokenFile(name=name, text=_of(text, **values), foreign=kept, options=options)


_AS_TRAINER = ("--framework", "trainer")
BROKEN = {
    "deepspeed-memory": _file(
        "ds.json", _DEEPSPEED, _DEEPSPEED_KEPT, MICRO=8, STEPS=1, TP=1, ZERO=0
    ),
    "deepspeed-degree": _file(
        "ds.json",
        _DEEPSPEED,
        _DEEPSPEED_KEPT,
        "--global-batch",
        "128",
        MICRO=1,
        STEPS=8,
        TP=3,
        ZERO=1,
    ),
    "deepspeed-batch": _file(
        "ds.json", _DEEPSPEED, _DEEPSPEED_KEPT, "--seq-len", "4096", MICRO=1, STEPS=5, TP=1, ZERO=3
    ),
    "megatron-memory": _file("job.sh", _MEGATRON, _MEGATRON_KEPT, MICRO=8, TP=2),
    "megatron-degree": _file("job.sh", _MEGATRON, _MEGATRON_KEPT, MICRO=1, TP=3),
    "megatron-batch": _file("job.sh", _MEGATRON, _MEGATRON_KEPT, MICRO=3, TP=4),
    "torchtitan-memory": _file("words.txt", _TORCHTITAN, _TORCHTITAN_KEPT, MICRO=64, TP=8),
    "torchtitan-degree": _file("words.txt", _TORCHTITAN, _TORCHTITAN_KEPT, MICRO=1, TP=3),
    "torchtitan-batch": _file("words.txt", _TORCHTITAN, _TORCHTITAN_KEPT, MICRO=3, TP=2),
    "accelerate-memory": _file(
        "job.yaml", _ACCELERATE, _ACCELERATE_KEPT, REPLICAS=8, SHARDS=2, TP=1
    ),
    "accelerate-degree": _file(
        "job.yaml",
        _ACCELERATE,
        _ACCELERATE_KEPT,
        "--global-batch",
        "128",
        REPLICAS=1,
        SHARDS=5,
        TP=3,
    ),
    "accelerate-batch": _file(
        "job.yaml", _ACCELERATE_ZERO, _ACCELERATE_ZERO_KEPT, "--global-batch", "128", STEPS=5
    ),
    "trainer-memory": _file("args.json", _TRAINER, _TRAINER_KEPT, *_AS_TRAINER, MICRO=16, STEPS=2),
    "trainer-batch": _file(
        "args.json", _TRAINER, _TRAINER_KEPT, *_AS_TRAINER, "--global-batch", "96", MICRO=4, STEPS=5
    ),
    "bridge-memory": _file("words.txt", _BRIDGE, _BRIDGE_KEPT, MICRO=8, TP=1),
    "bridge-degree": _file("words.txt", _BRIDGE, _BRIDGE_KEPT, MICRO=1, TP=3),
    "bridge-batch": _file("words.txt", _BRIDGE, _BRIDGE_KEPT, MICRO=3, TP=8),
}

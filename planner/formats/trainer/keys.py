"""The keys of TrainingArguments, by schema.json, and what settings say of them."""

from collections.abc import Mapping

from planner.documents.schema import Schema, load_schema
from planner.formats.settings import Settings, flag, given, word

ON_PROCESSOR = "use_cpu"
BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
OPTIM, ARGUMENTS = "optim", "optim_args"
SAMPLING = "train_sampling_strategy"
LIGER = "use_liger_kernel"
CHECKPOINTING, OLD_CHECKPOINTING = "activation_checkpointing", "gradient_checkpointing"
SYNC_EACH_BATCH = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
MESH = "parallelism_config"
FSDP, FSDP_CONFIG, DEEPSPEED = "fsdp", "fsdp_config", "deepspeed"
FSDP1_OPTIONS = ("hybrid_shard", "hybrid_shard_zero2", "no_shard")
FSDP2_OPTIONS = ("full_shard", "shard_grad_op", "offload", "auto_wrap")
VERSION, RESHARD = "fsdp_config.version", "fsdp_config.reshard_after_forward"
OFFLOAD, BLOCKS = "fsdp_config.cpu_offload", "fsdp_config.activation_checkpointing"
WRAP = "fsdp_config.auto_wrap_policy"
STAGE = "deepspeed.zero_optimization.stage"
OPTIMIZER_DEVICE = "deepspeed.zero_optimization.offload_optimizer.device"
PARAM_DEVICE = "deepspeed.zero_optimization.offload_param.device"
ENGINES_OPTIMIZER = "deepspeed.optimizer.type"
# Whole numbers that HfArgumentParser leaves as ``8.0``, and with that no training starts.
WHOLE = (
    *(BATCH, STEPS, "max_steps", "dataloader_num_workers", "seed", "data_seed"),
    "torch_empty_cache_steps",
)


def schema() -> Schema:
    """Return the schema of a file; keys of fsdp_config may be written with fsdp_ before them."""
    return load_schema(__package__)


def known() -> Mapping[str, Schema]:
    """Schemas of the keys at the top."""
    return dict(schema()["properties"])


def optimizers() -> tuple[str, ...]:
    """Return the values that ``optim`` may have."""
    return tuple(schema()["$defs"]["optim"]["enum"])


def replaced() -> Mapping[str, str]:
    """Keys that TrainingArguments had once, each with what stands in for it, if anything does."""
    return dict(schema()["$defs"]["replaced"]["const"])


def is_on_host(settings: Settings) -> bool:
    """Return True if ``optim`` is replaced by DeepSpeed's own Adam or Lion for the processor.

    Source: map_pytorch_optim_to_deepspeed in accelerate/utils/deepspeed.py.
    """
    device = word(settings, OPTIMIZER_DEVICE, "none")
    return (
        device != "none"
        and flag(settings, "deepspeed.zero_force_ds_cpu_optimizer", default=True)
        and not word(settings, ENGINES_OPTIMIZER)
    )


def options(settings: Settings) -> list[str]:
    """Words of the old form of ``fsdp``: ``full_shard auto_wrap offload``."""
    value = given(settings, FSDP)
    if isinstance(value, str):
        text = value.lower()
        return [] if text in ("true", "false") else text.split()
    if not isinstance(value, list):
        return []
    return [str(each).lower() for each in value]

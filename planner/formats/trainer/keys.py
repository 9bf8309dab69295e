"""The keys of TrainingArguments, by schema.json, and the programs whose files say them.

Most programs say them in words of their own: a table each.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from planner.documents.schema import Schema, load_schema
from planner.documents.tree import load_own
from planner.formats.settings import Settings, as_flag, flag, given, word

ON_PROCESSOR = "use_cpu"
BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
OPTIM, ARGUMENTS = "optim", "optim_args"
SAMPLING = "train_sampling_strategy"
LIGER = "use_liger_kernel"
CHECKPOINTING, OLD_CHECKPOINTING = "activation_checkpointing", "gradient_checkpointing"
SYNC_EACH_BATCH = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
MESH = "parallelism_config"
ENGINES = FSDP, DEEPSPEED = "fsdp", "deepspeed"
FSDP_CONFIG = "fsdp_config"
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
    return [str(each).lower() for each in value] if isinstance(value, list) else []


OWN = "trainer"


@dataclass(frozen=True, kw_only=True)
class FrontEnd:
    """A program, its words and what they mean; keys of a table are these fields."""

    name: str
    program: str
    title: str
    versions: str
    tells: Sequence[Sequence[str]]  # A file is the program's where it has all keys of one of these
    commands: Sequence[Sequence[str]]
    """Words that stand together in a command that starts training; its options follow. None: any
    script's."""
    model: Sequence[str]
    length: Mapping[str, Any]
    """The key of the tokens that a sequence has at most, and its default; 0: the model's."""
    packing: Mapping[str, list[Any]]  # Values after which every sequence is as long as it may be
    batching: Sequence[Mapping[str, Any]]
    """Values of keys by how a batch then puts documents together, the first that holds (with the
    flag ``beside`` it); empty: as no kind of --documents does. Else they are padded."""
    training: Mapping[str, Any]
    in_16_bits: Mapping[str, Any]
    """Cases in which trained weights are in 16 bits: always (``usual``) but for these values of
    keys, or for these alone."""
    liger: Mapping[str, list[Any]]  # Values of keys after which the logits are never whole
    unpriced: Sequence[Mapping[str, Any]]
    refused: Mapping[str, Mapping[str, Any]]  # Rules by name, as ``Rules.add_table`` takes them
    keys: str  # all that are the program's own
    frozen_in_16_bits_only: bool = False
    """Weights beside adapters are held as others would be; plans price them in 16 bits alone."""
    but_not: Sequence[str] = ()  # Keys of others that look alike
    lengths: Sequence[str] = ()  # Other names of the key of the length
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Name of a key in TrainingArguments; empty: it is none of them there."""
    inverse: Mapping[str, str] = field(default_factory=dict)  # The same, for flags of the opposite
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values by their words, for keys of TrainingArguments."""
    usual: Mapping[str, Any] = field(default_factory=dict)  # Defaults, unlike TrainingArguments'
    usual_with_fsdp: Mapping[str, Any] = field(default_factory=dict)
    refuses_doubles: bool = False  # A key given twice is an error to its loader of YAML
    fsdp_by_config: bool = False  # ``fsdp_config`` alone turns FSDP on
    degrees: Mapping[str, list[str]] = field(default_factory=dict)
    """Keys by the degree they say; ``dp_shard``: the ranks over which states are split."""
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Settings that a name stands for in place of a file, by key and name."""
    accelerate: str = ""  # the key that names a file of Accelerate's
    optimizers: str = ""  # Words of ``optim`` that TrainingArguments do not have

    @property
    def is_own(self) -> bool:
        """The words are those of TrainingArguments themselves."""
        return self.name == OWN


@cache
def tool_names() -> tuple[str, ...]:
    """Their names, sorted; no table is read."""
    files = [Path(entry.name) for entry in resources.files(__package__).iterdir()]
    return tuple(sorted({file.stem for file in files if file.suffix == ".yaml"} - {OWN}))


@cache
def load_tool(name: str) -> FrontEnd:
    """The table of a program."""
    return FrontEnd(name=name, **load_own(__package__, f"{name}.yaml"))


def is_of(tool: FrontEnd, names: AbstractSet[str]) -> bool:
    """Return True if keys at the top of a file are those of a program."""
    return any(names >= {*group} for group in tool.tells) and not names & {*tool.but_not}


def is_one_of(value: object, wanted: Sequence[Any]) -> bool:
    """Return True if a value, or one of a list, is of a table; flags by any word for them."""
    if isinstance(value, list):
        return any(is_one_of(each, wanted) for each in value)
    flags = [each for each in wanted if isinstance(each, bool)]
    return value in wanted or as_flag(value) in flags

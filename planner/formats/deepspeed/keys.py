"""The keys of a DeepSpeed file, by schema.json, and what settings say of them."""

from dataclasses import dataclass

from planner.documents.schema import Schema, load_schema
from planner.formats.rules import ConfigView
from planner.formats.settings import Settings, given, whole

AUTO = "auto"
"""What Trainer and Accelerate fill in."""
SCRIPT = "training_script"
"""Top-level block that DeepSpeed ignores: what the user's code must do itself."""
TOTAL, MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
STEPS, REPLICAS = "gradient_accumulation_steps", "data_parallel_size"
ZERO = "zero_optimization"
ZENFLOW = f"{ZERO}.zenflow"
STAGE, HPZ = f"{ZERO}.stage", f"{ZERO}.zero_hpz_partition_size"
OLD_SWITCHES = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
TP, PP, SP = "tensor_parallel.autotp_size", "pipeline.stages", "sequence_parallel_size"
EP_ON, EP = "expert_parallel.enabled", "expert_parallel.autoep_size"
SCRIPT_TP, LENGTH = f"{SCRIPT}.tensor_parallel_size", f"{SCRIPT}.sequence_length"
LAYERS = f"{SCRIPT}.layers_per_stage"
SELECTIVE = f"{SCRIPT}.selective_layers_per_stage"
FULL = f"{SCRIPT}.recompute_layers_per_stage"
MODULES = f"{SCRIPT}.recompute_modules"
ENABLED = ("bf16.enabled", "fp16.enabled")
MASTER, STATES = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"
TYPE, MOMENTUM = "optimizer.type", "optimizer.params.momentum"
TORCH_ADAM, UNTESTED = "optimizer.params.torch_adam", "zero_allow_untested_optimizer"
TYPES = {
    "adam": "AdamW",
    "adam-bf16": "AdamW",
    "sgd": "SGD",
    "sgd-momentum": "SGD",
    "lion": "Lion",
    "adafactor": "Adafactor",
    "muon": "Muon",
}
"""The type that the engine makes, by the names of optimizers.yaml."""
NAMES = {kind.lower(): name for name, kind in reversed(TYPES.items())} | {"adam": "adam"}
NAMES |= {"onebitadam": "adam", "onebitlamb": "adam"}
DEVICES = {
    "none": ("none", "none"),
    "optimizer:host": ("cpu", "none"),
    "optimizer+parameters:host": ("cpu", "cpu"),
    "optimizer:nvme": ("nvme", "none"),
    "optimizer+parameters:nvme": ("nvme", "nvme"),
}
"""Devices of the optimizer's states and of the parameters; other pairs are not modelled."""
CODES = {devices: code for code, devices in DEVICES.items()}


def schema() -> Schema:
    """Of a file, with the block for the script."""
    return load_schema(__package__)


def listed_in(name: str) -> tuple[str, ...]:
    """Names that the schema lists beside the keys: removed keys, types of optimizers and such."""
    return tuple(schema()["$defs"][name]["enum"])


def is_optimizer_type(name: str) -> bool:
    """Whether the engine can make it: its own in any case, or PyTorch's as it is spelled."""
    return name.lower() in listed_in("optimizers") or name in listed_in("torch_optimizers")


def size(settings: Settings, key: str) -> int | None:
    """A whole number from 1; None where there is none."""
    found = whole(settings, key, 0)
    return found if found >= 1 else None


def stage(settings: Settings) -> int:
    """The ZeRO stage, 0 where nothing states it."""
    switch = given(settings, ZERO)
    return int(switch) if isinstance(switch, bool) else whole(settings, STAGE, 0)


def device(settings: Settings, section: str) -> str:
    """Where ``offload_optimizer`` or ``offload_param`` puts what it names: none, cpu, nvme."""
    value = given(settings, f"{ZERO}.{section}.device")
    if isinstance(value, str):
        return value
    return "cpu" if given(settings, f"{ZERO}.{OLD_SWITCHES[section]}") is True else "none"


def autotp(settings: Settings) -> int:
    """Ranks of AutoTP, 1 where it is off."""
    return size(settings, TP) or 1


def stages(settings: Settings) -> int:
    """Pipeline stages, 1 where none are stated."""
    return size(settings, PP) or 1


@dataclass(frozen=True, kw_only=True)
class DeepspeedView(ConfigView):
    """A file as rules ask about it."""

    @property
    def stage(self) -> int:
        """The ZeRO stage."""
        return stage(self.settings)

    @property
    def autotp(self) -> int:
        """Ranks of AutoTP."""
        return autotp(self.settings)

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return stages(self.settings)

    def device(self, section: str) -> str:
        """Where a section of offload puts what it names."""
        return device(self.settings, section)


def counts_all_ranks(settings: Settings) -> bool:
    """AutoTP alone: its groups are made after the batch is checked, against all ranks."""
    return autotp(settings) > 1 and stages(settings) == 1


def is_for_trainer(key: str, value: object) -> bool:
    """Whether Trainer or Accelerate fills it in: "auto", which in ZenFlow's section is its own."""
    return value == AUTO and not key.startswith(f"{ZENFLOW}.")


def given_twice(settings: Settings) -> dict[str, str]:
    """Old switches with the section beside them that replaced them; DeepSpeed refuses both."""
    return {
        f"{ZERO}.{switch}": section
        for section, switch in OLD_SWITCHES.items()
        if f"{ZERO}.{section}" in settings and f"{ZERO}.{switch}" in settings
    }

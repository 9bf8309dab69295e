"""The keys of a DeepSpeed file, by schema.json, and what settings say of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.documents.schema import Schema, load_schema
from planner.documents.tree import load_own
from planner.formats.settings import (
    ConfigView,
    Refused,
    Rules,
    View,
    Whole,
    as_number,
)
from planner.layers.adapter_targets import BARE_EXPERTS

# What Trainer and Accelerate fill in.
AUTO = "auto"
# Top-level block that DeepSpeed ignores: what the user's code must do itself.
SCRIPT = "training_script"
TOTAL, MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
STEPS, REPLICAS = "gradient_accumulation_steps", "data_parallel_size"
ZERO = "zero_optimization"
ZENFLOW, LEAVES = f"{ZERO}.zenflow", f"{ZERO}.leaf_module"
STAGE, HPZ = f"{ZERO}.stage", f"{ZERO}.zero_hpz_partition_size"
RATIO = f"{ZERO}.offload_optimizer.ratio"
OLD_SWITCHES = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
TP, PP, SP = "tensor_parallel.autotp_size", "pipeline.stages", "sequence_parallel_size"
PASSES = "compile.passes"
EP_ON, EP = "expert_parallel.enabled", "expert_parallel.autoep_size"
SCRIPT_TP, LENGTH = f"{SCRIPT}.tensor_parallel_size", f"{SCRIPT}.sequence_length"
LAYERS = f"{SCRIPT}.layers_per_stage"
ENABLED = ("bf16.enabled", "fp16.enabled")
MASTER, STATES = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"
TYPE, MOMENTUM = "optimizer.type", "optimizer.params.momentum"
TORCH_ADAM, UNTESTED = "optimizer.params.torch_adam", "zero_allow_untested_optimizer"
NAMED: Mapping[str, Mapping[str, str]] = load_own(__package__, "names.yaml")
TYPES, NAMES = NAMED["types"], NAMED["optimizers"]
# Devices of the optimizer's states and of the parameters; other pairs are not modelled.
DEVICES = {
    "none": ("none", "none"),
    "optimizer:host": ("cpu", "none"),
    "optimizer+parameters:host": ("cpu", "cpu"),
    "optimizer:nvme": ("nvme", "none"),
    "optimizer+parameters:nvme": ("nvme", "nvme"),
}
CODES = {devices: code for code, devices in DEVICES.items()}


def schema() -> Schema:
    """Return the schema of a file, with the block for the script."""
    return load_schema(__package__)


def listed_in(name: str) -> tuple[str, ...]:
    """Names that the schema lists beside the keys: removed keys, types of optimizers and such."""
    return tuple(schema()["$defs"][name]["enum"])


def is_optimizer_type(name: str) -> bool:
    """Return True if the engine can make it: its own in any case, PyTorch's as it is spelled."""
    return name.lower() in listed_in("optimizers") or name in listed_in("torch_optimizers")


@dataclass(frozen=True, kw_only=True)
class DeepspeedView(ConfigView):
    """A file as rules and decisions ask about it."""

    autotp, autoep, secondary = Whole(TP), Whole(EP), Whole(HPZ)
    stages, sequence, replicas = Whole(PP), Whole(SP), Whole(REPLICAS)
    script_tp = Whole(SCRIPT_TP)

    def size(self, key: str) -> int:
        """A whole number from 1; 0 where there is none."""
        return max(self.whole(key, 0), 0)

    @property
    def stage(self) -> int:
        """The ZeRO stage, 0 where nothing states it."""
        switch = self[ZERO]
        return int(switch) if isinstance(switch, bool) else self.whole(STAGE, 0)

    def device(self, section: str) -> str:
        """Return the device of ``offload_optimizer`` or ``offload_param``: none, cpu, nvme."""
        value = self[f"{ZERO}.{section}.device"]
        if isinstance(value, str):
            return value
        return "cpu" if self[f"{ZERO}.{OLD_SWITCHES[section]}"] is True else "none"

    @property
    def states_on(self) -> str:
        """The device of the optimizer states."""
        return self.device("offload_optimizer")

    @property
    def weights_on(self) -> str:
        """The device of the parameters, which stage 3 alone sends there."""
        return self.device("offload_param")

    @property
    def offloads(self) -> bool:
        """True if optimizer states leave HBM."""
        return self.states_on != "none"

    @property
    def ratio(self) -> float:
        """Share of the optimizer states that leaves."""
        found = as_number(self[RATIO])
        return 1.0 if found is None else found

    def stated(self, key: str) -> str:
        """A word that the file states; empty where it states none, or leaves it open."""
        value = self[key]
        return value if isinstance(value, str) and value != AUTO else ""

    @property
    def optimizer(self) -> str:
        """The optimizer's type in small letters; empty where the file has none."""
        return self.stated(TYPE).lower()

    @property
    def counts_all_ranks(self) -> bool:
        """AutoTP alone: its groups are made after the batch is checked, against all ranks."""
        return self.autotp > 1 and self.stages == 1


def is_for_trainer(key: str, value: object) -> bool:
    """Return True for an "auto" that Trainer or Accelerate fills in, not for ZenFlow's own."""
    return value == AUTO and not key.startswith(f"{ZENFLOW}.")


# Families whose mixtures are leaves by default since pull request 7604 (October 2025):
# DEFAULT_LEAF_MODULE_CLASSES of leaf_module_config.py.
_LEAF_FAMILIES = ("mixtral", "qwen2_moe", "qwen3", "qwen3_moe")


def add_leaf_modules(rules: Rules[View], above: str = "") -> None:
    """Add the rule on leaf modules to those of a format that has DeepSpeed's keys ``above``."""

    def may_hang(file: ConfigView) -> Refused:
        family = file.world.decisions.get("model.family")
        # Bare parameters are gathered with the module that has them.
        text = (
            "given 3 with experts: below transformers 5 ranks gather the experts their own tokens "
            "choose and hang, unless their block is a leaf (leaf_module, or set_z3_leaf_modules)"
        )
        is_alone = (
            file.whole(f"{above}{STAGE}", 0) == 3
            and file.decided("model.num_experts") > 0
            and family not in (*BARE_EXPERTS, *_LEAF_FAMILIES)
            and file[f"{above}{LEAVES}"] is None
        )
        return {text: is_alone}

    rules.unenforced(
        "deepspeed/runtime/zero/leaf_module_config.py; DeepSpeed pull request 4966, issue 7461",
        name="mixtures_have_leaf_modules",
        holds="Experts are gathered together.",
        key=f"{above}{STAGE}",
        severity="note",
        when=may_hang,
    )

"""The keys of Accelerate's file, by schema.json, and what settings say of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.documents.schema import Schema, load_schema
from planner.documents.tree import load_own
from planner.formats.settings import ConfigView, Refused

TYPE, PRECISION = "distributed_type", "mixed_precision"
PROCESSES, MACHINES, RANK = "num_processes", "num_machines", "machine_rank"
PORT = "main_process_port"
FSDP = "fsdp_config.fsdp_"
VERSION, RESHARD = f"{FSDP}version", f"{FSDP}reshard_after_forward"
STRATEGY, OFFLOAD = f"{FSDP}sharding_strategy", f"{FSDP}offload_params"
WRAP, CHECKPOINTING = f"{FSDP}auto_wrap_policy", f"{FSDP}activation_checkpointing"
DEEPSPEED = "deepspeed_config."
STAGE, STEPS = f"{DEEPSPEED}zero_stage", f"{DEEPSPEED}gradient_accumulation_steps"
OPTIMIZER_DEVICE = f"{DEEPSPEED}offload_optimizer_device"
PARAM_DEVICE = f"{DEEPSPEED}offload_param_device"
FILE, MULTINODE = f"{DEEPSPEED}deepspeed_config_file", f"{DEEPSPEED}deepspeed_multinode_launcher"
NVME_PATH = "ACCELERATE_DEEPSPEED_OFFLOAD_{}_NVME_PATH"
MESH = "parallelism_config.parallelism_config_"
SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
# The class of a layer that FSDP wraps, by family of the model.
CLASSES: Mapping[str, str] = load_own(__package__, "classes.yaml")


def schema() -> Schema:
    """Return the schema of a file; the keys of a section may omit its ``prefix``."""
    return load_schema(__package__)


def sections() -> dict[str, Schema]:
    """Schemas of the sections by their names."""
    properties: dict[str, Schema] = schema()["properties"]
    return {name: entry for name, entry in properties.items() if "properties" in entry}


def size_key(name: str) -> str:
    """The key of one size of the mesh."""
    return f"{MESH}{name}_size"


@dataclass(frozen=True, kw_only=True)
class AccelerateView(ConfigView):
    """A file as its rules and decisions ask about it."""

    @property
    def kind(self) -> str:
        """Distributed type; MULTI_GPU for whole replicas on whatever hardware."""
        kind = self.word(TYPE).upper()
        # A bare NO reads as false.
        kind = "NO" if kind == "FALSE" else kind
        return "MULTI_GPU" if kind.startswith("MULTI_") else kind

    @property
    def is_fsdp(self) -> bool:
        """True if FSDP shards the model."""
        return self.kind == "FSDP"

    @property
    def is_fsdp2(self) -> bool:
        """FSDP2 shards; without a version it is FSDP1."""
        return self.is_fsdp and self.whole(VERSION) == 2

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that the launch script sets."""
        return self.world.environment

    @property
    def num_started(self) -> int:
        """Processes that the launcher starts; 0 where the file leaves them open."""
        return 1 if self.kind == "NO" else max(0, self.whole(PROCESSES, -1))

    @property
    def has_mesh(self) -> bool:
        """The file has a mesh at all."""
        return any(key.startswith("parallelism_config.") for key in self.settings)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the mesh, 1 where the file gives none."""
        return {name: self.whole(size_key(name)) for name in SIZES}

    def setting(self, name: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The size of the mesh that has this name, else a key's value."""
        return self.sizes[name] if name in SIZES else super().setting(name)


def of_another_model(file: ConfigView, key: str) -> Refused:
    """What is wrong with the classes that a file wraps."""
    own = CLASSES.get(str(file.world.decisions.get("model.family")))
    given = file.word(key).replace(",", " ").split()
    are_known = given and {*given} <= {*CLASSES.values()}
    message = f"the model's layers are {own}; given {', '.join(given)}, of which it has none"
    return {message: are_known and own is not None and own not in given}

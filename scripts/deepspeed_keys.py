"""Writes planner/formats/deepspeed/schema.json: the keys that DeepSpeed's own code knows.

A recording dictionary is given to the real DeepSpeedConfig, which says what it asks for; fields of
pydantic models come with their kinds. Run with DeepSpeed 0.19.8: `scripts/deepspeed_keys.py`.
"""

import enum
import json
import os
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

TARGET = Path(__file__).parents[1] / "planner" / "formats" / "deepspeed" / "schema.json"
READ_ELSEWHERE = {
    "data_parallel_size": "deepspeed/__init__.py",
    "sequence_parallel_size": "deepspeed/__init__.py",
    "vocabulary_size": "deepspeed/runtime/config.py",
    "weight_quantization": "deepspeed/runtime/config.py",
}
"""Top-level keys that a start without GPUs and with an mpu does not ask for."""
FREE = ("optimizer", "scheduler", "data_efficiency", "autotuning", "datastates_ckpt")
"""Sections whose keys depend on the user's choices or are not asked for while they are off."""
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
SIZE = {"type": "integer", "minimum": 1}
SWITCH = {"type": "boolean"}


def or_null(entry: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value that may be left out by null; one without a type takes anything."""
    if "type" not in entry:
        return entry
    choices = {"enum": [*entry["enum"], None]} if "enum" in entry else {}
    return {**entry, "type": [entry["type"], "null"], **choices}


def section(keys: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has these keys and no others."""
    return {"type": "object", "properties": keys, "additionalProperties": False}


OWN_KINDS: dict[str, dict[str, Any]] = {
    "activation_checkpointing.contiguous_memory_optimization": SWITCH,
    "activation_checkpointing.cpu_checkpointing": SWITCH,
    "activation_checkpointing.number_checkpoints": or_null(SIZE),
    "activation_checkpointing.partition_activations": SWITCH,
    "activation_checkpointing.profile": SWITCH,
    "activation_checkpointing.synchronize_checkpoint_boundary": SWITCH,
    "data_parallel_size": SIZE,
    "expert_parallel.autoep_size": SIZE,
    "expert_parallel.enabled": SWITCH,
    "gradient_accumulation_steps": SIZE,
    "gradient_clipping": {"type": "number", "minimum": 0},
    "gradient_predivide_factor": {"type": "number", "exclusiveMinimum": 0},
    "managed_gradient_accumulation": SWITCH,
    "optimizer.type": {"type": "string"},
    "pipeline.activation_checkpoint_interval": {"type": "integer", "minimum": 0},
    "pipeline.grad_partitioned": SWITCH,
    "pipeline.pipe_partitioned": SWITCH,
    "pipeline.use_reentrant": or_null(SWITCH),
    "prescale_gradients": SWITCH,
    "scheduler.type": {"type": "string"},
    "sequence_parallel_size": SIZE,
    "steps_per_print": or_null({"type": "integer"}),
    "train_batch_size": SIZE,
    "train_micro_batch_size_per_gpu": SIZE,
    "wall_clock_breakdown": SWITCH,
    "zero_allow_untested_optimizer": SWITCH,
    "zero_force_ds_cpu_optimizer": SWITCH,
}
"""What DeepSpeed takes as it is, and what its code then needs it to be."""
COUNTS = {"type": "array", "items": {"type": "integer"}}
TRAINING_SCRIPT = section(
    {
        "sequence_length": SIZE,
        "tensor_parallel_size": SIZE,
        "layers_per_stage": COUNTS,
        "selective_layers_per_stage": COUNTS,
        "recompute_layers_per_stage": COUNTS,
        "recompute_modules": {"type": "array", "items": {"type": "string"}},
    }
)
"""Our own block, which DeepSpeed ignores: what the user's code must do itself."""
PIPELINE_READ_LATER = ("use_reentrant",)
"""Read by deepspeed/runtime/pipe/engine.py."""


class Asked(dict[str, Any]):
    """A section that notes which keys are asked for."""

    def __init__(self, **values: object) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def get(self, key: str, default: object = None) -> object:
        self.names.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> object:
        self.names.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return super().__contains__(key)

    def keys(self) -> "Asked":  # type: ignore[override]
        return self

    def __copy__(self) -> "Asked":
        return self


def asked_keys() -> tuple[set[str], dict[str, set[str]]]:
    """Top-level keys, and those of the sections that are read one by one."""
    import deepspeed.runtime.config as runtime

    sections = {
        name: Asked()
        for name in (
            "activation_checkpointing",
            "aio",
            "checkpoint",
            "data_types",
            "flops_profiler",
            "torch_autocast",
        )
    }
    sections["optimizer"] = Asked(type="AdamW")
    sections["expert_parallel"] = Asked(enabled=False)
    sections["scheduler"] = Asked(type="WarmupLR")
    sections["checkpoint"] = Asked(parallel_write=Asked(), writer=Asked())
    whole = Asked(train_batch_size=1, **sections)
    runtime.dist.get_rank = lambda *_: 0
    runtime.dist.get_world_size = lambda *_: 1
    config = runtime.DeepSpeedConfig(whole)
    names = {name: section.names for name, section in sections.items()}
    names["pipeline"] = {*config.pipeline, *PIPELINE_READ_LATER}
    return whole.names | set(READ_ELSEWHERE), names


def kind(annotation: object) -> dict[str, Any]:
    """The schema of the values that a pydantic field takes."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [kind(part) for part in typing.get_args(annotation) if part is not type(None)]
        merged = parts[0] if len(parts) == 1 else {}
        return or_null(merged) if type(None) in typing.get_args(annotation) else merged
    if origin is typing.Literal:
        return {"type": "string", "enum": list(typing.get_args(annotation))}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return section(fields(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        values = sorted({member.value for member in annotation}, key=str)
        name = "integer" if issubclass(annotation, int) else "string"
        return {"type": name, "enum": values}
    if origin in (list, dict) or annotation in (list, dict):
        return {"type": "array" if (origin or annotation) is list else "object"}
    return {"type": KINDS[annotation]} if annotation in KINDS else {}


def limits(metadata: list[Any]) -> Iterator[tuple[str, float]]:
    for item in metadata:
        for name, word in (("ge", "minimum"), ("le", "maximum"), ("gt", "exclusiveMinimum")):
            if hasattr(item, name):
                yield word, getattr(item, name)


def fields(model: "type[BaseModel]") -> dict[str, Any]:
    """Keys of a pydantic model, under both names where a field has an alias."""
    found: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        extra: Any = info.json_schema_extra or {}
        entry = {**kind(info.annotation), **dict(limits(info.metadata))}
        if extra.get("deprecated"):
            entry["deprecated"] = True
        found[name] = entry
        if info.alias:
            found[info.alias] = entry
    return found


def models() -> dict[str, Any]:
    """The sections that are pydantic models."""
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.inference.config import WeightQuantConfig
    from deepspeed.monitor import config as monitor
    from deepspeed.runtime.config import HybridEngineConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.utils.config import get_timers_config

    found = {
        "bf16": DeepSpeedBF16Config,
        "bfloat16": DeepSpeedBF16Config,
        "comms_logger": CommsLoggerConfig,
        "compile": CompileConfig,
        "fp16": DeepSpeedFP16Config,
        "hybrid_engine": HybridEngineConfig,
        "tensor_parallel": TPTrainingConfig,
        "weight_quantization": WeightQuantConfig,
        "zero_optimization": DeepSpeedZeroConfig,
    }
    monitors = monitor.DeepSpeedMonitorConfig.model_fields
    found |= {name: info.annotation for name, info in monitors.items() if name != "enabled"}
    timer = kind(type(get_timers_config({})))
    made = {name: kind(model) for name, model in found.items()}
    made["zero_optimization"]["type"] = ["object", "boolean"]  # true still means stage 1
    return made | {"timers": section({"throughput": timer})}


_ADAM = "lr betas eps weight_decay bias_correction amsgrad"
_OF_ADAM = f"{_ADAM} torch_adam adam_w_mode adamw_mode set_grad_none fp32_optimizer_states fused"
_WARMUP = "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type last_batch_iteration"
_ONE_CYCLE = (
    "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size "
    "cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom "
    "cycle_max_mom decay_mom_rate last_batch_iteration"
)
TAKEN = {
    "optimizer": {
        "Adam": _OF_ADAM,
        "AdamW": _OF_ADAM,
        "Lamb": f"{_ADAM} eps_inside_sqrt max_coeff min_coeff",
        "Lion": "lr betas weight_decay set_grad_none fp32_optimizer_states",
        "Adagrad": "lr eps weight_decay amsgrad fp32_optimizer_states",
    },
    "scheduler": {
        "WarmupLR": _WARMUP,
        "WarmupDecayLR": f"total_num_steps {_WARMUP}",
        "WarmupCosineLR": (
            "total_num_steps warmup_min_ratio warmup_num_steps cos_min_ratio warmup_type "
            "last_batch_iteration"
        ),
        "OneCycle": _ONE_CYCLE,
        "LRRangeTest": (
            "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate "
            "lr_range_test_staircase last_batch_iteration"
        ),
    },
}
"""Names of parameters by type, from the signatures of DeepSpeed 0.19.8."""
NEEDED = {
    "WarmupDecayLR": ["total_num_steps"],
    "WarmupCosineLR": ["total_num_steps"],
    "OneCycle": ["cycle_min_lr", "cycle_max_lr"],
}
WORDS = ("warmup_type",)
"""Parameters that are no numbers."""


def parameters() -> dict[str, Any]:
    """What optimizers and schedules take that DeepSpeed makes itself, by type in small letters."""
    return {
        part: {
            name.lower(): {
                "title": name,
                "properties": {
                    each: {"type": "string"} if each in WORDS else {} for each in taken.split()
                },
                "required": NEEDED.get(name, []),
            }
            for name, taken in kinds.items()
        }
        for part, kinds in TAKEN.items()
    }


def types_in_code() -> dict[str, list[str]]:
    """Types of optimizers and schedulers: DeepSpeed's own, in its spelling, and those of torch."""
    import torch
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
    from deepspeed.runtime.lr_schedules import VALID_LR_SCHEDULES

    schedulers = torch.optim.lr_scheduler
    return {
        "optimizers": sorted(DEEPSPEED_OPTIMIZERS),
        "torch_optimizers": subclasses(torch.optim, torch.optim.Optimizer),
        "schedulers": sorted(
            {*VALID_LR_SCHEDULES, *subclasses(schedulers, schedulers.LRScheduler)}
        ),
    }


def subclasses(module: types.ModuleType, base: type) -> list[str]:
    """Names of the public classes of a module that are made from a base."""
    found = {name: each for name, each in vars(module).items() if not name.startswith("_")}
    return sorted(
        name
        for name, each in found.items()
        if isinstance(each, type) and issubclass(each, base) and each is not base
    )


def keys() -> dict[str, Any]:
    """The whole schema; removed keys and types that code knows are definitions beside it."""
    import deepspeed
    import deepspeed.runtime.config as runtime

    top, sections = asked_keys()
    known: dict[str, Any] = {name: {} for name in top if name not in FREE} | models()
    for name, names in sections.items():
        known[name] = section({key: {} for key in sorted(names)})
    for name in FREE:
        known.setdefault(name, {"type": "object"})
    known["optimizer"]["properties"]["params"] = {"type": "object"}
    known["scheduler"]["properties"]["params"] = {"type": "object"}
    known["training_script"] = TRAINING_SCRIPT
    for path, entry in OWN_KINDS.items():
        above, _, key = path.rpartition(".")
        place = known[above]["properties"] if above else known
        assert key in place, path
        place[key] = entry
    removed = {*runtime._REMOVED_TOP_LEVEL_CONFIG_KEYS}
    removed |= {f"zero_optimization.{name}" for name in runtime._REMOVED_ZERO_CONFIG_KEYS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"DeepSpeed {deepspeed.__version__}",
        "$defs": {"removed": {"enum": sorted(removed)}}
        | {name: {"enum": names} for name, names in types_in_code().items()}
        | {"parameters": parameters()},
        **section({name: known[name] for name in sorted(known) if name not in removed}),
    }


def text() -> str:
    """The file as it is written."""
    return json.dumps(keys(), indent=1, default=int) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    TARGET.write_text(text(), encoding="utf-8")

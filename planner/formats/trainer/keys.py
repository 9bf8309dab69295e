"""The keys TrainingArguments knows, from keys.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from planner.documents.yaml_text import load_data


@dataclass(frozen=True, kw_only=True)
class TrainerKeys:
    """All keys of TrainingArguments, and those of the mappings in it."""

    source: str
    top: Mapping[str, str]
    """Kind by key, as for Accelerate's file."""
    optim: tuple[str, ...]
    fsdp_config: tuple[str, ...]
    parallelism_config: tuple[str, ...]


@cache
def known_keys() -> TrainerKeys:
    """Read keys.yaml."""
    data = load_data(__package__, "keys.yaml")
    return TrainerKeys(
        source=data["source"],
        top=data["top"],
        optim=tuple(data["optim"]),
        fsdp_config=tuple(data["fsdp_config"]),
        parallelism_config=tuple(data["parallelism_config"]),
    )


@cache
def old_keys() -> Mapping[str, str]:
    """Keys that TrainingArguments had once, each with what stands in for it, if anything does."""
    found: dict[str, str] = load_data(__package__, "old_keys.yaml")
    return found

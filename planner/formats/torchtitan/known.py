"""What torchtitan knows: its options with their kinds, its configs with models and defaults.

``keys.json`` is generated from torchtitan's own classes by ``scripts/torchtitan_keys``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from planner.formats.format import Value

Setting: TypeAlias = Any
"""A value of the kind its option has."""
POLICY = "activation_checkpoint"
OWN_MODULE = "planner_config"
"""The Python module that is written for models torchtitan has no config of."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A config function, or what is assumed of one that is not known."""

    name: str
    is_known: bool
    defaults: Mapping[str, Any]
    """Of every deciding key."""
    policy: str = "selective"
    precision: str = "bf16"
    model: Mapping[str, Any]
    """Shape by the names of ModelSpec; empty: not known."""
    max_seq_len: int = 0
    attention: str = ""
    dispatcher: str = ""


@cache
def _data() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("keys.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def options() -> Mapping[str, Mapping[str, Any]]:
    """All options by key: kind, choices, whether None is allowed."""
    found: dict[str, Mapping[str, Any]] = _data()["options"]
    return found


def policies() -> Mapping[str, list[str]]:
    """Policies of activation checkpointing, with the options of each."""
    found: dict[str, list[str]] = {**_data()["policies"], "none": []}
    return found


def option_of(key: str) -> Mapping[str, Any] | None:
    """What is known of a key; numbered groups count as one."""
    return options().get(re.sub(r"\.\d+\.", ".N.", key))


def modules() -> Mapping[str, Mapping[str, Any]]:
    """Config functions by module."""
    found: dict[str, Mapping[str, Any]] = _data()["configs"]
    return found


def config_named(module: str, name: str) -> Config:
    """Return a config; one that is not known has torchtitan's general defaults."""
    general: dict[str, Any] = _data()["defaults"]
    module = module.removeprefix("torchtitan.models.")
    facts = modules().get(module, {}).get(name)
    if facts is None:
        layers = re.search(r"_(\d{1,6})_layers$", name) if module == OWN_MODULE else None
        model = {"num_layers": int(layers[1])} if layers else {}
        return Config(name=name, is_known=False, defaults=general, model=model)
    return Config(
        name=name,
        is_known=True,
        defaults={**general, **facts["defaults"]},
        policy=facts["policy"],
        precision=facts["precision"],
        model=facts["model"],
        max_seq_len=facts["max_seq_len"],
        attention=facts["attention"],
        dispatcher=facts.get("dispatcher", ""),
    )


def config_of(settings: Mapping[str, Value]) -> Config:
    """The config that a file's settings name."""
    names = (settings.get("module"), settings.get("config"))
    module, name = (str(value.value) if value else "" for value in names)
    return config_named(module, name)


def effective(settings: Mapping[str, Value], key: str) -> Setting:
    """What a key is set to, or the config's default."""
    if key in settings:
        return settings[key].value
    config = config_of(settings)
    return config.policy if key == POLICY else config.defaults.get(key)


def degree(settings: Mapping[str, Value], name: str) -> int:
    """A degree of ``parallelism``, by the beginning of its key."""
    return int(effective(settings, f"parallelism.{name}_degree"))

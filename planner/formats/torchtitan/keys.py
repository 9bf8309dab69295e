"""Options of torchtitan with their types, its configs with models and defaults, its pipelines.

``schema.json`` and ``configs.json`` are made from torchtitan's own classes by
``scripts/torchtitan_keys``. Pipelines: torchtitan/distributed/pipeline_parallel.py,
torch/distributed/pipelining/schedules.py.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import count
from typing import Any

from planner.documents.schema import Schema, load_schema, wrongs
from planner.formats.format import Located
from planner.formats.settings import ConfigView, Settings, Whole, word
from planner.schedules.closed_form import chunk_layers
from planner.spec.strategy import V_SHAPED, Strategy

NAME = "torchtitan"
POLICY = "activation_checkpoint"
SELECTORS = ("module", "config")
# The Python module that is written for models torchtitan has no config of.
OWN_MODULE = "planner_config"

DEGREES = {
    "tp": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
}
SHARD = "parallelism.data_parallel_shard_degree"
RESHARD = "parallelism.fsdp_reshard_after_forward"
SEQUENCE_PARALLEL = "parallelism.enable_sequence_parallel"
SCHEDULE = "parallelism.pipeline_parallel_schedule"
SCHEDULE_CSV = "parallelism.pipeline_parallel_schedule_csv"
MICRO_BATCH = "parallelism.pipeline_parallel_microbatch_size"
PARTS = "parallelism.module_fqns_per_model_part"
LAYERS = "parallelism.pipeline_parallel_layers_per_stage"
FIRST_LESS = "parallelism.pipeline_parallel_first_stage_less_layers"
LAST_LESS = "parallelism.pipeline_parallel_last_stage_less_layers"
SPMD_BACKEND = "parallelism.spmd_backend"
LOCAL_BATCH = "training.local_batch_size"
GLOBAL_BATCH = "training.global_batch_size"
OFFLOAD = "training.enable_cpu_offload"
PRECISION = "training.mixed_precision_param"
CUDA_GRAPHS = "training.disable_cuda_graphs"
ASYNC_TP = "compile.enable_async_tensor_parallel"


@dataclass(frozen=True, kw_only=True)
class Config:
    """A config function, or what is assumed of one that is not known."""

    name: str
    is_known: bool
    defaults: Mapping[str, Any]  # Default of every deciding key
    precision: str = "bf16"
    model: Mapping[str, Any] = field(default_factory=dict)
    """Shape by the names of ModelSpec; empty: not known."""
    max_seq_len: int = 0
    attention: str = ""
    dispatcher: str = ""
    rotary: str = ""
    norm_eps: float = 0.0


@cache
def _configs() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("configs.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def options() -> Mapping[str, Schema]:
    """Schemas of all options by key."""
    return dict(load_schema(__package__)["properties"])


def option_of(key: str) -> Schema | None:
    """Return the schema of a key, if it is known; numbered groups count as one."""
    return options().get(re.sub(r"\.\d+\.", ".N.", key))


def policies() -> Mapping[str, list[str]]:
    """Policies of activation checkpointing, with the options of each."""
    return dict(_configs()["policies"])


def modules() -> Mapping[str, Mapping[str, Any]]:
    """Config functions by module."""
    return dict(_configs()["configs"])


@cache
def config_named(module: str, name: str) -> Config:
    """Return a config; one that is not known has torchtitan's general defaults."""
    general = {key: entry["default"] for key, entry in options().items() if "default" in entry}
    facts = modules().get(module.removeprefix("torchtitan.models."), {}).get(name)
    if facts is None:
        layers = re.search(r"_(\d{1,6})_layers$", name) if module == OWN_MODULE else None
        return Config(
            name=name,
            is_known=False,
            defaults=general,
            model={"num_layers": int(layers[1])} if layers else {},
        )
    defaults = general | facts["defaults"]
    return Config(**facts | {"defaults": defaults}, name=name, is_known=True)


def config_of(settings: Settings) -> Config:
    """The config that a file's settings name."""
    return config_named(*(word(settings, key) for key in SELECTORS))


def filled(settings: Settings) -> Settings:
    """Settings with the config's defaults beneath, which have no line."""
    defaults = config_of(settings).defaults.items()
    return {key: Located(value=value, key=f"--{key}") for key, value in defaults} | {**settings}


def value_of(entry: Schema, texts: list[str], *, is_negated: bool) -> Any:  # noqa: ANN401
    """The value of an option's words; ValueError says what is wrong with them."""
    kinds = entry.get("type", ())
    if kinds == "boolean":
        if texts:
            raise ValueError(f"{texts[0]!r} given; a switch takes no value, --no-... turns it off")
        return not is_negated
    if not texts:
        raise ValueError("needs a value; none given")
    if "null" in kinds and texts == ["None"]:
        return None
    value: Any = texts[0]
    if "array" in kinds:
        lists = [text.split(",") for text in texts]
        value = lists if takes_several(entry) else lists[0]
    elif "integer" in kinds or "number" in kinds:
        with suppress(ValueError):
            value = int(value) if "integer" in kinds else float(value)
    for wrong in wrongs(entry, value):
        raise ValueError(f"{texts[0][:80]!r} given; {wrong.allowed}")
    return value


def takes_several(entry: Schema) -> bool:
    """Return True if an option takes all words up to the next one."""
    return "array" in entry.get("type", ()) and "items" in entry["items"]


def words_of(key: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401
    """The words that set an option, as torchtitan's parser takes them."""
    if key == POLICY:
        return (f"activation-checkpoint:{value}",)
    section, _, last = key.rpartition(".")
    if isinstance(value, bool):
        return (f"--{section}.{'' if value else 'no_'}{last}",)
    if not isinstance(value, list | tuple):
        return (f"--{key}", str(value))
    lists = value if takes_several(options()[key]) else [value]
    return (f"--{key}", *map(",".join, lists))


# By the planner's name; interleaved is 1f1b with several chunks per stage.
SCHEDULE_NAMES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zb-interleaved": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
OTHER_SCHEDULES = ("LoopedBFS", "PipelineScheduleSingle", "PipelineScheduleMulti")
# Schedules with one chunk per stage.
SINGLE = ("1f1b", "gpipe")
MAX_PARTS = 100_000


def schedule_named(name: str) -> str:
    """The planner's name of a schedule; ``other``: torch has it, empty: there is none."""
    known = dict.fromkeys(map(str.lower, OTHER_SCHEDULES), "other")
    known |= {theirs.lower(): ours for ours, theirs in SCHEDULE_NAMES.items()}
    return known.get(name.lower(), "")


def parts_of(strategy: Strategy) -> list[list[str]]:
    """Names of the modules of every model part, from embedding to head."""
    numbers = count()
    counts: Sequence[int] = chunk_layers(strategy.layers_per_stage, strategy.vpp)
    if strategy.vpp > 1 and strategy.schedule in V_SHAPED:
        halves = [layers // 2 for layers in strategy.layers_per_stage]
        counts = [*halves, *reversed(halves)]
    parts = [[f"layers.{next(numbers)}" for _ in range(layers)] for layers in counts]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def layers_in(part: Sequence[str]) -> list[int]:
    """Numbers of the layers that a model part names."""
    matches = (re.fullmatch(r"layers\.(\d{1,6})", name, re.ASCII) for name in part)
    return [int(match[1]) for match in matches if match]


def num_parts(
    num_layers: int,
    pp: int,
    schedule: str,
    per_part: int | None,
    first: int,
    last: int,
) -> int:
    """Return the number of model parts torchtitan makes where they are not listed."""
    if per_part:
        return -(-(num_layers + first + last) // per_part)
    return pp if schedule in SINGLE else 2 * pp


def default_counts(
    num_layers: int,
    parts: int,
    first: int,
    last: int,
) -> list[int] | None:
    """Layers of every part where they are not listed; None where torchtitan refuses them.

    The embedding weighs as much as ``first`` layers, the head as ``last``.
    """
    if not 1 <= parts <= MAX_PARTS:
        return None
    base, extra = divmod(num_layers + first + last, parts)
    if parts == 1:
        return [num_layers]
    counts = [base + (part < extra) for part in range(parts)]
    counts[0] -= first
    counts[-1] -= last
    return None if base < 1 or max(first, last) > base else counts


@dataclass(frozen=True, kw_only=True)
class TorchtitanView(ConfigView):
    """A file of this release, with the config's defaults, which have no line."""

    tp, pp, cp, ep, dp_replicate = (Whole(key, 0) for key in DEGREES.values())
    schedules = ", ".join((*SCHEDULE_NAMES.values(), *OTHER_SCHEDULES))

    def spelled(self, key: str) -> str:
        """An option as the file spells it."""
        return super().spelled(key) if key in self.settings else f"--{key}"

    def setting(self, name: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """What the config has under a name, else a key's value."""
        facts = vars(self.config)
        return facts[name] if name in facts else super().setting(name)

    def decided(self, name: str) -> int:
        """A size of the model as the world or the config has it; 0: not known."""
        own, size = self.config.model, name.removeprefix("model.")
        found = self.world.decisions.get(name) or own.get(size)
        return int(found or own.get(f"moe.{size}") or 0)

    @property
    def config(self) -> Config:
        """The config that is named."""
        return config_of(self.settings)

    @property
    def others(self) -> int:
        """All degrees but the shards, which make up the processes with them."""
        return self.dp_replicate * self.cp * self.tp * self.pp

    @property
    def shards(self) -> int:
        """Shards of data parallelism: what is given, or what the other degrees leave."""
        given = int(self[SHARD])
        return given if given != -1 else self.num_gpus // max(1, self.others)

    @property
    def compiles_blocks(self) -> bool:
        """True if torch.compile compiles the blocks."""
        return bool(self["compile.enable"]) and "model" in self["compile.components"]

    @property
    def schedule(self) -> str:
        """The planner's name of the schedule; empty: torch has none of that name."""
        return schedule_named(str(self[SCHEDULE]))

    @property
    def parts(self) -> int:
        """Model parts that are listed, or that torchtitan makes; 0: not known."""
        listed, per_part = self[PARTS], self[LAYERS]
        layers = self.decided("model.num_layers")
        if listed is not None:
            return len(listed)
        if per_part is not None and (per_part < 1 or not layers):
            return 0
        ends = self[FIRST_LESS], self[LAST_LESS]
        return num_parts(layers, self.pp, self.schedule, per_part, *ends)

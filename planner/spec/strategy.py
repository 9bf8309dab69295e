"""Strategy: one layout, and what is known of each of its fields other than its value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from planner.limits import MAX_GPUS

# What layouts may differ in, in the order that pairs' kinds are named.
KINDS_OF_DIFFERENCE = (
    "degrees",
    "virtual stages",
    "micro-batch",
    "recomputation",
    "sequence parallel",
    "ZeRO stage",
    "offload",
    "expert layout",
    "schedule",
    "placement",
    "layers per stage",
)


@dataclass(frozen=True)
class FieldSpec:
    """A field of strategies: what it is, the values it can take, and what people read of it."""

    about: str  # description in one line, with a unit, as in the help of its option
    kind: str = ""  # of a difference, one of KINDS_OF_DIFFERENCE; empty: it follows from others
    title: str = ""  # display name in place of the field's name
    word: str = ""  # word for what a degree splits, in sentences and in the titles of wide tables
    least: int = 1
    most: int = MAX_GPUS
    words: tuple[str, ...] = ()  # the values by their codes; empty where they are numbers
    is_flag: bool = False
    usual: int | None = None  # the value that changes nothing, where not the least, first or false
    follows: str = ""  # what a layout without it gets, in a few words; empty: that value

    @property
    def value_type(self) -> type:
        """Type of its values: str for words, bool for flags, else int."""
        return str if self.words else bool if self.is_flag else int

    @cached_property
    def neutral(self) -> int:
        """The code of the value that changes nothing."""
        if self.usual is not None:
            return self.usual
        return 0 if self.words or self.is_flag else self.least

    def code(self, value: int | str) -> int:
        """The number that stands for a value in columns."""
        return self.words.index(value) if isinstance(value, str) else int(value)

    def value(self, code: int) -> int | str:
        """The value that a code stands for: a word, a flag or the number itself."""
        if self.words:
            return self.words[code]
        return bool(code) if self.is_flag else code


if TYPE_CHECKING:
    from planner.units import Array, Rows

OFFLOAD_CODES = (
    "none",
    "optimizer:host",
    "optimizer+parameters:host",
    "optimizer:nvme",
    "optimizer+parameters:nvme",
)


@dataclass(frozen=True, kw_only=True)
class LayerPolicy:
    """Alternative to keeping a layer's saved activations."""

    counts: str  # the field that counts the layers of every stage under it
    is_recomputed: bool = False  # ``recompute`` names it; else it is a choice of its own:
    title: str = ""
    words: str = ""  # template for a number of layers
    saving: str = ""  # phrase for putting every layer under it
    short: str  # name in narrow tables
    by_chunk: bool = False  # said of the first layers of every chunk, the others under nothing


# The cheap, large activations of a layer recomputed, all of them recomputed, or all sent to the
# host until its backward.
LAYER_POLICIES: Mapping[str, LayerPolicy] = {
    "selective": LayerPolicy(counts="selective_layers_per_stage", is_recomputed=True, short="sel"),
    "full": LayerPolicy(
        counts="recompute_layers_per_stage",
        is_recomputed=True,
        short="full",
        by_chunk=True,
    ),
    "offloaded": LayerPolicy(
        counts="offloaded_layers_per_stage",
        title="activations offloaded",
        words="activations of {} layers offloaded",
        saving="offload all activations",
        short="act",
        by_chunk=True,
    ),
}
POLICIES = tuple(LAYER_POLICIES)
# What a layer is under.
LAYER_POLICY_NAMES = ("none", *POLICIES)
# Fields that count the layers of every stage under each of POLICIES.
POLICY_COUNT_FIELDS = tuple(policy.counts for policy in LAYER_POLICIES.values())
# In the order in which a stage's layers are under them.
IN_STAGE = ("full", "selective", "offloaded")
RECOMPUTED = tuple(name for name, policy in LAYER_POLICIES.items() if policy.is_recomputed)
OFFLOAD_POLICIES = {
    name: policy for name, policy in LAYER_POLICIES.items() if not policy.is_recomputed
}
# What ``recompute`` may say; it does not tell of OFFLOAD_POLICIES.
RECOMPUTE_WORDS = ("none", *RECOMPUTED)
# Orders in which the axes are placed on the cluster, innermost first, by what files call them.
PLACEMENTS: Mapping[str, tuple[str, ...]] = {
    "tp-cp-ep-dp-pp": ("tp", "cp", "ep", "dp", "pp"),
    "tp-cp-ep-pp-dp": ("tp", "cp", "ep", "pp", "dp"),
}
PLACEMENT_NAMES = tuple(PLACEMENTS)

# Pipeline schedules; 1f1b with several chunks per stage is interleaved 1F1B.
SCHEDULES = ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-interleaved", "zb-v", "dualpipe-v")
# Stage i holds chunks i and 2p - 1 - i: the first one the embedding and the head.
V_SHAPED = ("zb-v", "dualpipe-v")


# Columns in the order a search decides them. Computation and communication inside a model replica
# follow from its shape and micro-batch.
SHAPE = ("tp", "cp", "pp", "schedule", "vpp", "dp", "ep", "etp")
MICRO_BATCH = ("micro_batch", "sequence_parallel")
# How states are sharded, offloaded and placed.
STATES = ("zero_stage", "dp_replicate", "offload", "offload_percent", "placement")
# Columns that a search decides; all but num_micro_batches, which follows.
SEARCHED_FIELDS = (*SHAPE, *MICRO_BATCH, *STATES)

Number = TypeVar("Number")
Flag = TypeVar("Flag")
Word = TypeVar("Word")


@dataclass(frozen=True, kw_only=True)
class LayoutFields(Generic[Number, Flag, Word]):
    """Decisions of a search on a layout before layers are put on stages, as values or columns."""

    dp: Number
    tp: Number
    pp: Number
    vpp: Number
    schedule: Word = "1f1b"  # type: ignore[assignment]
    cp: Number
    ep: Number
    # Ranks that split every routed expert; tp where experts are split as other layers are, and in
    # dense models. Expert mesh: etp x ep x edp ranks of a stage.
    etp: Number
    zero_stage: Number
    micro_batch: Number
    num_micro_batches: Number
    sequence_parallel: Flag
    # Number of whole replicas along dp; states are sharded over dp / dp_replicate.
    dp_replicate: Number = 1  # type: ignore[assignment]
    offload: Word
    offload_percent: Number = 100  # type: ignore[assignment]
    placement: Word = PLACEMENT_NAMES[0]  # type: ignore[assignment]


# What is known of every column of strategies, in their order.
STRATEGY_FIELDS: Mapping[str, FieldSpec] = {
    "dp": FieldSpec(
        "data-parallel degree, replicas times shards", "degrees", word="data", follows="the rest"
    ),
    "tp": FieldSpec("tensor-parallel degree", "degrees", word="tensor"),
    "pp": FieldSpec("pipeline stages", "degrees", word="pipeline"),
    "vpp": FieldSpec(
        "model chunks per pipeline stage (interleaving)",
        "virtual stages",
        word="chunks",
        follows="1, of V-shaped schedules 2",
    ),
    "schedule": FieldSpec("pipeline schedule (docs/search.md)", "schedule", words=SCHEDULES),
    "cp": FieldSpec("context-parallel degree", "degrees", word="context"),
    "ep": FieldSpec("expert-parallel degree", "expert layout", word="expert"),
    "etp": FieldSpec(
        "ranks that split an expert",
        "expert layout",
        word="expert tensor",
        follows="the framework's: tp",
    ),
    "zero_stage": FieldSpec(
        "ZeRO stage, 0 to 3 (FSDP: 3)",
        "ZeRO stage",
        title="ZeRO",
        least=0,
        most=3,
        follows="highest offered",
    ),
    "micro_batch": FieldSpec("sequences per micro-batch", "micro-batch", title="micro-batch"),
    "num_micro_batches": FieldSpec("micro-batches per iteration"),
    "sequence_parallel": FieldSpec(
        "norms and residuals split over tp",
        "sequence parallel",
        title="sequence parallel",
        is_flag=True,
        follows="with tp, if offered",
    ),
    "dp_replicate": FieldSpec("replicas of the sharding group", "ZeRO stage", title="shard groups"),
    "offload": FieldSpec("states that are offloaded, and where to", "offload", words=OFFLOAD_CODES),
    "offload_percent": FieldSpec(
        "percent of the optimizer's states that are offloaded", "offload", most=100, usual=100
    ),
    "placement": FieldSpec(
        "order of the axes on the cluster, innermost first",
        "placement",
        title="placed",
        words=PLACEMENT_NAMES,
    ),
}
# What is known of every field of a strategy.
FIELDS: Mapping[str, FieldSpec] = {
    **STRATEGY_FIELDS,
    "layers_per_stage": FieldSpec("layers of every pipeline stage", "layers per stage"),
    "selective_layers_per_stage": FieldSpec("of those, layers recomputed selectively"),
    "recompute_layers_per_stage": FieldSpec("of those, layers recomputed in full"),
    "offloaded_layers_per_stage": FieldSpec(
        "of those, layers whose activations go to the host", "offload"
    ),
    "recompute_modules": FieldSpec("what selective recomputation repeats", "recomputation"),
}
# The layout of one GPU and one micro-batch, nothing sharded and nothing offloaded.
FIELD_DEFAULTS: Mapping[str, Any] = {
    name: each.value(each.neutral) for name, each in STRATEGY_FIELDS.items()
}


# Degrees whose product is the number of GPUs; ep and etp lie over the same ranks.
GPU_DEGREES = tuple(name for name, each in STRATEGY_FIELDS.items() if each.kind == "degrees")
# Those that split one replica of the model.
MODEL_PARALLEL_DEGREES = tuple(name for name in GPU_DEGREES if name != "dp")
# Those whose product is the ranks of a pipeline stage, over which the expert mesh lies.
STAGE_DEGREES = tuple(name for name in SHAPE if name in GPU_DEGREES and name != "pp")
# Those that cut the sequence: their ranks hold the same weights, and states may be sharded over
# them as over dp.
SEQUENCE_DEGREES = ("cp",)
# Numbers that a layout is known by.
SHOWN_DEGREES = tuple(
    name
    for name, each in STRATEGY_FIELDS.items()
    if each.kind in ("degrees", "virtual stages", "expert layout")
)


def gpus_of_replica(degrees: Mapping[str, Any]) -> Any:  # noqa: ANN401 - numbers or columns
    """GPUs of one replica: the product of MODEL_PARALLEL_DEGREES."""
    return prod(degrees[name] for name in MODEL_PARALLEL_DEGREES)


def gpus_of(degrees: Mapping[str, Any]) -> Any:  # noqa: ANN401 - numbers or columns
    """GPUs of a layout: the product of GPU_DEGREES."""
    return prod(degrees[name] for name in GPU_DEGREES)


def ranks_of_stage(degrees: Mapping[str, Any]) -> Any:  # noqa: ANN401 - numbers or columns
    """Ranks of one pipeline stage: the product of STAGE_DEGREES."""
    return prod(degrees[name] for name in STAGE_DEGREES)


def ranks_of_sequence(degrees: Mapping[str, Any]) -> Any:  # noqa: ANN401 - numbers or columns
    """Ranks that share a sequence: the product of SEQUENCE_DEGREES."""
    return prod(degrees[name] for name in SEQUENCE_DEGREES)


class StrategyColumns(LayoutFields["Array", "Array", "Array"]):
    """Columns of strategies: every field is an integer array of one common length.

    Words are their codes. The stage problem decides layers per stage and recomputation per layer.
    """

    def __init__(self, **columns: "Array") -> None:
        if columns.keys() != STRATEGY_FIELDS.keys():
            wrong = ", ".join(sorted(columns.keys() ^ STRATEGY_FIELDS.keys()))
            raise TypeError(f"every column is needed and no other; missing or unknown: {wrong}")
        self.__dict__.update(columns)

    @property
    def num_gpus(self) -> "Array":
        """GPUs of each layout (the expert mesh takes the same ranks)."""
        gpus: Array = gpus_of(vars(self))
        return gpus

    @property
    def expert_dp(self) -> "Array":
        """Ranks of a stage that hold the same part of the same experts."""
        replicas: Array = ranks_of_stage(vars(self)) // (self.etp * self.ep)
        return replicas

    @property
    def head_stage(self) -> "Array":
        """The stage with the head and the loss: the last one, the first of V-shaped schedules."""
        stage: Array = self.pp - 1
        for name in V_SHAPED if self.schedule.any() else ():
            stage = stage * (self.schedule != SCHEDULES.index(name))
        return stage

    def __len__(self) -> int:
        return len(self.dp)

    def take(self, index: "Rows") -> "StrategyColumns":
        """Return the rows at ``index`` (integer positions or a mask)."""
        return StrategyColumns(**{name: getattr(self, name)[index] for name in STRATEGY_FIELDS})

    def values(self, row: int) -> dict[str, Any]:
        """The fields of one row as a strategy holds them: numbers, flags, words."""
        return {
            name: each.value(int(getattr(self, name)[row]))
            for name, each in STRATEGY_FIELDS.items()
        }

    @staticmethod
    def concatenate(parts: list["StrategyColumns"]) -> "StrategyColumns":
        """Stack columns of several spaces."""
        import numpy as np

        return StrategyColumns(
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in STRATEGY_FIELDS
            }
        )


@dataclass(frozen=True, kw_only=True)
class Strategy(LayoutFields[int, bool, str]):
    """One complete layout: degrees, batch, ZeRO, and per stage the layers and their policies."""

    layers_per_stage: tuple[int, ...]
    selective_layers_per_stage: tuple[int, ...]
    recompute_layers_per_stage: tuple[int, ...]
    # The strings below fields are their descriptions in JSON Schemas.
    offloaded_layers_per_stage: tuple[int, ...] = ()
    """Empty: none."""
    recompute_modules: tuple[str, ...] | None = None
    """None: what the framework's profile selects."""

    @property
    def policy_counts(self) -> tuple[tuple[int, ...], ...]:
        """Layers of each stage under each of POLICIES."""
        none = (0,) * len(self.layers_per_stage)
        return tuple(getattr(self, name) or none for name in POLICY_COUNT_FIELDS)

    @property
    def layers_under(self) -> dict[str, int]:
        """Number of layers under each of POLICIES."""
        return dict(zip(POLICIES, map(sum, self.policy_counts), strict=True))

    @property
    def head_stage(self) -> int:
        """The stage with the head and the loss."""
        return 0 if self.schedule in V_SHAPED else self.pp - 1

    @property
    def num_gpus(self) -> int:
        """GPUs of the layout."""
        return int(gpus_of(vars(self)))

    @property
    def degrees(self) -> dict[str, int]:
        """SHOWN_DEGREES above one, and etp where it is not tp."""
        usual = {"etp": self.tp}
        found = {name: getattr(self, name) for name in SHOWN_DEGREES}
        return {name: value for name, value in found.items() if value != usual.get(name, 1)}

    @property
    def recompute(self) -> str:
        """``none``, ``selective``, ``full``, or the share of layers under a mixed policy."""
        num_layers, parts = sum(self.layers_per_stage), list[str]()
        for name in (one for one in IN_STAGE if one in RECOMPUTED):
            count = self.layers_under[name]
            if count == num_layers:
                parts.append(name)
            elif count:
                parts.append(f"{name} {count}/{num_layers}")
        return " + ".join(parts) or "none"

    @property
    def selects(self) -> str:
        """Modules that selective layers recompute, where they are named."""
        return ", ".join(self.recompute_modules or ())

    def columns(self) -> StrategyColumns:
        """Return this layout as columns of length one."""
        import numpy as np

        return StrategyColumns(
            **{
                name: np.array([each.code(getattr(self, name))])
                for name, each in STRATEGY_FIELDS.items()
            }
        )


def with_policy_on_all_layers(strategy: "Strategy", policy: str) -> "Strategy":
    """The strategy with every layer under one policy."""
    layers = strategy.layers_per_stage
    return replace(strategy, **split_values(layers, {policy: layers}))


def split_values(
    layers: "Sequence[int] | Array", under: "Mapping[str, Sequence[int] | Array]"
) -> dict[str, Any]:
    """Fields of a strategy: layers per stage, and of those how many under each of POLICIES."""
    none = (0,) * len(layers)
    fields = {"layers_per_stage": tuple(int(n) for n in layers)}
    for name, policy in LAYER_POLICIES.items():
        counts = tuple(int(n) for n in under.get(name, none))
        is_left_out = name in OFFLOAD_POLICIES and not any(counts)
        fields[policy.counts] = () if is_left_out else counts
    return fields

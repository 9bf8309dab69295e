"""What the parts of an Accelerate file have in common: how one carries a strategy."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from planner.cost.context import Context
from planner.formats.accelerate.keys import as_flag, as_whole
from planner.formats.format import Value
from planner.spec.strategy import NEUTRAL, Strategy

Settings = Mapping[str, Value]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A key of the file, what it is set to, and why."""

    key: str
    """In full, with its section: ``fsdp_config.fsdp_version``."""
    value: object
    why: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """A way Accelerate runs a layout, by its ``distributed_type``."""

    title: str
    distributed_type: str
    owned: tuple[str, ...]
    """Keys that carry decisions of a strategy."""
    refusals: Callable[[Context, Strategy], Iterator[str]]
    """Why it cannot carry a strategy; nothing where it can."""
    lines: Callable[[Context, Strategy], Iterator[Line]]
    decisions: Callable[[Settings], dict[str, Value]]
    environment: Callable[[Context, Strategy], dict[str, str]]
    variables: Mapping[str, str] = field(default_factory=dict)


def beyond(strategy: Strategy, can: Mapping[str, str]) -> Iterator[str]:
    """Say which fields differ from their neutral value; ``can`` holds reasons by field."""
    for name, reason in can.items():
        given = getattr(strategy, name)
        if given != NEUTRAL[name]:
            yield f"{name} {given}: {reason}"


def unlike_layers(strategy: Strategy) -> Iterator[str]:
    """Say what cannot hold where every layer is treated alike."""
    selective, full, offloaded = strategy.policy_counts
    if any(selective):
        yield f"selective_layers_per_stage {words(selective)}: whole blocks are recomputed or none"
    if 0 < sum(full) < sum(strategy.layers_per_stage):
        yield f"recompute_layers_per_stage {words(full)}: all layers are recomputed or none"
    if any(offloaded):
        yield f"offloaded_layers_per_stage {words(offloaded)}: activations stay on the accelerator"


def wrong_precision(context: Context, allowed: tuple[str, ...]) -> Iterator[str]:
    """Say where the precision of a job is none of those allowed."""
    if context.job.precision not in allowed:
        yield f"precision {context.job.precision}: allowed are {', '.join(allowed)}"


def recomputes_all(strategy: Strategy) -> bool:
    """Every layer is recomputed in full."""
    return strategy.recompute == "full"


def words(counts: tuple[int, ...]) -> str:
    """Counts per stage, for a message."""
    return ", ".join(map(str, counts))


def whole(settings: Settings, key: str, default: int) -> int:
    """A whole number of the file, its default where it is missing or none."""
    found = as_whole(settings[key].value) if key in settings else None
    return default if found is None else found


def num_started(settings: Settings) -> int:
    """Processes that the launcher starts; -1 where the file leaves them open."""
    is_single = word(settings, "distributed_type", "").upper() in ("NO", "FALSE")
    return 1 if is_single else whole(settings, "num_processes", -1)


def flag(settings: Settings, key: str, *, default: bool) -> bool:
    """A flag of the file, its default where it is missing or neither true nor false."""
    found = as_flag(settings[key].value) if key in settings else None
    return default if found is None else found


def word(settings: Settings, key: str, default: str) -> str:
    """A word of the file, its default where it is missing or null."""
    value = settings[key].value if key in settings else None
    return default if value is None else str(value)


def decided(settings: Settings, key: str, value: object) -> Value:
    """A decision with the place of the key it comes from, line 0 where that is missing."""
    found = settings.get(key)
    return Value(value=value, key=found.key if found else key, line=found.line if found else 0)

"""What the parts of an Accelerate file have in common: how one carries a strategy."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from planner.cost.context import Context
from planner.formats.format import Value
from planner.formats.settings import Settings, whole, word
from planner.spec.strategy import Strategy


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


def recomputes_all(strategy: Strategy) -> bool:
    """Every layer is recomputed in full."""
    return strategy.recompute == "full"


def num_started(settings: Settings) -> int:
    """Processes that the launcher starts; -1 where the file leaves them open."""
    is_single = word(settings, "distributed_type", "").upper() in ("NO", "FALSE")
    return 1 if is_single else whole(settings, "num_processes", -1)

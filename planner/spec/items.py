"""Items of time and memory, declared at the functions that compute them.

Formula, units, source and exclusions are a function's own docstring; ``planner explain`` and the
pages of formulas derive from both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item of an estimate, or a family of items by prefix."""

    address: str  # ``time.`` or ``memory.`` and the name in the ledger
    title: str  # name of the item in a sentence
    functions: tuple[Callable[..., Any], ...]  # the main formula first
    inputs: tuple[str, ...]  # dotted paths such as strategy.tp or traits.states.weight_bytes
    text: str  # description of the item, where no single function states it


_DECLARED: dict[str, Item] = {}
SCALE_UP = ("node.scale_up.bytes_per_s", "node.scale_up.efficiency_fraction")
FABRIC = ("cluster.fabric.bytes_per_s", "cluster.fabric.efficiency_fraction")
HBM = ("accelerator.hbm_bytes_per_s", "accelerator.memory_bound_fraction")
SHAPE = ("strategy.micro_batch", "job.seq_len", "model.hidden_size", "strategy.tp")


def item(
    address: str,
    *,
    title: str = "",
    inputs: tuple[str, ...] = (),
    also: tuple[Callable[..., Any], ...] = (),
    text: str = "",
) -> Callable[[Function], Function]:
    """Declare what a function computes, with ``also`` others; the function stays as it is.

    A private function is not shown by name: with no others its docstring is the text.
    """

    def declare(function: Function) -> Function:
        own = () if function.__name__.startswith("_") else (function,)
        functions: tuple[Callable[..., Any], ...] = (*own, *also)
        words = text if text or functions else " ".join((function.__doc__ or "").split())
        _DECLARED[address] = Item(
            address=address, title=title, functions=functions, inputs=inputs, text=words
        )
        return function

    return declare


def declared_items() -> list[Item]:
    """Every item of the modules loaded, by address; ``planner.cost.estimate`` loads all."""
    return [_DECLARED[address] for address in sorted(_DECLARED)]


# Factors on the ends of a range for an accelerator without published runs.
#
# Its sustained rates are derived from one measured product or assumed. Assumed: training on MI250X
# is published at 0.32-0.36 of peak (Frontier), two thirds of what the best product suggests.
UNSEEN_LOW, UNSEEN_HIGH = 0.9, 1.5
# Kind of runs that are alike, and whether makers of their software tuned them; empty: all of them.
RunClass = tuple[str, str]
TUNED, USUAL = "tuned", "usual"
REACHES: Mapping[str, str] = {TUNED: " as makers tune them", USUAL: " as others run them", "": ""}
# In words; the first that a run is.
KINDS: Mapping[str, str] = {
    "frozen": "adapters beside frozen weights",
    "offload": "states or parameters away from the device",
    "mixture": "mixtures of experts",
    "dense": "dense models",
    "": "all kinds",
}


@dataclass(frozen=True, kw_only=True)
class TimeRange:
    """Range of 80 % of the published runs of a regime: measured over predicted time."""

    low: float = 1.0
    high: float = 1.0
    regime: str = "no published run"  # the runs it is taken from, in words
    accelerators: tuple[str, ...] = ()  # accelerators of the runs

    def on(self, accelerator: str) -> "TimeRange":
        """The range on an accelerator: wider where nobody published a run on it."""
        if accelerator in self.accelerators:
            return self
        return TimeRange(
            low=self.low * UNSEEN_LOW,
            high=self.high * UNSEEN_HIGH,
            regime=f"widened: no published run on {accelerator} among {self.regime}",
        )


def wider_regimes(key: RunClass) -> tuple[RunClass, RunClass, RunClass]:
    """A class of runs and those that hold it, the narrowest first."""
    _, reach = key
    return key, ("", reach), ("", "")


def narrowest(ranges: Mapping[RunClass, TimeRange], key: RunClass) -> TimeRange:
    """The range of the narrowest class with one that a class of runs is in."""
    return next((ranges[each] for each in wider_regimes(key) if each in ranges), TimeRange())


def class_words(key: RunClass) -> str:
    """A class of runs in words."""
    kind, reach = key
    return KINDS[kind] + REACHES[reach]

"""Items of time and memory, declared at the functions that compute them.

Formula, units, source and exclusions are a function's own docstring; ``planner explain`` and the
pages of formulas derive from both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item of an estimate, or a family of items by prefix."""

    address: str
    """``time.`` or ``memory.`` and the name in the ledger."""
    title: str
    """In a sentence."""
    functions: tuple[Callable[..., Any], ...]
    """The main formula first."""
    inputs: tuple[str, ...]
    """Dotted paths such as strategy.tp or traits.states.weight_bytes."""
    text: str
    """What it is, where no single function says so."""


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

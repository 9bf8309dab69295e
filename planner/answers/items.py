"""Items of an estimate in words: what declares one, its formulas, the values of its inputs."""

import inspect
import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from planner.cost.context import Context
from planner.cost.estimate import ITEMS, Estimate
from planner.cost.pipeline import FORMULAS
from planner.spec.items import Item
from planner.spec.strategy import Strategy


def item_of(name: str) -> Item | None:
    """The item with the longest prefix of ``name``."""
    matching = [item for item in ITEMS if name.startswith(item.address)]
    return max(matching, key=lambda item: len(item.address), default=None)


def functions_for(item: Item, strategy: Strategy) -> list[Callable[..., Any]]:
    """The functions of an item that price this strategy: those of other schedules left out."""
    own = FORMULAS[strategy.schedule]
    of_schedules = {function for formulas in FORMULAS.values() for function in formulas}
    return [
        function for function in item.functions if function in own or function not in of_schedules
    ]


def formula_of(function: Callable[..., Any]) -> str:
    """A function's docstring, one line per paragraph."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    text = "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r":\w+:`([\w.]+)`", r"\1", text).replace("``", "")


def summary_of(item: Item) -> str:
    """First sentence of what an item is or of its main formula."""
    if item.text:
        return item.text.partition(". ")[0]
    return formula_of(item.functions[0]).split("\n")[0]


def item_title(name: str) -> str:
    """A time item in a sentence."""
    item = item_of(f"time.{name}")
    return item.title if item and item.title else name


def input_value(path: str, context: Context, strategy: Strategy) -> object:
    """Look a dotted input path up."""
    roots: dict[str, Any] = {
        "strategy": strategy,
        "model": context.model,
        "job": context.job,
        "cluster": context.cluster,
        "node": context.cluster.node,
        "accelerator": context.cluster.accelerator,
        "traits": context.traits,
    }
    root, _, names = path.partition(".")
    return attrgetter(names)(roots[root]) if names else roots[root]


def trait_source(path: str, figures: dict[str, dict[str, Any]]) -> str:
    """Return the source of a trait's value; empty for other inputs."""
    parts = path.split(".")
    if parts[0] != "traits":
        return ""
    if parts[1] == "training":
        return "given"
    if parts[1] == "optimizer":
        return "planner/frameworks/optimizers.yaml"
    return str(figures[parts[1]][parts[2]]["source"])


def item_values(estimate: Estimate) -> dict[str, float]:
    """Every leaf by full dotted name: bytes under memory, exposed seconds under time."""
    memory = {f"memory.{name}": value for name, value in estimate.memory.items.items()}
    time = {f"time.{name}": item.exposed_s for name, item in estimate.time.items()}
    return memory | time


def full_name(name: str, items: Mapping[str, float]) -> str | None:
    """Complete ``bubble`` or ``pipeline.bubble`` to ``time.pipeline.bubble``; None if unknown.

    Items with a formula are known even where a plan spends nothing on them.
    """
    known = dict.fromkeys((*items, *(item.address for item in ITEMS)))
    for candidate in (name, f"memory.{name}", f"time.{name}"):
        if any(leaf == candidate or leaf.startswith(f"{candidate}.") for leaf in known):
            return candidate
    endings = [leaf for leaf in known if leaf.endswith(f".{name}")]
    return endings[0] if len(endings) == 1 else None

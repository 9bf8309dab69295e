"""Losses that a file asks for by name, as traits of a framework."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.formats.format import Decided
from planner.spec.traits import FrameworkTraits, Setting

LIGER: tuple[Setting, ...] = (
    ("kernels.loss", "liger"),
    ("states.collected_head_gradient_bytes", 2.0),
)
"""Head and cross-entropy in chunks of tokens, the head's gradient made in forward."""


def asks_for_liger(traits: FrameworkTraits) -> bool:
    """Whether a plan counts on Liger's fused linear cross-entropy."""
    return traits.kernels.loss == "liger"


def liger_lines(context: Context) -> Iterator[Decided]:
    """What a training script does for it where its file has no key, for the README."""
    if asks_for_liger(context.traits):
        yield Decided(
            key="training script: AutoLigerKernelForCausalLM.from_pretrained(...)",
            value="in place of AutoModelForCausalLM",
            why="head and loss in one, as the plan assumes",
        )

"""All ways Accelerate runs a layout, and which of them carries a strategy."""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.accelerate import deepspeed, megatron
from planner.formats.accelerate.deepspeed import DEEPSPEED
from planner.formats.accelerate.fsdp import FSDP
from planner.formats.accelerate.megatron import MEGATRON
from planner.formats.accelerate.replicated import REPLICATED
from planner.formats.accelerate.section import Section
from planner.spec.strategy import Strategy
from planner.spec.traits import TraitValue

SECTIONS = (FSDP, REPLICATED, DEEPSPEED, MEGATRON)
"""In the order they are tried: FSDP2 is what plans for this framework assume."""
BY_TYPE = {section.distributed_type: section for section in SECTIONS}
OF_FRAMEWORK = {"deepspeed": "DEEPSPEED", "megatron": "MEGATRON_LM"}
"""Type of the section that is the framework a plan was made for."""


SUPPORT: Mapping[str, Mapping[str, TraitValue]] = {
    "deepspeed": deepspeed.SUPPORT,
    "megatron": megatron.SUPPORT,
}
"""By framework whose section carries its plans what that section can say of it."""


def problems(context: Context) -> Iterator[str]:
    """What the section of the framework cannot say whatever the layout."""
    own = {"deepspeed": deepspeed.problems, "megatron": megatron.problems}.get(context.traits.name)
    yield from own(context) if own else ()


def uneven_nodes(context: Context, strategy: Strategy) -> str:
    """Why the processes cannot be spread over the nodes; empty where they can."""
    per_node = context.cluster.node.num_accelerators
    if strategy.num_gpus <= per_node or strategy.num_gpus % per_node == 0:
        return ""
    return f"num_gpus {strategy.num_gpus}: every node starts as many, here {per_node}"


def carrier(
    context: Context,
    strategy: Strategy,
    own: Section | None = None,
    among: tuple[Section, ...] = SECTIONS,
) -> Section:
    """The first section that expresses a strategy: ``own``, the plan's framework's, then all.

    ExpressError with the reasons of every section where none does.
    """
    of_plan = OF_FRAMEWORK.get(context.traits.name)
    named = next((each for each in among if each.distributed_type == of_plan), None)
    order = dict.fromkeys(each for each in (own, named, *among) if each)
    uneven = uneven_nodes(context, strategy)
    reasons = [uneven] if uneven else []
    for section in order:
        refusals = list(section.refusals(context, strategy))
        if not refusals and not uneven:
            return section
        if refusals:
            reasons.append(f"{section.title}: {'; '.join(refusals)}")
    lines = "\n".join(f"  {reason}" for reason in reasons)
    raise ExpressError(f"Accelerate cannot express the plan:\n{lines}")

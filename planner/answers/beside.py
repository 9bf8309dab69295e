"""What is told beside the plans of an answer: variants, gains and a vendor's recipe."""

from dataclasses import dataclass

from planner.answers.variants import Variant, mixed_policy_gain, resident_variant, variants
from planner.plans.plan import Answer
from planner.plans.recipe import Placed, placed


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What further searches and estimates say of an answer's plans."""

    variants: tuple[tuple[Variant, ...], ...] = ()
    """Of the first plans, each fastest first."""
    mixed: Variant | None = None
    """Of the first plan with layers under different policies, where that gains anything."""
    resident: Variant | None = None
    """A switch or optimizer under which a plan without offload is no slower than the first."""
    recipe: Placed | None = None
    """The nearest one, priced for the question."""


def beside_screen(answer: Answer, *, verbose: bool = False, show_all: bool = False) -> Beside:
    """What the screen tells: ``verbose`` of the first plan, ``show_all`` of every one."""
    if not answer.plans:
        return Beside()
    by_time = answer.aim.objective == "iteration_s"
    first = answer.plans[0]
    told = answer.plans if show_all else answer.plans[: verbose and by_time]
    limit_s, narrowing = answer.beside_s, answer.narrowing
    return Beside(
        variants=tuple(variants(plan, narrowing, limit_s=limit_s) for plan in told),
        mixed=mixed_policy_gain(first, narrowing, limit_s=limit_s) if verbose and by_time else None,
        resident=resident_variant(answer),
        recipe=placed(answer),
    )


def beside_document(answer: Answer) -> Beside:
    """What JSON tells: the variants of every plan, and the recipe."""
    found = tuple(
        variants(plan, answer.narrowing, limit_s=answer.beside_s) for plan in answer.plans
    )
    return Beside(variants=found, recipe=placed(answer))

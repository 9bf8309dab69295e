"""Whether a framework offers the values that a user fixes at all."""

from planner.cost.context import Context
from planner.search.space.narrow import Narrowing
from planner.search.space.rule import Rule
from planner.search.space.rules import RULES
from planner.search.space.space import Columns, crossed, dimension_values, narrowed
from planner.search.space.vocabulary import DIMENSIONS, RECOMPUTE


def not_offered(context: Context, narrowing: Narrowing) -> tuple[str, str] | None:
    """The first option whose fixed values a framework does not offer, and why; None if none is.

    A rule about what is offered is asked for all values that its dimensions can take.
    """
    context = narrowed(context, narrowing)
    policies = context.traits.support.policies
    if not set(narrowing.kinds) & set(policies):
        text = next((text for text in narrowing.texts if RECOMPUTE in text), f"--fix {RECOMPUTE}")
        given = f"{context.traits.name} does not offer {' or '.join(narrowing.kinds)} for layers"
        return text, f"{given}: it offers {', '.join(policies)}"
    values = dimension_values(context, narrowing)
    for rule in RULES:
        fixed = [name for name in rule.needs if name in narrowing.values]
        if rule.offered_by is None or not fixed:
            continue
        columns: Columns = {}
        for name in rule.needs:
            columns = crossed(columns, name, values[name])
        if not rule.is_legal(context, columns).any():
            name = fixed[-1]
            return _option(narrowing, name), _why(context, rule, name, narrowing)
    return None


def _option(narrowing: Narrowing, name: str) -> str:
    dimension = DIMENSIONS[name]
    values = "|".join(dimension.shown(value) for value in narrowing.values[name])
    return f"--fix {name}={values}"


def _why(context: Context, rule: Rule, name: str, narrowing: Narrowing) -> str:
    values = " or ".join(DIMENSIONS[name].shown(value) for value in narrowing.values[name])
    given = f"{context.traits.name} does not offer {name} {values}"
    return f"{given}: {rule.allowance(context)}" if rule.allowed else f"{given}. {rule.message}"

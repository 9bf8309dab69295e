"""How replicas keep in step, as a configuration says it."""

from planner.check.values import Values
from planner.frameworks.settings import with_exchange
from planner.spec.exchange import read_exchange
from planner.spec.traits import FrameworkTraits


def exchanging(values: Values, traits: FrameworkTraits) -> FrameworkTraits:
    """The traits where replicas keep in step as the file says; a finding where they cannot."""
    given = values.given("gradient_exchange")
    if given is None:
        return traits
    try:
        return with_exchange(traits, read_exchange(str(given)))
    except ValueError as error:
        values.add("job.value", str(error), "gradient_exchange")
        return traits

"""What of a configuration changes training: how replicas keep in step."""

from planner.check.values import Values
from planner.frameworks.settings import with_change
from planner.spec.changes import read_change
from planner.spec.traits import FrameworkTraits

CHANGING = ("gradient_exchange",)
"""Decisions that do."""


def exchanging(values: Values, traits: FrameworkTraits) -> FrameworkTraits:
    """The traits that train as the file says; a finding where they cannot."""
    for name in CHANGING:
        given = values.given(name)
        if given is None:
            continue
        try:
            traits = with_change(traits, read_change(str(given)))
        except ValueError as error:
            values.add("job.value", str(error), name)
    return traits

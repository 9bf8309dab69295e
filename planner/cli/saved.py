"""Plan files: one read as a plan, and what the model says otherwise by now."""

from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.output import say

if TYPE_CHECKING:
    from planner.cost.estimate import Estimate
    from planner.plans.plan import Plan
    from planner.plans.plan_file import PlanFile

DRIFT = 1e-6
"""Of a saved time: less is rounding."""


def read_saved(path: Path) -> "tuple[Plan, PlanFile]":
    """The plan of a file, estimated again, and the file; raises InputError."""
    from planner.cost.estimate import estimate
    from planner.plans.plan import Plan
    from planner.plans.plan_file import load_plan

    context, strategy, file = load_plan(path)
    found = estimate(context, strategy)
    plan = Plan(context=context, strategy=strategy, estimate=found, is_optimal=False)
    say_drift(found, file)
    return plan, file


def say_drift(found: "Estimate", file: "PlanFile") -> None:
    """Note on standard error where the model no longer says what it said."""
    drift = found.iter_time_s / file.estimate.iter_time_s - 1.0
    if abs(drift) > DRIFT:
        say(
            f"note: the model now says {drift:+.1%} time against the saved estimate "
            f"(planner {file.planner_version})"
        )

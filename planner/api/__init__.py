"""The planner from Python: ``planner.plan(model, cluster)``."""

from planner.api.planned import Planned, plan

__all__ = ["Planned", "plan"]

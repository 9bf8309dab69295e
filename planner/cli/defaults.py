"""What options are where the command line leaves them out: the environment's, then a project's."""

import os
from pathlib import Path
from typing import Any

import typer

from planner.query.options import OWN_DEFAULTS

PREFIX = "PLANNER_"
JOBS = ("plan", "explain", "memory", "size", "why", "export", "job", "sensitivity")
"""Commands that take a job; those that take files read the project's settings by themselves."""


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the command line says an option, and no default does."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def own_defaults() -> dict[str, Any]:
    """Values by option: of ``PLANNER_FRAMEWORK`` and its like, else of the project's settings.

    Raises InputError with every problem of the settings' file.
    """
    from planner.check.settings import settings_for

    settings = settings_for(Path.cwd() / "here")
    given = {name: getattr(settings, name) for name in OWN_DEFAULTS}
    given |= {name: os.environ.get(PREFIX + name.upper()) or given[name] for name in OWN_DEFAULTS}
    return {name: value for name, value in given.items() if value is not None}

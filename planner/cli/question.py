"""The options of a question, for commands other than ``plan`` that ask one."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from planner.cli.layout import fixes_layout
from planner.cli.plan import plan

NOT_ASKED = (
    *(
        "context",
        "verbose",
        "model",
        "cluster",
        "like",
        "frontier",
        "space",
        "versus",
        "top",
        "show_all",
    ),
    *("output_format", "save", "emit", "out", "launcher", "force"),
)
"""Parameters of ``plan`` that say what is asked about, or what becomes of the answer."""
Question = Mapping[str, Any]
"""What the options say, by the names of ask.Options; ``fix`` beside them."""


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of ``plan`` that narrow a question, in place of ``question``."""
    asked = inspect.signature(inspect.unwrap(plan), eval_str=True).parameters
    options = [each for name, each in asked.items() if name not in NOT_ASKED]
    own = inspect.signature(command, eval_str=True).parameters
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        each.replace(kind=kind)
        for name in own
        for each in (options if name == "question" else [own[name]])
    ]

    @wraps(command)
    def run(**given: object) -> None:
        command(question={each.name: given.pop(each.name) for each in options}, **given)

    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return fixes_layout(run)

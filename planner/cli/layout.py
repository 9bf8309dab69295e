"""The options of a command that takes a layout: one for every decision of a strategy."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from planner.spec.strategy import COLUMNS, DECIDED, RECOMPUTE_WORDS

RECOMPUTE = "recompute"
Layout = Mapping[str, Any]
"""What the options say, by the names of DECIDED; None where nothing is said and it follows."""


def _option(name: str) -> inspect.Parameter:
    decision = COLUMNS[name]
    words = f": {', '.join(decision.words)}" if decision.words else ""
    follows = f" [{decision.follows}]" if decision.follows else ""
    about = decision.about[0].upper() + decision.about[1:]
    kind: Any = decision.value_type | None if decision.follows else decision.value_type
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if decision.follows else decision.value(decision.neutral),
        annotation=Annotated[kind, typer.Option(help=f"{about}{words}{follows}.")],
    )


def _searched(name: str) -> inspect.Parameter:
    """The option of a decision that a search makes otherwise: ``8`` or ``4|8``, or a switch."""
    decision = COLUMNS[name]
    kind: Any = bool | None if decision.value_type is bool else str | None
    words = f": {', '.join(decision.words)}" if decision.words else ""
    about = decision.about[0].upper() + decision.about[1:]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            kind, typer.Option(help=f"{about}{words}; a|b for either [searched].")
        ],
    )


def _recomputed() -> inspect.Parameter:
    """The option of what layers recompute, which no single decision says."""
    words = ", ".join(RECOMPUTE_WORDS)
    about = f"What layers recompute: {words}; a|b for either or both [searched]."
    return inspect.Parameter(
        RECOMPUTE,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, typer.Option(help=about)],
    )


def fixes_layout(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every decision before ``fix``, each as ``--fix NAME=VALUE``.

    Those that the command has by itself stay its own.
    """
    own = inspect.signature(command, eval_str=True).parameters
    options = [_searched(name) for name in COLUMNS if name in DECIDED and name not in own]
    options.append(_recomputed())
    placed = [(*options, own[name]) if name == "fix" else (own[name],) for name in own]
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(kind=kind) for those in placed for each in those]

    @wraps(command)
    def run(**given: object) -> None:
        said = {each.name: given.pop(each.name, None) for each in options}
        fixed = [f"{name}={_word(value)}" for name, value in said.items() if value is not None]
        fix: Any = given.pop("fix", None) or ()
        command(fix=[*fixed, *fix], **given)

    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def takes_layout(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every decision in place of its parameter ``layout``."""
    options = [_option(name) for name in COLUMNS if name in DECIDED]
    own = inspect.signature(command, eval_str=True).parameters
    parameters = [each for name in own for each in (options if name == "layout" else [own[name]])]

    @wraps(command)
    def run(**given: object) -> None:
        command(layout={name: given.pop(name) for name in DECIDED}, **given)

    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run

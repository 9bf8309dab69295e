"""The planner from Python: a function for every command that answers a question."""

import shlex
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import planner.check as checking
from planner.cli.app import MODULES
from planner.errors import InputError
from planner.query.query import Query
from planner.report.document import Planned as Planned
from planner.report.document import Shown as Shown

Place = str | Path | None
Made = TypeVar("Made", bound=Shown)


def _asked(
    kind: type[Made],
    name: str,
    model: Place,
    cluster: Place,
    options: dict[str, Any],
) -> Made:
    """The answer of a command; TypeError for an option that it does not have."""
    command = getattr(import_module(f"planner.cli.{MODULES.get(name, name)}"), name)
    own = {each: options.pop(each) for each in command.__dict__["own"] if each in options}
    own |= {each: Path(own[each]) for each in ("save", "out") if own.get(each)}
    if not isinstance(model, str | Path | None):
        raise TypeError(
            "a model is a name or a file; of a configuration: "
            "json.dump(model, open('config.json', 'w')); planner.plan('config.json', ...)"
        )
    query = Query.of(str(model or ""), str(cluster or ""), **options)
    try:
        shown: Made = command.__dict__["ask"](query, **own)
    except InputError as error:
        from planner.cli.meant import instead

        if other := instead([name, *query.words()], error.problems):
            error.add_note(f"in a shell: {shlex.join(['planner', *other])}")
        raise
    assert isinstance(shown, kind)
    shown.after()
    return shown


def plan(model: Place, cluster: Place = None, **options: Any) -> Planned:  # noqa: ANN401 - of the command
    """Search all layouts of a model on a cluster, keep what fits, and rank.

    ``model`` and ``cluster`` are what ``planner plan`` takes, ``options`` its options with
    underscores: ``seq_len=8192``, ``framework="deepspeed"``, ``tp=8``, ``where=["gpus==64"]``.
    Raises TypeError for an unknown one, planner.errors.InputError with every problem of the
    question, NothingFitsError where no plan fits or keeps the limits.
    """
    return _asked(Planned, "plan", model, cluster, options)


def explain(model: Place, cluster: Place = None, item: str = "", **options: Any) -> Shown:  # noqa: ANN401 - of the command
    """Where memory and time of a layout or a plan go, or of an item: ``planner explain``."""
    return _asked(Shown, "explain", model, cluster, {**options, "item": item})


def memory(model: Place, cluster: Place = None, **options: Any) -> Shown:  # noqa: ANN401 - of the command
    """Where the memory of a layout goes: ``planner explain MODEL CLUSTER memory``."""
    return explain(model, cluster, "memory", **options)


def why(model: Place, cluster: Place = None, **options: Any) -> Shown:  # noqa: ANN401 - of the command
    """Why a layout is not chosen: ``planner why``."""
    return _asked(Shown, "why", model, cluster, options)


def size(model: Place, node: Place = None, **options: Any) -> Shown:  # noqa: ANN401 - of the command
    """The fewest GPUs for a job, or with ``gpus`` how it scales: ``planner size``."""
    return _asked(Shown, "size", model, node, options)


def emit(plan: Place, cluster: Place = None, **options: Any) -> Shown:  # noqa: ANN401 - of the command
    """Files of a saved plan, or of the best for a model on a cluster: ``planner emit``."""
    return _asked(Shown, "emit", plan, cluster, options)


def check(*files: str | Path, **options: Any) -> Shown:  # noqa: ANN401 - of the command
    """What is wrong with configuration files: ``planner check``."""
    from planner.cli.check import check as command

    made: Shown = command.__dict__["ask"](files=[str(each) for each in files], **options)
    return made


class _CallableModule(ModuleType):
    """The package ``planner.check``: from Python it is the function of that name as well."""

    def __call__(self, *files: str | Path, **options: Any) -> Shown:  # noqa: ANN401
        """What is wrong with configuration files."""
        return check(*files, **options)


checking.__class__ = _CallableModule

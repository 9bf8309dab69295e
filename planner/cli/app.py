"""The program: registers the commands, and turns errors into messages and exit codes."""

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from itertools import takewhile
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from planner import __version__
from planner.cli import (
    answers,
    check,
    collective,
    explain,
    export,
    job,
    measure,
    plan,
    show,
    sweep,
)
from planner.cli.options import JOBS, PROGRAM, QuestionCommand, own_defaults
from planner.cli.output import fail, say
from planner.errors import InputError, PlannerError
from planner.limits import MAX_WORD, one_line, short
from planner.query.words import unknown_options

HELP = {"-h", "--help"}

# Help lists commands by what people come with, the usual ones first.
PANELS: dict[str, dict[str, Any]] = {
    "Plan": {
        "plan": plan.plan,
        "why": answers.why,
        "size": answers.size,
        "sensitivity": answers.sensitivity,
        "sweep": sweep.sweep_app,
    },
    "Explain": {"explain": explain.explain, "job": job.job, "export": export.export},
    "Files": {"check": check.check, "emit": export.emit},
    "Measure": {
        "compare": measure.compare,
        "calibrate": measure.calibrate,
        "collective": collective.collective,
    },
    "Look up": {"show": show.show_app},
}
# Former commands, and what answers instead.
DROPPED = {
    "largest": "planner plan MODEL CLUSTER --maximize seq-len|micro-batch",
    "scale": "planner size MODEL NODE --gpus 8..512",
    "report": "planner export PLAN --to html",
    "trace": "planner export PLAN --to perfetto",
    "models": "planner show models",
    "hardware": "planner show hardware",
    "recipes": "planner show recipes",
    "frameworks": "planner show frameworks",
    "schema": "planner show schema",
}


class _Panels(TyperGroup):
    """Commands of the help in panels, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        for title, names in PANELS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit=200)) for name in names]
                )


app = typer.Typer(
    name="planner",
    cls=_Panels,
    help="How should this training job be parallelized on this cluster?",
    no_args_is_help=True,
    **PROGRAM,
)
for _name, _command in (each for those in PANELS.values() for each in those.items()):
    if isinstance(_command, typer.Typer):
        app.add_typer(_command)
    else:
        app.command(_name, cls=QuestionCommand if _name in JOBS else TyperCommand)(_command)
app.command(explain.ALIAS, cls=QuestionCommand, hidden=True)(explain.explain)

plan_app = typer.Typer(name="plan", **PROGRAM)
plan_app.command(cls=QuestionCommand)(plan.plan)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"planner {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Plan how to parallelize a training job on a cluster."""
    command = context.invoked_subcommand
    if command in JOBS and not HELP & set(sys.argv):
        context.default_map = {command: own_defaults()}


def _check_words() -> None:
    """Raise where a word is too long for a message, or another program's; for former commands."""
    words = sys.argv[1:]
    for word in words:
        if len(word) > MAX_WORD:
            fail(short(word), f"has {len(word):,} characters; at most {MAX_WORD:,} are allowed")
    if words and words[0] in DROPPED:
        fail(words[0], f"no command of its own; `{DROPPED[words[0]]}` answers")
    if problems := list(unknown_options(words)):
        raise InputError(problems)


def _run(entry: Callable[[], object]) -> None:
    try:
        _check_words()
        entry()
    except PlannerError as error:
        lines = [str(error)]
        if isinstance(error, InputError):
            lines = [one_line(str(problem)) for problem in error.problems]
        for line in lines:
            say(line)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    except SystemExit as stop:
        # As shells report a program that wrote into a closed pipe; 1 would mean findings.
        sys.exit(141 if isinstance(stop.__context__, BrokenPipeError) else stop.code)
    except OSError as error:
        say(f"cannot read or write: {error}")
        sys.exit(InputError.exit_code)
    except Exception as error:
        if "PLANNER_TRACEBACK" in os.environ:
            raise
        say(
            f"internal error, please report it: {type(error).__name__}: {error} "
            "(PLANNER_TRACEBACK=1 shows where)"
        )
        sys.exit(70)


def _as_meant(words: list[str]) -> list[str]:
    """Read ``repair FILE`` as ``check FILE --fix``, ``MODEL CLUSTER`` as ``plan MODEL CLUSTER``.

    A question's ``--model M --cluster C`` become its arguments.
    """
    if words[:1] == ["repair"]:
        return ["check", "--fix", *words[1:]]
    names = [name for each in PANELS.values() for name in each]
    places = list(takewhile(lambda word: not word.startswith("-"), words))
    is_command = len(places) != 2 or get_close_matches(places[0], [*names, *DROPPED, explain.ALIAS])
    if not is_command or words[:1] == ["--model"]:
        words = ["plan", *words]
    for option in ("--cluster", "--model"):
        if option in words[:-1] and words[0] in JOBS:
            value = words.pop(words.index(option) + 1)
            words.remove(option)
            words.insert(1 if option == "--model" else len(words), value)
    return words


def main() -> None:
    """Entry point ``planner``."""
    sys.argv[1:] = _as_meant(sys.argv[1:])
    _run(app)


def main_plan() -> None:
    """Entry point ``plan``: the same as ``planner plan``."""
    _run(lambda: plan_app(default_map={} if HELP & set(sys.argv) else own_defaults()))


if __name__ == "__main__":
    main()

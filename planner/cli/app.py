"""The program: registers the commands, and turns errors into messages and exit codes."""

import gc
import os
import shlex
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from planner import __version__
from planner.catalog import EXAMPLE_CLUSTER, EXAMPLE_MODEL
from planner.cli.options import JOBS, PROGRAM, QuestionCommand, own_defaults
from planner.cli.output import say
from planner.errors import InputError, PlannerError, Problem
from planner.limits import MAX_WORD, one_line, short
from planner.notes import COMMAND_LINE
from planner.query.words import as_meant

# Help lists commands by what people come with, the usual ones first.
PANELS = {
    "Plan": {
        "plan": "Search all layouts, keep what fits, rank by iteration time or another objective.",
        "why": "Say why a layout is not chosen: illegal, too large, or slower, and by what.",
        "size": "Find the fewest GPUs that do a job in time, or just hold it; with --gpus how it "
        "scales.",
        "sensitivity": "Turn every figure of hardware and job, plan again: what moves time, where "
        "others win.",
        "sweep": "Ask many questions at once: planner sweep SWEEP.yaml, then planner sweep show "
        "RESULTS.",
    },
    "Explain": {
        "explain": "Show where memory and time of a plan or a layout go, or one item with its "
        "formula.",
        "job": "Say what a whole job takes: days with failures, money, energy, checkpoints, input.",
        "export": "Write a plan as one HTML page, or its iteration for Perfetto or ASTRA-sim.",
    },
    "Files": {
        "check": "Find what is wrong with configuration files, and fix it; planner.toml says the "
        "rest.",
        "emit": "Write a plan as the configuration and launch script of a framework.",
    },
    "Measure": {
        "compare": "Compare logs of runs with their predicted time; what is not given stands in "
        "planner.toml.",
        "calibrate": "Fit a cluster's figures to measurements, held to the catalog's where these "
        "say little.",
        "collective": "Show what a collective takes by algorithm and level, and in plans.",
    },
    "Look up": {"show": "Show what is known: models, hardware, recipes, frameworks, JSON Schemas."},
}
COMMANDS = {name: text for those in PANELS.values() for name, text in those.items()}
# Modules of commands that are not named as these.
MODULES = {
    "why": "answers",
    "size": "answers",
    "sensitivity": "answers",
    "job": "answers",
    "emit": "export",
    "collective": "explain",
    "compare": "measure",
    "calibrate": "measure",
}

# What is wrong with words: typer does not export the base of its errors.
USAGE_ERROR: Any = typer.BadParameter.__base__


class Commands(TyperGroup):
    """Commands of the help in panels; the module of one is imported when it is asked for."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - typer's
        super().__init__(**given)
        self.commands: Any = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002
        """The command of a name, None where there is none."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = command_of(cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write every command with its whole first sentence."""
        for title, those in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text.rstrip(".")) for name, text in those.items()])


def command_of(name: str) -> Any:  # noqa: ANN401 - click's command, which typer has as its own
    """The command of a name, as its module has it: a function, or a program of several."""
    module = import_module(f"planner.cli.{MODULES.get(name, name)}")
    group = typer.Typer(add_completion=False, **PROGRAM)
    group.callback()(lambda: None)
    if name in ("show", "sweep"):
        group.add_typer(module.app, name=name, help=COMMANDS[name])
    else:
        kind = QuestionCommand if name in JOBS else TyperCommand
        group.command(name, cls=kind, help=COMMANDS[name])(getattr(module, name))
    return typer.main.get_command(group).commands[name]  # type: ignore[attr-defined]


app = typer.Typer(
    name="planner",
    cls=Commands,
    help="How should this training job be parallelized on this cluster?",
    epilog=f"For a start: planner plan {EXAMPLE_MODEL} {EXAMPLE_CLUSTER}",
    **PROGRAM,
)


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
    command = context.invoked_subcommand
    if command in JOBS and not {"-h", "--help"} & set(sys.argv):
        context.default_map = {command: own_defaults()}


def _answer(words: list[str]) -> Any:  # noqa: ANN401 - typer's
    """Run a command; what typer finds wrong with its words is raised as InputError."""
    InputError.check(
        Problem(where=COMMAND_LINE, key=short(word), message=f"longer than {MAX_WORD:,} characters")
        for word in words
        if len(word) > MAX_WORD
    )
    try:
        return app(words, prog_name="planner", standalone_mode=False)
    except USAGE_ERROR as error:
        from planner.cli.meant import refused

        raise InputError(refused(error, words)) from None


def _run(typed: list[str]) -> None:
    """Run the program with what was typed; what is wrong with it, and what to type instead."""
    words = sys.argv[1:] = as_meant(typed, COMMANDS)
    # What is loaded stays: to look for garbage every 700 objects takes a twentieth of a start.
    gc.set_threshold(50_000)
    try:
        sys.exit(_answer(words))
    except InputError as error:
        from planner.cli.meant import instead

        say(*(one_line(str(problem)) for problem in error.problems))
        if other := instead(words, error.problems):
            say(f"try: {shlex.join(['planner', *other])}")
        sys.exit(error.exit_code)
    except PlannerError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        sys.exit(130)
    except SystemExit as stop:
        # As shells report a program that wrote into a closed pipe; 1 would mean findings.
        if isinstance(stop.__context__, BrokenPipeError):
            sys.exit(141)
        raise
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


def main() -> None:
    """Entry point ``planner``."""
    _run(sys.argv[1:])


def main_plan() -> None:
    """Entry point ``plan``: the same as ``planner plan``."""
    _run(["plan", *sys.argv[1:]])


if __name__ == "__main__":
    main()

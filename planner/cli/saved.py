"""Plans and files: plan files read as plans, the best of a question, a plan as files."""

import shlex
from collections.abc import Container
from pathlib import Path

from planner.answers.base import Answer, Plan
from planner.answers.plan import answer_or_raise
from planner.answers.plan_file import PlanFile, load_plan
from planner.catalog import EXAMPLE_NODE
from planner.cli.options import refuse_all
from planner.cli.output import say
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.errors import InputError, did_you_mean
from planner.formats import registry as formats
from planner.formats.format import Format, OutputFile
from planner.launchers import Launcher, load_launcher
from planner.notes import Problems
from planner.query.options import OPTIONS
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.query.words import SEVERAL, meant_word
from planner.report.emitted import PLAN, PlanText, mismatch, output_files
from planner.report.files import write_folder
from planner.report.sizing_words import unmet_limits
from planner.search.search import Progress
from planner.spec.strategy import Strategy

Target = tuple[Format, Launcher]
ARGUMENT = "PLAN-OR-MODEL"


def plan_file(path: Path) -> Path:
    """The plan file that is meant: itself, or that of a folder which ``--emit`` wrote."""
    if not path.exists():
        beside = f"beside a model its cluster is needed, such as 2x{EXAMPLE_NODE}"
        raise InputError.single(str(path), ARGUMENT, f"no such plan file; {beside}")
    file = path / PLAN if path.is_dir() else path
    if not file.exists():
        raise InputError.single(str(path), ARGUMENT, f"no {PLAN} in this folder")
    return file


def read_saved(path: Path) -> tuple[Plan, PlanFile]:
    """The plan of a file or folder, estimated again, what differs noted, and the file."""
    context, strategy, file = load_plan(plan_file(path))
    found = estimate(context, strategy)
    drift = found.iter_time_s / file.estimate.iter_time_s - 1.0
    if abs(drift) > 1e-6:  # less is rounding
        before = f"the saved estimate (planner {file.planner_version})"
        say(f"note: the model now says {drift:+.1%} time against {before}")
    return Plan(context=context, strategy=strategy, estimate=found, is_optimal=False), file


def saved_plan(
    query: Query, own: Container[str] = (), problems: Problems | None = None
) -> tuple[Plan, PlanFile]:
    """The plan in place of a question, and its file; InputError for options not its ``own``."""
    message = f"belongs to a question (MODEL CLUSTER); the plan in {query.model} has its own"
    refuse_all({OPTIONS[name].flag: True for name in query.given if name not in own}, message)
    problems = problems or Problems()
    found = problems.read(lambda: read_saved(Path(query.model)))
    problems.found += query.problems
    problems.finish()
    assert found is not None
    return found


def best_of(
    query: Query,
    progress: Progress,
    top: int = 1,
    fmt: Format | None = None,
    problems: Problems | None = None,
) -> Answer:
    """The best plans of a question; raises where nothing fits, or keeps the limits."""
    found = answer_or_raise(resolve(query, fmt=fmt, problems=problems), top, progress)
    if not found.plans:
        raise unmet_limits(found)
    return found


def read_target(
    to: str, launcher: str | None, option: str = "--emit", *, needs_out: bool = False
) -> Target:
    """Return format and launcher by name; raises one InputError with all that is wrong."""
    problems = Problems()
    known, written = formats.format_names(), formats.written_names()
    given, to = to, meant_word(option, to, known)
    if to != given:
        say(f"{option} {given} is read as {to}")
    if to not in known:
        hint = SEVERAL.get(to.lower()) or did_you_mean(to, written)
        message = f"unknown format {to!r}; allowed are {', '.join(written)}. {hint}"
        problems.add(option, message.rstrip())
    elif not formats.load_format(to).is_written:
        message = f"{to} is read, checked and repaired, not written; allowed are "
        problems.add(option, message + ", ".join(written))
    if launcher is not None and needs_out:
        problems.add("--launcher", f"needs --out, a folder, such as run; given {launcher}")
    starter = problems.read(lambda: load_launcher(launcher or "torchrun"))
    problems.finish()
    assert starter is not None
    return formats.load_format(to), starter


def say_mismatch(made: Format, context: Context) -> None:
    """Say what of a plan's traits a format has none of."""
    if note := mismatch(made, context):
        say(f"note: {note}")


def write(
    target: Target, context: Context, strategy: Strategy, plan: PlanText, out: Path, *, force: bool
) -> tuple[OutputFile, ...]:
    """Write all files of a plan into a folder, and return them; ExpressError, InputError."""
    files = output_files(*target, context, strategy, plan)
    write_folder(out, files, force=force)
    say(f"wrote {', '.join(file.name for file in files)} to {out}")
    say_mismatch(target[0], context)
    say(f"Next: {shlex.join(['planner', 'check', str(out)])}")
    return files

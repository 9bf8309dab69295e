"""``planner plan`` on a cluster file with pools: several kinds of machines at once."""

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from planner.cli.defaults import is_given
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.cli.ask import Asked, Options
    from planner.formats.format import Format
    from planner.pools.answer import MixedAnswer
    from planner.search.search import Progress

TAKEN = frozenset(
    {
        *("context", "model", "cluster", "framework", "profile", "settings", "global_batch"),
        *("global_batch_tokens", "seq_len", "tokens", "optimizer", "train", "lora_rank"),
        *("lora_targets", "recompute_modules", "precision", "fix", "limit", "where", "allow"),
        *("forbid", "recompute", "time_limit", "top", "margin", "imbalance", "mtp_layers"),
        *("output_format", "save", "emit", "out", "launcher", "force", "verbose"),
    }
)
"""Parameters of ``planner plan`` that hold for pools too."""
LAUNCHER = "torchrun"


def refuse_options(context: typer.Context, cluster: str, own: Container[str] = ()) -> None:
    """Raise InputError for options beside pools that hold for equal machines only.

    ``own`` are parameters of a command that have nothing to do with it.
    """
    from planner.catalog.pools import is_mixed
    from planner.errors import InputError, Problem
    from planner.spec.strategy import DECIDED

    if not is_mixed(cluster):
        return

    refused = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name
        and parameter.name not in TAKEN
        and parameter.name not in own
        and (parameter.name not in DECIDED or parameter.name in ("placement", "schedule"))
        and is_given(context, parameter.name)
    ]
    if str(context.params.get("output_format")) == "csv":
        refused.append("--format csv")
    if context.params.get("framework") == "any":
        refused.append("--framework any")
    if context.params.get("launcher") not in (None, LAUNCHER):
        refused.append(f"--launcher {context.params['launcher']}")
    if refused:
        message = "not on mixed machines yet; planning on one pool, FILE.yaml:POOL, takes it"
        raise InputError(
            Problem(where="command line", key=option, message=message) for option in refused
        )


def plan_mixed(
    context: typer.Context,
    model: str,
    cluster: str,
    fix: list[str] | None,
    options: "Options",
    target: "tuple[Format, Path] | None",
) -> None:
    """Plan on all pools of a file, show it, and write it where that was asked for."""
    from planner.cli.following import FOLDER, typed
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.report.files import write_atomically
    from planner.report.mixed import print_mixed, render_mixed_json
    from planner.report.mixed_files import is_writable

    made = target[0] if target else None
    with delayed_progress() as progress:
        top = int(context.params["top"])
        found = answered(model, cluster, fix, options, made=made, top=top, progress=progress)
    if context.params["save"] is not None:
        write_atomically(context.params["save"], _plan_file(found, model, cluster))
        say(f"saved the first plan to {context.params['save']}")
    if str(context.params["output_format"]) == "json":
        typer.echo(render_mixed_json(found))
    else:
        import shlex

        following = ""
        if target is None and is_writable(found.first):
            words = [*typed(context), "--emit", found.first.framework, "--out", FOLDER]
            following = shlex.join(words)
        verbose = bool(context.params["verbose"])
        print_mixed(found, console(), verbose=verbose, following=following)
    if target is not None:
        text = _plan_file(found, model, cluster)
        _emit(found, *target, text, force=bool(context.params["force"]))


def _plan_file(found: "MixedAnswer", model: str, cluster: str) -> str:
    """The first plan as a file that can be read from anywhere."""
    from planner.cli.inputs import argument_for_file, model_for_file
    from planner.pools.saved import mixed_plan_text

    return mixed_plan_text(
        found.first, model=model_for_file(model), cluster=argument_for_file(cluster)
    )


def answered(
    model: str,
    cluster: str,
    fix: list[str] | None,
    options: "Options",
    *,
    made: "Format | None" = None,
    top: int,
    progress: "Progress",
) -> "MixedAnswer":
    """The best ways to use all pools; raises NothingFitsError where there is none."""
    from planner.catalog.clusters import load_cluster
    from planner.catalog.pools import load_mixed
    from planner.errors import NothingFitsError
    from planner.plans.clock import Clock
    from planner.plans.plan import Answer
    from planner.pools.answer import mixed_answer
    from planner.pools.pipelines import PoolContext

    mixed = load_mixed(cluster, load_cluster)
    names = [pool.name for pool in mixed.pools]
    asked = _read(model, [f"{cluster}:{name}" for name in names], fix, options, made)

    def single(place: int, top: int, batch: int, clock: Clock) -> Answer:
        one = asked[place]
        contexts = tuple(
            replace(each, job=replace(each.job, global_batch=batch)) for each in one.contexts
        )
        return replace(one, contexts=contexts).searched(top, clock)

    pools = [
        PoolContext(pool=pool, context=one.contexts[0])
        for pool, one in zip(mixed.pools, asked, strict=True)
    ]
    notes = dict.fromkeys(note for one in asked for note in one.notes)
    found = mixed_answer(
        mixed,
        pools,
        asked[0].narrowing,
        single,
        top=top,
        notes=tuple(notes),
        clock=Clock(asked[0].time_limit_s),
        progress=progress,
    )
    if not found.plans:
        places = ", ".join(f"{cluster}:{name}" for name in names)
        late = "" if found.is_complete else " in time, which does not say that none fits"
        message = f"no plan fits the pools{late}, together or alone; `planner plan` says what is "
        raise NothingFitsError(f"{message}missing on one of them: {places}")
    return found


def _read(
    model: str,
    pools: list[str],
    fix: list[str] | None,
    options: "Options",
    made: "Format | None",
) -> "list[Asked]":
    """The question on each pool: one batch, and a precision that all of them compute in."""
    from planner.cli import ask

    given = cast("Options", dict(options))
    first = ask.read(model, pools[0], made=made, fix=fix, **given)
    job = first.contexts[0].job
    if not given.get("global_batch") and not given.get("global_batch_tokens"):
        given = cast("Options", {**given, "global_batch": job.global_batch})
    asked = [first, *(ask.read(model, pool, made=made, fix=fix, **given) for pool in pools[1:])]
    found = {one.contexts[0].job.precision for one in asked}
    if len(found) > 1:
        precision = "fp16" if "fp16" in found else sorted(found)[0]
        given = cast("Options", {**given, "precision": precision})
        asked = [ask.read(model, pool, made=made, fix=fix, **given) for pool in pools]
    return asked


def _emit(found: "MixedAnswer", made: "Format", out: Path, plan: str, *, force: bool) -> None:
    """Write the first plan of the format's framework; raises ExpressError."""
    from planner.report.folder import write_folder
    from planner.report.mixed_files import mixed_files

    files = mixed_files(made, found, plan)
    write_folder(out, files, force=force)
    say(f"wrote {', '.join(file.name for file in files)} to {out}")

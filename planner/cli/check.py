"""``planner check``: what is wrong with configuration files, and the smallest repair."""

import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner.cli import options
from planner.cli.output import fail, say
from planner.documents.file import write_atomically
from planner.report.files import check_replaceable, check_writable

if TYPE_CHECKING:
    from planner.check.fix import FixedFile
    from planner.formats.format import Severity, SourceText
    from planner.query.from_file import Request
    from planner.report.document import Shown
    from planner.search.search import Progress

BOM = "\ufeff"


@options.takes_files("documents", "time_limit", form=("text", "json", "sarif", "github", "junit"))
def check(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Configuration and plan files, or folders of them."),
    ],
    *,
    said: Mapping[str, Any],
    fail_on: Annotated[
        Literal["error", "warning", "note"] | None,
        typer.Option(help="Least severity that makes the exit code 1 [error]."),
    ] = None,
    advice: Annotated[
        bool, typer.Option("--advice/--no-advice", help="Search for a faster plan.")
    ] = True,
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Pass over files that no format recognises.")
    ] = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Find the fewest changes that make the file legal and fit."),
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="With --fix: edit it in place.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the findings, with --fix the fixed copy, to this file."),
    ] = None,
    force: options.Force = False,
    progress: "Progress",
    output_format: str = "text",
) -> "Shown":
    """``planner check``: exits with 1 where something is as severe as --fail-on."""
    from planner.check.check import check_file
    from planner.check.folder import check_folder, configuration_in
    from planner.check.result import exit_code
    from planner.report.document import Shown
    from planner.report.findings import RENDERERS, check_document, print_findings

    if apply and (out is not None or not fix):
        fail("--apply", "only one of --apply and --out can be given" if fix else "is for --fix")
    if out is not None:
        check_writable(out, force=force, option="--out")
    request_for = partial(request_of, said, fail_on=fail_on, with_advice=advice)
    if fix:
        _check_fix(files, output_format)
        name, request = files[0], request_for(files[0])
        if Path(name).is_dir():
            name, request = configuration_in(name, request_for(f"{name}/plan.yaml"))
        path = Path(name)
        return _fixed(path, request, said, path if apply else out, progress)
    results = []
    for number, name in enumerate(files):
        progress(f"checking {name}", number / len(files))
        if Path(name).is_dir():
            results += check_folder(name, request_for(f"{name}/plan.yaml"))
        else:
            results.append(check_file(name, request_for(name)))
    if skip_unknown:
        results = [result for result in results if result.is_recognised]

    def rendered(form: str) -> str:
        made = RENDERERS[form](results)
        return f"{made}\n" if made else ""

    # On a screen findings are wrapped; in a file they are the same everywhere.
    forms = ("sarif", "github", "junit", *(["text"] if out else []))
    return Shown(
        kind="check",
        found=results,
        body=check_document,
        screen=print_findings,
        forms={form: partial(rendered, form) for form in forms},
        out=out,
        exit_code=exit_code(results),
    )


def _check_fix(files: list[str], form: str) -> None:
    """Raise InputError for what only findings have: several files, and forms of their own."""
    if len(files) > 1:
        fail("--fix", f"one file at a time (--cluster names the cluster); given {len(files)}")
    if form not in ("text", "json"):
        fail("--format", f"{form} is of findings; with --fix it is text or json")


def request_of(
    said: Mapping[str, Any],
    name: str,
    *,
    fail_on: "Severity | None" = None,
    with_advice: bool = False,
) -> "Request":
    """What is asked of a file: options first, then the settings nearest to it."""
    from planner.check.settings import settings_for
    from planner.query.from_file import AUTO, Request, read_assumed

    project, settings = settings_for(Path(name)), said.get("settings", ())
    cluster = said.get("cluster") or project.cluster
    # A check that says nothing of models, clusters or traits loads no catalog.
    if "host_memory" in said:
        from planner.query.resolve import place_of

        cluster = place_of(cluster, said["host_memory"])
    if settings:
        from planner.query.traits import read_settings

        settings = read_settings(settings)
    return Request(
        model=said.get("model") or project.model,
        cluster=cluster,
        framework=said.get("framework") or project.framework or AUTO,
        num_gpus=said.get("gpus") or project.gpus,
        seq_len=said.get("seq_len") or project.seq_len,
        global_batch=said.get("global_batch") or project.global_batch,
        imbalance_fraction=said["imbalance"] / 100 if "imbalance" in said else None,
        documents=said.get("documents"),
        profile=said.get("profile"),
        settings=settings,
        assumed=read_assumed(said.get("assume", ())),
        fail_on=fail_on or project.fail_on or "error",
        ignore=project.ignore,
        with_advice=with_advice,
        time_limit_s=said.get("time_limit", 30.0),
    )


def _fixed(
    path: Path,
    request: "Request",
    said: Mapping[str, Any],
    target: Path | None,
    progress: "Progress",
) -> "Shown":
    """The smallest repair of a file; exits with 1 where errors are left, 3 where nothing fits."""
    from planner.check.fix import fix_file, fix_plan
    from planner.check.plan import check_format_name, is_plan_file
    from planner.formats.format import read_source
    from planner.query.traits import software_options
    from planner.report.document import Shown
    from planner.report.repair import print_repair, repair_document

    if target == path:
        check_replaceable(path, option="--apply")
    check_format_name(request.framework)
    source = read_source(path)
    is_plan = is_plan_file(source, request.framework)
    any_file = ("cluster", "framework", "host_memory", "time_limit")
    of_job = [name for name in said if name not in any_file]
    if is_plan and of_job:
        flag = {each.name: each.flag for each in options.OF_FILES}.get(of_job[0], "--documents")
        fail(flag, "is for configuration files; a plan file states its own")
    made = (fix_plan if is_plan else fix_file)(source, request, progress=progress)
    context = made.answer.context
    traits, job = context.traits, context.job
    words = [
        *("planner", "plan", made.model, made.cluster, "--framework", traits.name),
        *software_options(traits),
        *("--global-batch", str(job.global_batch), "--seq-len", str(job.seq_len)),
        *("--precision", job.precision, "--optimizer", traits.optimizer.name),
        *traits.training.options,
        *("--margin", f"{100.0 * context.margin_fraction:g}"),
    ]
    command = shlex.join(words)
    fixed = made.fixed or (made.source if made.is_sound else None)

    def after() -> None:
        if fixed is not None and target is not None:
            _write(made, fixed, target)

    return Shown(
        kind="repair",
        found=made,
        body=partial(repair_document, command=command),
        screen=partial(print_repair, command=command),
        after=after,
        exit_code=3 if fixed is None else int(bool(made.errors_left)),
    )


def _write(made: "FixedFile", fixed: "SourceText", target: Path) -> None:
    """Write a plan anew, a configuration as its source is; files it names are edited in place."""
    from planner.check.plan import PLAN

    source = Path(made.source.path)
    is_own = target.exists() and target.samefile(source)
    if is_own and made.is_sound:
        say(f"{target} stays as it is")
        return
    if made.format == PLAN:
        write_atomically(target, fixed.text)
        say(f"saved the plan to {target}")
        return
    if fixed.beside and not is_own:
        fail("--out", f"the repair changes {', '.join(fixed.beside)}, which --apply edits in place")
    if fixed.text != made.source.text or not is_own:
        _write_like(source, fixed.text, target, "--apply" if is_own else "--out")
    for path, text in fixed.beside.items():
        check_replaceable(Path(path), option="--apply")
        _write_like(Path(path), text, Path(path), "--apply")


def _write_like(source: Path, text: str, target: Path, option: str) -> None:
    """Write a text with the byte-order mark, line ends and owner of its source."""
    before = source.read_bytes()
    if before.count(b"\r\n") == before.count(b"\n") > 0:
        text = re.sub(r"(?<!\r)\n", "\r\n", text)
    mark = BOM if before.startswith(BOM.encode()) else ""
    write_atomically(target, mark + text, option=option, like=source)
    say(f"wrote the repair to {target}")

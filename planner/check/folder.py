"""Checks a folder as a whole: its configurations, with what its launch script and plan say."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from planner.check.check import check_file
from planner.check.plan import is_plan_file, read_plan_layout
from planner.check.result import UNREADABLE, FileResult
from planner.documents.file import is_file
from planner.errors import InputError
from planner.formats.format import Finding, SourceText, read_source
from planner.formats.registry import recognised
from planner.formats.shell.launch import launcher_settings, processes, variables
from planner.formats.shell.script import read_script
from planner.formats.shell.word import Lines
from planner.query.from_file import Request


def check_folder(path: str, request: Request) -> list[FileResult]:
    """Check every file of a folder that a format takes for its own; one finding where none does.

    GPUs and variables are those of the launch script, model, cluster, batch and profile those of
    the plan, where the request names none.
    """
    sources, request = _completed(path, request)
    results = [check_file(source.path, request) for source in sources]
    message = "no file of the folder is of a known format"
    nothing = Finding(rule=UNREADABLE, severity="error", message=message, path=path)
    none_known = FileResult(path=path, findings=(nothing,), is_recognised=False)
    return [each for each in results if each.is_recognised] or [none_known]


def configuration_in(path: str, request: Request) -> tuple[str, Request]:
    """The one configuration of a folder, and the request as ``check_folder`` completes it."""
    sources, request = _completed(path, request)
    found = [each.path for each in sources if not is_plan_file(each) and recognised(each)]
    if len(found) != 1:
        names = ", ".join(Path(name).name for name in found) or "none"
        raise InputError.single(
            path, "--fix", f"one configuration is repaired at a time; the folder holds {names}"
        )
    return found[0], request


def _completed(path: str, request: Request) -> tuple[list[SourceText], Request]:
    """The texts of a folder, and the request with what its launch script and its plan say."""
    sources = []
    for each in sorted(Path(path).iterdir()):
        # What is written for readers names options too.
        if is_file(each) and not each.name.startswith(".") and each.suffix != ".md":
            with suppress(InputError):
                sources.append(read_source(each))
    for source in sources:
        if source.path.endswith((".sh", ".slurm", ".sbatch")):
            request = _launched(source, request)
    for source in (each for each in sources if is_plan_file(each)):
        request = _planned(source, request)
    return sources, request


def _launched(source: SourceText, request: Request) -> Request:
    """The request with the variables and processes of a launch script, where it can be read."""
    try:
        script = read_script(source)
    except InputError:
        return request
    lines = Lines(source.text)
    started = (
        processes(launcher_settings((*command.launcher, *command.words), lines))
        for command in script.commands
    )
    return replace(
        request,
        environment={**request.environment, **variables(script.environment, lines)},
        num_gpus=request.num_gpus or next((one.value for one in started if one), None),
    )


def _planned(source: SourceText, request: Request) -> Request:
    """The request with the plan's model, cluster, batch and profile where it names none."""
    try:
        layout, _, model, cluster = read_plan_layout(source, request.cluster)
    except InputError:
        return request
    beside = Path(source.path).parent
    request = replace(
        request,
        model=request.model or _near(model, beside),
        cluster=request.cluster or _near(cluster, beside),
    )
    if layout is None:
        return request
    traits, job = layout.context.traits, layout.context.job
    if request.profile is None and not request.settings:
        request = replace(
            request,
            of_framework=traits.name,
            profile=traits.profile,
            settings=traits.settings,
        )
    imbalance, documents = request.imbalance_fraction, job.documents
    return replace(
        request,
        seq_len=request.seq_len or job.seq_len,
        global_batch=request.global_batch or job.global_batch,
        imbalance_fraction=job.imbalance_fraction if imbalance is None else imbalance,
        documents=request.documents or (documents.text if documents else None),
    )


def _near(name: str, folder: Path) -> str | None:
    return str(folder / name) if name and is_file(folder / name) else name or None

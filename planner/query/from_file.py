"""Configuration files as questions: their format, what they state, the job they are read for."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from planner.catalog import EXAMPLE_CLUSTER, EXAMPLE_MODEL
from planner.documents.file import is_file
from planner.documents.nodes import compose, parse_json
from planner.errors import InputError, Problem
from planner.formats import registry as formats
from planner.formats.adapters import FILE, read_adapters
from planner.formats.format import (
    ALL,
    Format,
    Located,
    ModelInFile,
    ParsedConfig,
    PerChunk,
    Severity,
    SourceText,
    read_source,
)
from planner.formats.registry import program_of
from planner.notes import Problems
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec
from planner.spec.strategy import POLICY_COUNT_FIELDS
from planner.spec.training import FULL, Training
from planner.spec.traits import Setting

AUTO = "auto"  # the format that a file shows itself to be of
ASSUME = "--assume"
EXAMPLES = {"--model": EXAMPLE_MODEL, "--cluster": EXAMPLE_CLUSTER}  # of options that are missing
# What ``--assume`` may say by name: numbers, words, and where a launcher shards.
ASSUMED_NUMBERS = ("micro_batch", "tp", "pp", "cp", "ep", "etp")
ASSUMED_WORDS = ("optimizer", "precision")
ASSUMED: Mapping[str, tuple[str, object]] = {
    "recompute=none": ("recompute_layers_per_stage", PerChunk(0)),
    "recompute=selective": ("selective_layers_per_stage", ALL),
    "recompute=full": ("recompute_layers_per_stage", ALL),
    **{f"zero_stage={stage}": ("zero_stage", stage) for stage in range(4)},
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options to read a file and what to check it for; None: not given."""

    model: str | None = None
    cluster: str | None = None
    framework: str = AUTO
    num_gpus: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    imbalance_fraction: float | None = None  # of experts; no file says it
    documents: str | None = None  # how long documents are and how they are batched; no file says it
    profile: str | None = None  # of the framework; like settings, the file takes precedence
    settings: tuple[Setting, ...] = ()
    of_framework: str = ""  # whose profile and settings these are; empty: the file's
    assumed: Mapping[str, object] = field(default_factory=dict)  # what a script decides
    environment: Mapping[str, Located] = field(default_factory=dict)  # of a script
    fail_on: Severity = "error"
    ignore: tuple[str, ...] = ()
    with_advice: bool = True
    time_limit_s: float | None = None  # of the search for a better plan


@dataclass(frozen=True, kw_only=True)
class Job:
    """Job that completes a file: the values of the request, and what is known without it."""

    model: ModelSpec
    cluster: ClusterSpec
    request: Request = Request()
    training: Training = FULL  # as another file beside the configuration says


def named(
    request: Request, reading: ParsedConfig | None = None
) -> tuple[ModelSpec | None, ClusterSpec | None]:
    """The model (else the file's own) and cluster that a request names; raises InputError."""
    own = reading.own_model if reading else None
    problems, model, cluster = Problems(), own.spec if own else None, None
    if request.model is not None:
        from planner.catalog.models import load_model

        model = problems.read(partial(load_model, request.model))
    if request.cluster is not None:
        from planner.catalog.clusters import load_cluster

        cluster = problems.read(partial(load_cluster, request.cluster))
    problems.finish()
    return model, cluster


def job_of(request: Request, reading: ParsedConfig) -> Job | None:
    """The job, its model the file's own where none is named; None without model or cluster.

    Adapters are trained where a file beside says so; InputError where that is unsound.
    """
    model, cluster = named(request, reading)
    if model is None or cluster is None:
        return None
    beside, training = Path(reading.path).parent / FILE, reading.training
    if training is None and formats.load_format(reading.format).takes_adapters and is_file(beside):
        training = read_adapters(read_source(beside))
    if training and not model.mixer:
        training = training.without_mixers
    return Job(model=model, cluster=cluster, request=request, training=training or FULL)


class UnrecognisedError(InputError):
    """A file that no format takes for its own."""


def source_of(path: str) -> SourceText:
    """The file's text; a file that is there and has none is no format's."""
    try:
        return read_source(path)
    except InputError as error:
        raise UnrecognisedError(error.problems) if is_file(path) else error from None


def format_of(source: SourceText, name: str) -> Format:
    """The format of a file; InputError where it is broken JSON or YAML, or of none or several."""
    if name != AUTO:
        return formats.load_format(name)
    found = [] if program_of(source) else formats.recognised(source)
    if not found:
        raise UnrecognisedError(_why_unknown(source))
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise InputError.single(
            source.path, "file", f"could be of several formats: {names}; --framework says which"
        )
    return found[0]


def _why_unknown(source: SourceText) -> tuple[Problem, ...]:
    """Return what is wrong with a file of no format: broken JSON or YAML comes first."""
    if program := program_of(source):
        message = f"is a configuration of {program['name']}, which is not covered"
        if like := program.get("like"):
            command = f"planner explain MODEL CLUSTER {like} --tp ... --pp ..."
            message += f"; its layout as options is: {command}"
        return InputError.single(source.path, "file", message).problems
    try:
        if source.text.lstrip().startswith("{"):
            parse_json(source.path, source.text)
        elif source.path.endswith((".yaml", ".yml")):
            compose(source.path, source.text)
    except InputError as error:
        return error.problems
    known = ", ".join(formats.format_names())
    message = f"is of no known format, or starts no training; known are plan files, {known}"
    named = formats.words_file(source)
    message = f"its words stand in {named}: check that file, or the folder" if named else message
    if '"model_type"' in source.text:
        plan = shlex.join(["planner", "plan", source.path, EXAMPLE_CLUSTER])
        message = f"is a model, of which no job is known: `{plan}` plans one"
    return InputError.single(source.path, "file", message).problems


def with_model(reading: ParsedConfig) -> ParsedConfig:
    """The reading with the model of the catalog that the file names, if it names one."""
    place = reading.named_model
    if place is None or not isinstance(place.value, str):
        return reading
    from planner.catalog.models import catalog_name, load_model

    name = catalog_name(place.value)
    return (
        replace(reading, own_model=ModelInFile(spec=load_model(name), places={"": place}))
        if name
        else reading
    )


def needed_job(request: Request, reading: ParsedConfig) -> Job:
    """The job; InputError where model or cluster is not known."""
    if job := job_of(request, reading):
        return job
    missing = [] if request.model or reading.own_model else ["--model"]
    missing += [] if request.cluster else ["--cluster"]
    said = " ".join(f"{each} {EXAMPLES[each]}" for each in missing)
    raise InputError.single(
        reading.path,
        "file",
        f"{' and '.join(missing)} needed, here or in planner.toml, such as {said}",
    )


def read_for(kind: Format, reading: ParsedConfig, request: Request) -> ParsedConfig:
    """The reading with what the request says of its launch, its model and its script."""
    reading = kind.launched(with_model(reading), request.environment)
    if model := named(request, reading)[0]:
        reading = kind.of_model(reading, model)
    stated = {name for name, each in reading.decisions.items() if each.line or each.value}
    assumed = {name: each for name, each in request.assumed.items() if name not in stated}
    added = {name: Located(value=value, key=ASSUME) for name, value in assumed.items()}
    said = {*added, *("recompute" for name in added if name in POLICY_COUNT_FIELDS)}
    return replace(
        reading,
        decisions={**reading.decisions, **added},
        left_open={name: each for name, each in reading.left_open.items() if name not in added},
        assumes=tuple(name for name in reading.assumes if name not in said),
    )


def read_assumed(texts: Sequence[str]) -> dict[str, object]:
    """Decisions by name from ``NAME=VALUE``; raises InputError."""
    return dict(map(_assumed, texts))


def _assumed(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    if text in ASSUMED:
        return ASSUMED[text]
    if name in ASSUMED_WORDS and value:
        return name, value
    is_number = value.isascii() and value.isdigit() and len(value) < 9
    if name in ASSUMED_NUMBERS and is_number:
        return name, int(value)
    allowed = [*ASSUMED, *(f"{each}=..." for each in (*ASSUMED_WORDS, *ASSUMED_NUMBERS))]
    raise InputError.single(
        "command line",
        ASSUME,
        f"nothing that can be assumed; given {text!r}, allowed are {', '.join(allowed)}",
    )

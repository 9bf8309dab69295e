"""What a file is checked for, and how: the request, and the job that follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.check.trained import trained_beside
from planner.errors import InputError, Problem
from planner.formats.format import Reading, Severity, Value
from planner.frameworks.registry import CURRENT
from planner.query.from_file import AUTO
from planner.query.traits import read_settings
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec
from planner.spec.training import FULL, Training
from planner.spec.traits import Setting


@dataclass(frozen=True, kw_only=True)
class Software:
    """What is known of the framework beside its file, which comes first."""

    framework: str = ""
    """Whose it is; empty: the file's, whichever that is."""
    profile: str = CURRENT
    settings: tuple[Setting, ...] = ()


def read_software(profile: str | None, settings: Sequence[str] | None) -> Software | None:
    """Return what options say of a file's framework; raises InputError."""
    if profile is None and not settings:
        return None
    return Software(profile=profile or CURRENT, settings=read_settings(settings or ()))


@dataclass(frozen=True, kw_only=True)
class Request:
    """How to check a file; None: not said."""

    model: str | None = None
    cluster: str | None = None
    framework: str = AUTO
    num_gpus: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    imbalance_fraction: float | None = None
    """Of a mixture, tokens beyond the mean on the busiest rank of experts; no file says it."""
    documents: str | None = None
    """How long documents are and how they are batched; no file says it."""
    software: Software | None = None
    assumed: Mapping[str, object] = field(default_factory=dict)
    """Decisions that the file leaves to a script or a recipe."""
    environment: Mapping[str, Value] = field(default_factory=dict)
    """Variables of a launch script beside the file."""
    fail_on: Severity = "error"
    ignore: tuple[str, ...] = ()
    with_advice: bool = True
    time_limit_s: float | None = None
    """Of the search for a better plan."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job as the command or the project's settings give it; None: the file decides."""

    model: ModelSpec
    cluster: ClusterSpec
    num_gpus: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    imbalance_fraction: float | None = None
    documents: str | None = None
    software: Software | None = None
    training: Training = FULL
    """As another file beside the configuration says."""


def named(request: Request) -> tuple[ModelSpec | None, ClusterSpec | None]:
    """The model and the cluster that a request names; None where it does not.

    Raises InputError with what is wrong with both.
    """
    problems: list[Problem] = []
    model, cluster = None, None
    try:
        model = None if request.model is None else load_model(request.model)
    except InputError as error:
        problems += error.problems
    try:
        cluster = None if request.cluster is None else load_cluster(request.cluster)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return model, cluster


def job_of(request: Request, reading: Reading) -> Job | None:
    """The job, its model the file's own where none is named; None without model or cluster.

    Raises InputError where an adapter file beside it is unsound.
    """
    model, cluster = named(request)
    model = model or (reading.own_model.spec if reading.own_model else None)
    if model is None or cluster is None:
        return None
    return Job(
        model=model,
        cluster=cluster,
        num_gpus=request.num_gpus,
        seq_len=request.seq_len,
        global_batch=request.global_batch,
        imbalance_fraction=request.imbalance_fraction,
        documents=request.documents,
        software=request.software,
        training=reading.training or trained_beside(reading),
    )


def shape_of(model: ModelSpec) -> dict[str, int]:
    """The sizes that a file may state, by the names of DECISIONS."""
    return {
        "model.num_layers": model.num_layers,
        "model.hidden_size": model.hidden_size,
        "model.num_heads": model.num_heads,
        "model.num_kv_heads": model.num_kv_heads,
        "model.ffn_size": model.ffn_size,
        "model.vocab_size": model.vocab_size,
        "model.num_experts": model.moe.num_experts if model.moe else 0,
    }

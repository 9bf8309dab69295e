"""The plan file: what ``--save`` writes and every other command reads."""

from dataclasses import MISSING, asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, create_model

from planner import __version__, limits
from planner.answers.base import Plan
from planner.answers.row import field_values
from planner.catalog.clusters import load_cluster
from planner.catalog.figures import Strict, validate
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.kernels import peak_flops_per_s
from planner.documents.tree import load_yaml
from planner.errors import InputError, Problem
from planner.frameworks.registry import ADAM, FRAMEWORKS, load_traits
from planner.frameworks.settings import with_optimizer, with_recompute_modules, with_training
from planner.layers.adapter_targets import training_problem
from planner.notes import Problems
from planner.query.traits import profile_problem, settings_mapping, settings_of
from planner.search.space.legality import violations
from planner.spec.job import JobSpec, Precision, read_documents
from planner.spec.model import ModelSpec
from planner.spec.strategy import FIELDS, STRATEGY_FIELDS, FieldSpec, Strategy
from planner.spec.training import MAX_RANK, Mode, Target, Training
from planner.spec.traits import FrameworkTraits

SCHEMA_VERSION = 1
Count = Annotated[int, Field(ge=0, le=limits.MAX_BLOCKS)]


class InputsPart(Strict):
    """Arguments of the command, defaults filled in."""

    model: str
    cluster: str
    framework: str
    profile: str
    traits: dict[str, dict[str, Any]] = Field(default_factory=dict)
    global_batch: Annotated[int, Field(ge=1, le=limits.MAX_BATCH)]
    seq_len: Annotated[int, Field(ge=1, le=limits.MAX_SEQ_LEN)]
    precision: Precision
    optimizer: str = ADAM
    train: Mode = "full"
    lora_rank: Annotated[int, Field(ge=0, le=MAX_RANK)] = 0
    lora_targets: tuple[Target, ...] = Field(default=(), strict=False)
    recompute_modules: tuple[str, ...] | None = Field(default=None, strict=False)
    total_tokens: Annotated[int, Field(ge=1, le=limits.MAX_TOKENS)] | None = None
    margin_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    imbalance_fraction: Annotated[float, Field(ge=0, le=limits.MAX_IMBALANCE)] = 0.0
    documents: Annotated[str, Field(max_length=64)] | None = None
    mtp_layers: Annotated[int, Field(ge=0, le=limits.MAX_MTP_LAYERS)] = 0


def _type_of(name: str, decision: FieldSpec) -> object:
    if name in STRATEGY_FIELDS:
        if decision.words or decision.is_flag:
            return Literal.__getitem__(tuple(decision.words)) if decision.words else bool
        return Annotated[int, Field(ge=decision.least, le=decision.most)]
    if name == "recompute_modules":
        return Annotated[tuple[str, ...] | None, Field(strict=False)]
    return Annotated[
        tuple[Count, ...],
        Field(strict=False, min_length=0 if name in _DEFAULTS else 1, max_length=limits.MAX_BLOCKS),
    ]


_DEFAULTS = {each.name: each.default for each in fields(Strategy) if each.default is not MISSING}
_FIELDS: dict[str, Any] = {
    name: (_type_of(name, decision), _DEFAULTS.get(name, ...)) for name, decision in FIELDS.items()
}
# The layout, with the fields of a strategy; etp is what the framework takes when missing.
StrategyPart = create_model(
    "StrategyPart", __base__=Strict, **_FIELDS | {"etp": (_FIELDS["etp"][0] | None, None)}
)


class EstimatePart(Strict):
    """Estimate of the model when the plan was saved."""

    iter_time_s: Annotated[float, Field(gt=0)]
    peak_bytes: Annotated[float, Field(gt=0)]
    mfu: Annotated[float, Field(gt=0)]


class PlanFile(Strict):
    """A plan file of the current schema."""

    schema_version: Literal[1]
    planner_version: str
    inputs: InputsPart
    strategy: StrategyPart  # type: ignore[valid-type]
    estimate: EstimatePart


def plan_text(plan: Plan, *, model: str, cluster: str) -> str:
    """Return the YAML of a plan; ``model`` and ``cluster`` are the arguments as given."""
    context, job = plan.context, plan.context.job
    content = {
        "schema_version": SCHEMA_VERSION,
        "planner_version": __version__,
        "inputs": {
            "model": model,
            "cluster": cluster,
            "framework": context.traits.name,
            "profile": context.traits.profile,
            "traits": settings_mapping(context.traits.settings),
            "global_batch": job.global_batch,
            "seq_len": job.seq_len,
            "precision": job.precision,
            "optimizer": context.traits.optimizer.name,
            **context.traits.training.inputs,
            "recompute_modules": list(context.traits.recompute.selected),
            "total_tokens": job.total_tokens,
            "margin_fraction": context.margin_fraction,
            "imbalance_fraction": job.imbalance_fraction,
            **({"documents": job.documents.text} if job.documents else {}),
            "mtp_layers": job.mtp_layers,
        },
        "strategy": asdict(plan.strategy),
        "estimate": {
            "iter_time_s": plan.estimate.iter_time_s,
            "peak_bytes": plan.estimate.memory.peak_bytes,
            "mfu": plan.estimate.mfu,
        },
    }
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)


def _with_training(
    traits: FrameworkTraits, inputs: InputsPart, model: ModelSpec, where: str
) -> FrameworkTraits:
    """The traits where the plan's part of the weights is trained; InputError where it cannot be."""
    if inputs.train == "full":
        return traits
    training = Training(mode=inputs.train, rank=inputs.lora_rank, targets=inputs.lora_targets)
    option, message = training_problem(model, training, traits.kernels)
    if training.rank < 1:
        option, message = "--lora-rank", f"must be at least 1; given {training.rank}"
    if message:
        key = option.removeprefix("--").replace("-", "_")
        raise InputError.single(where, f"inputs.{key}", message)
    return with_training(traits, training)


def _traits(inputs: InputsPart, model: ModelSpec, path: Path) -> FrameworkTraits:
    """The framework as the plan was made for it: profile, settings, optimizer, modules."""
    where = str(path)
    known = inputs.framework in FRAMEWORKS
    if known and (problem := profile_problem(inputs.framework, inputs.profile)):
        raise InputError.single(where, "inputs.profile", problem)
    settings = settings_of(inputs.traits, where=where, key="inputs.traits")
    traits = load_traits(inputs.framework, inputs.profile, settings)
    traits = with_optimizer(traits, inputs.optimizer)
    traits = _with_training(traits, inputs, model, where)
    return (
        traits
        if inputs.recompute_modules is None
        else with_recompute_modules(traits, inputs.recompute_modules)
    )


def _context(inputs: InputsPart, path: Path, cluster_name: str) -> Context:
    cluster, problems = load_cluster(cluster_name), Problems(str(path))
    peak = partial(peak_flops_per_s, cluster.accelerator)
    problems.parsed("inputs.precision", inputs.precision, peak)
    documents = problems.parsed(
        "inputs.documents", inputs.documents, partial(read_documents, longest=inputs.seq_len)
    )
    problems.finish()
    model, job = load_model(inputs.model), field_values(JobSpec, inputs)
    return Context(
        model=model,
        job=JobSpec(**job | {"documents": documents}),
        cluster=cluster,
        traits=_traits(inputs, model, path),
        margin_fraction=inputs.margin_fraction,
    )


def read_plan(path: Path, *, cluster: str | None = None) -> tuple[Context, Strategy, PlanFile]:
    """Read a plan file, legal or not, for its own or another cluster; raises InputError."""
    data = load_yaml(path)
    version, inputs = data.get("schema_version"), data.get("inputs")
    if version != SCHEMA_VERSION:
        message = f"not a plan file of this version: {version!r} given, allowed is {SCHEMA_VERSION}"
        again = "make it again with `planner plan ... --save`"
        raise InputError.single(str(path), "schema_version", f"{message}; {again}")
    # What earlier versions could save and this one does not model.
    for key in ("gradient_exchange", "zenflow"):
        if isinstance(inputs, dict) and key in inputs:
            message = "not covered: the plan trains otherwise than is modelled here"
            raise InputError.single(str(path), f"inputs.{key}", message)
    file = validate(PlanFile, data, str(path))
    context = _context(file.inputs, path, cluster or file.inputs.cluster)
    part: Strict = file.strategy
    given = part.model_dump()
    if given["etp"] is None:
        given["etp"] = int(context.traits.support.usual_etp(given["tp"], given["ep"]))
    strategy = Strategy(**given)
    if strategy.recompute_modules is not None:
        with_recompute_modules(context.traits, strategy.recompute_modules)
    return context, strategy, file


def load_plan(path: Path) -> tuple[Context, Strategy, PlanFile]:
    """Read a plan file back into a context and a strategy; raises InputError."""
    context, strategy, file = read_plan(path)
    InputError.check(
        Problem(where=str(path), key=f"strategy.{broken.key}", message=broken.message)
        for broken in violations(context, strategy)
    )
    return context, strategy, file

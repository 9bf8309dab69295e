"""A plan as a folder: configuration, launch files, the plan itself, and a README of why."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner import __version__
from planner.answers.base import Plan
from planner.answers.plan_file import PlanFile, plan_text
from planner.answers.row import row_from, row_of
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.documents.file import read_text
from planner.errors import ExpressError
from planner.formats.format import Emitted, Format, OutputFile
from planner.formats.registry import own_texts
from planner.launchers import MOCK, SCRIPT, Launcher, allocation_of, user_variables
from planner.layers.adapter_targets import adapter_params
from planner.limits import printable
from planner.query.query import Query
from planner.query.resolve import cluster_for_file, model_for_file, place_of
from planner.query.traits import software_options
from planner.report.document import rendered
from planner.report.words import placement_line, range_line
from planner.spec.job import USUAL_IMBALANCE_FRACTION
from planner.spec.strategy import GPU_DEGREES, PLACEMENTS, STAGE_DEGREES, Strategy
from planner.units import format_bytes, format_count, format_seconds

README = "README.md"
PLAN = "plan.yaml"
ALWAYS = (SCRIPT, PLAN, README)


@dataclass(frozen=True, kw_only=True)
class PlanText:
    """A plan file: its text, and how it names its model and cluster."""

    text: str
    model: str
    cluster: str

    @classmethod
    def of(cls, plan: Plan, query: Query) -> "PlanText":
        """The file of a question's plan."""
        # So that it can be read from anywhere.
        place = place_of(query.cluster, query.get("host_memory")) or query.cluster
        model, cluster = model_for_file(query.model), cluster_for_file(place)
        return cls(text=plan_text(plan, model=model, cluster=cluster), model=model, cluster=cluster)

    @classmethod
    def of_file(cls, path: Path, file: PlanFile) -> "PlanText":
        """A file that was read."""
        return cls(text=read_text(path), model=file.inputs.model, cluster=file.inputs.cluster)


def mismatch(made: Format, context: Context) -> str:
    """Return a note on a plan that was made for another framework; empty where it was not."""
    planned = context.traits.name
    if planned == made.framework:
        return ""
    return (
        f"planned for {planned}, written for {made.framework}: time and memory are {planned}'s; "
        f"`planner plan --framework {made.framework}` plans for it"
    )


def output_files(
    made: Format, launcher: Launcher, context: Context, strategy: Strategy, plan: PlanText
) -> tuple[OutputFile, ...]:
    """Return all files of a plan; raises ExpressError with all reasons of format and launcher."""
    reasons = launcher.problems(context, strategy)
    try:
        emitted = made.emitted(context, strategy)
    except ExpressError as error:
        raise ExpressError("\n".join([str(error), *reasons])) from None
    if reasons:
        raise ExpressError("\n".join(reasons))
    return (
        *emitted.files,
        *launcher.files(emitted, context, strategy),
        OutputFile(name=PLAN, text=plan.text),
        OutputFile(name=README, text=_readme(made, launcher, emitted, context, strategy, plan)),
    )


@row_of(
    {
        **dict.fromkeys(("format", "framework", "versions", "model", "cluster"), str),
        "gpus": int,
        "folder": str | None,
        "notes": tuple[str, ...],
    },
    leave_out=("own_launcher",),
)
class EmitDocument(Emitted):
    """A plan as files of a framework; without --out only the configuration, nothing is written."""


def emit_document(
    made: Format,
    files: Sequence[OutputFile],
    context: Context,
    strategy: Strategy,
    folder: Path | None,
) -> EmitDocument:
    """Files of a plan as plain data, with what was decided and what is left to the user."""
    emitted = made.emitted(context, strategy)
    note = mismatch(made, context)
    return row_from(
        EmitDocument,
        emitted,
        format=made.name,
        framework=made.framework,
        versions=made.versions,
        model=context.model.name,
        cluster=context.cluster.name,
        gpus=strategy.num_gpus,
        folder=str(folder) if folder else None,
        files=tuple(files),
        variables=dict(user_variables(emitted.variables)),
        left_open={**own_texts("left_open", made.name), **emitted.left_open},
        notes=(note,) if note else (),
    )


def _code(text: str) -> str:
    """A Markdown code span that holds any text, on one line."""
    text = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{blank}{text}{blank}{ticks}"


def _words(text: str) -> str:
    """A text of one line in which nothing is Markdown or HTML."""
    text = " ".join(printable(text).split())
    return re.sub(r"[\\`\[\]<>&!]", lambda match: f"\\{match[0]}", text)


def decisions(context: Context, strategy: Strategy) -> list[tuple[str, str]]:
    """What is trained where, and the layout decision by decision."""
    job, training = context.job, context.traits.training
    notes = {"dp": f" (replicas {strategy.dp_replicate})", "pp": f" (chunks {strategy.vpp})"}
    degrees = [
        f"{name} {getattr(strategy, name)}{notes.get(name, '')}"
        for name in (*GPU_DEGREES, "ep", "etp")
        if name != "etp" or strategy.etp != strategy.tp
    ]
    number = adapter_params(context.model, training, context.traits.kernels)
    trained = f"{format_count(number)} parameters"
    sizes = f"{strategy.num_micro_batches}, sequences in each: {strategy.micro_batch}"
    return [
        ("model", context.model.name),
        ("cluster", f"{context.cluster.name}: {strategy.num_gpus} GPUs used"),
        ("batch", f"{job.global_batch} sequences of {job.seq_len} tokens, {job.precision}"),
        *([("documents", job.documents.words)] if job.documents else []),
        *([("training", f"{training.words}: {trained}")] if training.is_frozen else []),
        ("degrees", ", ".join([*degrees, f"ZeRO {strategy.zero_stage}"])),
        ("micro-batches", sizes),
        ("schedule", strategy.schedule),
        ("layers per stage", ", ".join(map(str, strategy.layers_per_stage))),
        ("recomputation", strategy.recompute),
        ("offload", strategy.offload),
    ]


def _figures(context: Context, strategy: Strategy) -> list[tuple[str, str]]:
    result = estimate(context, strategy)
    peak = format_bytes(result.memory.peak_bytes)
    usable = format_bytes(result.memory.usable_bytes)
    return [
        *((what, _words(text)) for what, text in decisions(context, strategy)),
        ("time of an iteration", f"{format_seconds(result.iter_time_s)}, modelled"),
        ("tokens/s", format_count(result.tokens_per_s)),
        ("MFU", f"{100.0 * result.mfu:.1f} %"),
        ("memory per GPU", f"{peak} of {usable} usable"),
    ]


def _ranks(context: Context, strategy: Strategy) -> tuple[str, list[tuple[str, ...]]]:
    """Where ranks lie, in words; and every axis with the distance of its neighbours."""
    nodes = allocation_of(context, strategy)
    axes = [axis for axis in PLACEMENTS[strategy.placement] if axis in GPU_DEGREES]
    rows, apart = list[tuple[str, ...]](), 1
    for axis in axes:
        degree = getattr(strategy, axis)
        rows.append((axis, str(degree), str(apart) if degree > 1 else "-"))
        apart *= degree
    inside = ""
    if strategy.ep > 1:
        replicas = strategy.columns().expert_dp[0]
        mesh = f"etp {strategy.etp}, then ep {strategy.ep}, then {replicas} replicas"
        ranks = f"{', '.join(STAGE_DEGREES[:-1])} and {STAGE_DEGREES[-1]}"
        inside = f" Experts lie on the ranks of {ranks} along {mesh}."
    text = (
        f"Node k runs ranks {nodes.gpus_per_node}·k to {nodes.gpus_per_node}·k + "
        f"{nodes.gpus_per_node - 1}, for k from 0 to {nodes.num_nodes - 1}. Ranks count along "
        f"{', then '.join(axes)}.{inside} On the network: "
        f"{_words(placement_line(context, strategy))}."
    )
    return text, rows


def _readme(
    made: Format,
    launcher: Launcher,
    emitted: Emitted,
    context: Context,
    strategy: Strategy,
    plan: PlanText,
) -> str:
    job = context.job
    # What a check would take otherwise.
    is_other = context.model.moe and job.imbalance_fraction != USUAL_IMBALANCE_FRACTION
    words = [
        *("planner", "check", emitted.files[0].name, "--model", plan.model),
        *("--cluster", plan.cluster, "--gpus", str(strategy.num_gpus)),
        *("--seq-len", str(job.seq_len), "--global-batch", str(job.global_batch)),
        *(["--imbalance", f"{100.0 * job.imbalance_fraction:.15g}"] if is_other else []),
        *(["--documents", job.documents.text] if job.documents else []),
        *(software_options(context.traits) if made.carries(context.traits.name) else []),
    ]
    check = shlex.join(words)
    set_first = [
        *((_code(name), what) for name, what in user_variables(emitted.variables).items()),
        *((f"{_code(one.key)} in {_code(one.file)}", one.what) for one in emitted.open_keys),
    ]
    left = {**own_texts("left_open", made.name), **emitted.left_open}
    ranks, axes = _ranks(context, strategy)
    # A block of shell that no line of the command ends.
    runs = re.findall("`{2,}", check)
    return rendered(
        "README.md.j2",
        str,
        version=__version__,
        made=made,
        launcher=launcher,
        emitted=emitted,
        context=context,
        warning=mismatch(made, context),
        set_first=set_first,
        mock=MOCK,
        figures=_figures(context, strategy),
        interval=range_line(estimate(context, strategy)),
        plan=PLAN,
        decided=[
            (_code(each.key), _code(each.value), _words(each.why)) for each in emitted.decided
        ],
        left_to_user=[(what, _code(keys)) for what, keys in left.items()],
        ranks=ranks,
        axes=axes,
        check=check,
        ticks="`" * (1 + max(map(len, runs), default=2)),
        code=_code,
        words=_words,
    )

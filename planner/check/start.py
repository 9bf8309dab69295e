"""The layout from which a file is repaired, and the file with another strategy written into it."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from planner.check.check import completed_of, file_findings, legality_findings, not_said_yet
from planner.check.result import refusal
from planner.cost.context import Context
from planner.errors import ExpressError, InputError
from planner.formats.format import Finding, Format, ParsedConfig, SourceText
from planner.frameworks.settings import with_optimizer
from planner.query.from_file import ASSUME, Job, read_for
from planner.query.layout import Completed, Layout, complete
from planner.query.values import Values
from planner.spec.strategy import (
    POLICY_COUNT_FIELDS,
    Strategy,
    gpus_of_replica,
    with_policy_on_all_layers,
)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file with a strategy in it, and those that it names."""

    source: SourceText
    reading: ParsedConfig
    errors: tuple[Finding, ...]
    layout: Layout | None  # as the text, read again, states it


@dataclass(frozen=True)
class Start:
    """Start of a file's repair: its complete strategy, legal or not, and the job it must fit."""

    kind: Format
    source: SourceText
    reading: ParsedConfig
    job: Job
    layout: Layout  # whose batch and length every fix keeps
    completed: Completed  # the file as it stands
    num_gpus: int  # that every fix uses

    def written(self, origin: Layout, context: Context, strategy: Strategy) -> Written:
        """Write a strategy into the file and read that; raises ExpressError and InputError.

        What is assumed of script or launcher and stays as ``origin`` has it is not written.
        """
        own, asked = self.layout.context.job, self.job.request
        asked = replace(asked, num_gpus=self.num_gpus, seq_len=own.seq_len)
        request = replace(asked, global_batch=own.global_batch)
        assumed = {name for name, each in self.reading.decisions.items() if each.key == ASSUME}
        assumed |= {"recompute"} if assumed & {*POLICY_COUNT_FIELDS} else set()
        unwritten = without(strategy, origin.strategy, assumed | {*self.layout.assumes})
        source = self.kind.written_into(self.source, context, unwritten)
        reading = read_for(self.kind, self.kind.read(source), request)
        completed = completed_of(self.kind, reading, replace(self.job, request=request))
        errors = errors_of(self.kind, reading, completed)
        return Written(source=source, reading=reading, errors=errors, layout=completed.layout)

    def accepts(
        self,
        origin: Layout,
        context: Context,
        allowed: AbstractSet[tuple[str, str]],
        refused: list[str],
        strategy: Strategy,
    ) -> bool:
        """True if the file can say it with no errors but those allowed; else why is ``refused``."""
        part = self.kind.part(self.reading.settings)
        try:
            made = self.written(origin, context, strategy)
        except (ExpressError, InputError) as error:
            refused.append(str(error))
            return False
        stated = without(strategy, origin.strategy, {*self.layout.assumes})
        rest = [str(one) for one in made.errors if (one.rule, one.key) not in allowed]
        if part is not None and self.kind.part(made.reading.settings) != part:
            rest = [f"the file is for {part}, which does not express it"]
        elif missing := not_stated(context, stated, made.layout):
            rest = [f"the file, read again, does not state {missing}"]
        refused += rest[:1]
        return not rest


def without(strategy: Strategy, origin: Strategy, assumed: AbstractSet[str]) -> Strategy:
    """The strategy with neutral values for assumed fields that are as in the origin."""
    if "recompute" in assumed and strategy.recompute == origin.recompute:
        strategy = with_policy_on_all_layers(strategy, "none")
    if "zero_stage" in assumed and strategy.zero_stage == origin.zero_stage:
        strategy = replace(strategy, zero_stage=0)
    return strategy


LEAST_SEQ_LEN = 512  # nobody trains on less
# What is assumed where nobody says it, what takes least memory, and who can say what is so.
ASSUMED = {
    "zero_stage": {
        "usual": "no launcher shards the states",
        "least": "the launcher shards all states",
        "stated by": "the launcher's own configuration (--assume zero_stage=0 to 3)",
    },
    "recompute": {
        "usual": "nothing is recomputed",
        "least": "all layers are recomputed",
        "stated by": "--assume recompute=full or none",
    },
    "optimizer": {
        "usual": "the optimizer is adam",
        "least": "the optimizer is sgd",
        "stated by": "--assume optimizer=NAME",
    },
    "seq_len": {
        "usual": "sequences have {} tokens",
        "least": f"sequences have {LEAST_SEQ_LEN} tokens",
        "stated by": "--seq-len",
    },
}


def at_least(layout: Layout) -> Layout:
    """The layout under the assumptions that take least memory."""
    context, strategy = layout.context, layout.strategy
    if "zero_stage" in layout.assumes:
        strategy = replace(strategy, zero_stage=3)
    if "recompute" in layout.assumes:
        strategy = with_policy_on_all_layers(strategy, "full")
    if "optimizer" in layout.assumes:
        context = replace(context, traits=with_optimizer(context.traits, "sgd"))
    if "seq_len" in layout.assumes:
        context = context.with_job(seq_len=min(LEAST_SEQ_LEN, context.job.seq_len))
    return replace(layout, context=context, strategy=strategy)


def errors_of(kind: Format, reading: ParsedConfig, completed: Completed) -> tuple[Finding, ...]:
    """Return the errors of a check, except memory."""
    found = file_findings(kind, reading, completed.world, completed.findings)
    if completed.layout is not None:
        found += not_said_yet(list(legality_findings(completed.layout, is_plan=False)), found)
    return tuple(one for one in found if one.severity == "error")


def not_stated(context: Context, strategy: Strategy, layout: Layout | None) -> str:
    """Fields that a file, read again, does not state as they were written."""
    if layout is None:
        return "all of it"
    wanted = _fields(context, strategy)
    found = _fields(layout.context, layout.strategy)
    return ", ".join(name for name, value in wanted.items() if found[name] != value)


def _fields(context: Context, strategy: Strategy) -> dict[str, object]:
    """Every field by name, without what has no effect."""
    job = context.job
    values = {**vars(strategy), "global_batch": job.global_batch, "seq_len": job.seq_len}
    values |= zip(POLICY_COUNT_FIELDS, strategy.policy_counts, strict=True)
    selected = strategy.recompute_modules or context.traits.recompute.selected
    values["recompute_modules"] = selected if strategy.layers_under["selective"] else None
    if strategy.offload == "none":
        values["offload_percent"] = 100
    return values


def start_of(kind: Format, source: SourceText, reading: ParsedConfig, job: Job) -> Start:
    """Complete a file whose numbers may contradict each other or the job.

    The job's GPUs, batch and sequence length come before the file's; data parallelism and
    micro-batches follow. Raises InputError where values cannot be read, the file is for another
    model, or nothing says the batch.
    """
    completed = completed_of(kind, reading, job)
    # Rules that no other layout satisfies.
    unfixable = ("job.value", "job.model", "job.precision", "job.optimizer")
    refuse(
        one
        for one in (*reading.findings, *completed.findings)
        if one.rule in unfixable or one.kind == "bad_value"
    )
    num_gpus = job.request.num_gpus or completed.world.num_gpus
    num_gpus = min(num_gpus, job.cluster.num_accelerators)
    layout = completed.layout
    is_whole = layout is not None and layout.strategy.num_gpus == num_gpus
    # Rules of what the job decides, or what follows from it.
    of_job = ("job.gpus", "job.seq_len", "job.global_batch", "gpus.divide")
    if not is_whole or any(one.rule in of_job for one in completed.findings):
        layout = _without_contradictions(kind, reading, job, completed, num_gpus)
    assert layout is not None
    return Start(kind, source, reading, job, layout, completed, num_gpus)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise InputError with the findings, if there are any."""
    InputError.check(refusal(findings).problems)


def _without_contradictions(
    kind: Format, reading: ParsedConfig, job: Job, completed: Completed, num_gpus: int
) -> Layout:
    """The layout without what follows from the job, which is filled in as it may be."""
    known = completed.world.decisions
    pp = int(known["pp"])
    replica_gpus = int(gpus_of_replica(known))
    dp = max(1, num_gpus // replica_gpus)
    dropped = {"dp", "num_gpus", "global_batch"}
    dropped |= {"seq_len"} if job.request.seq_len else set()
    if pp > job.model.num_blocks:
        dropped.add("pp")
        replica_gpus //= pp
    kept = {name: value for name, value in reading.decisions.items() if name not in dropped}
    asked = replace(job.request, num_gpus=replica_gpus * dp, global_batch=None)
    framework = kind.framework_of(reading)
    free = complete(replace(reading, decisions=kept), replace(job, request=asked), framework)
    if free.layout is None:
        refuse(completed.findings)
        raise InputError.single(reading.path, "layout", "the layout cannot be made out")
    total = job.request.global_batch or known.get("global_batch")
    if not isinstance(total, int):
        raise InputError.single(
            reading.path, "global_batch", "the file does not say it; give --global-batch"
        )
    context = free.layout.context
    strategy = replace(free.layout.strategy, pp=pp, dp=dp)
    # What the file does not state of the batch follows as far as it can in whole numbers.
    if "num_micro_batches" not in reading.decisions:
        number = max(1, total // (dp * strategy.micro_batch))
        strategy = replace(strategy, num_micro_batches=number)
    elif "micro_batch" not in reading.decisions:
        size = max(1, total // (dp * strategy.num_micro_batches))
        strategy = replace(strategy, micro_batch=size)
    return Layout(
        context=context.with_job(global_batch=total),
        strategy=replace(strategy, dp=int(known.get("dp", dp))),
        places=Values(reading).places,
        assumes=free.layout.assumes,
    )

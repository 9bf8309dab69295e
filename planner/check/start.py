"""Where a repair of a configuration file starts: a whole strategy, however broken the file is."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

from planner.check.complete import Completed, complete
from planner.check.job import Job
from planner.check.layout import Layout
from planner.check.values import Values
from planner.errors import InputError, Problem
from planner.formats.finding import Finding
from planner.formats.format import Reading
from planner.spec.strategy import Strategy, gpus_of_replica

FINAL = ("job.value", "job.model", "job.precision", "job.optimizer")
"""Rules that no other layout mends."""
OF_JOB = ("job.gpus", "job.seq_len", "job.global_batch", "gpus.divide")
"""Rules of what the job decides, or what follows from it."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A strategy that may break any rule, and what it is to become legal for."""

    layout: Layout
    num_gpus: int
    """That repairs use."""
    completed: Completed
    """The file as it stands."""


def start_of(reading: Reading, job: Job, framework: str) -> Start:
    """Complete a file whose numbers may contradict each other or the job.

    The job's GPUs, batch and sequence length come before the file's; data parallelism and
    micro-batches follow. Raises InputError where values cannot be read, the file is for another
    model, or nothing says the batch.
    """
    completed = complete(reading, job, framework)
    _refuse(one for one in (*reading.findings, *completed.findings) if _is_final(one))
    num_gpus = min(job.num_gpus or completed.world.num_gpus, job.cluster.num_accelerators)
    layout = completed.layout
    is_whole = layout is not None and layout.num_gpus == num_gpus
    if not is_whole or any(one.rule in OF_JOB for one in completed.findings):
        layout = _loosened(reading, job, framework, completed, num_gpus)
    assert layout is not None
    return Start(layout=layout, num_gpus=num_gpus, completed=completed)


def _is_final(finding: Finding) -> bool:
    return finding.rule in FINAL or finding.kind == "bad_value"


def _refuse(findings: Iterable[Finding]) -> None:
    """Raise InputError with every finding, at its line."""
    problems = [
        Problem(
            where=f"{one.path}:{one.line}" if one.line else one.path,
            key=one.key or "file",
            message=one.message,
        )
        for one in findings
    ]
    if problems:
        raise InputError(problems)


def _loosened(
    reading: Reading, job: Job, framework: str, completed: Completed, num_gpus: int
) -> Layout:
    """The layout without what follows from the job, which is filled in as it may be."""
    known = completed.world.decisions
    pp = int(known["pp"])
    inner = int(gpus_of_replica(known))
    dp = max(1, num_gpus // inner)
    dropped = {"dp", "num_gpus", "global_batch", "seq_len" if job.seq_len else "dp"}
    if pp > job.model.num_blocks:
        dropped.add("pp")
        inner //= pp
    kept = {name: value for name, value in reading.decisions.items() if name not in dropped}
    free = replace(job, num_gpus=inner * dp, global_batch=None)
    layout = complete(replace(reading, decisions=kept), free, framework).layout
    if layout is None:
        _refuse(completed.findings)
        _unknown(reading, "layout", "the layout cannot be made out")
    total = job.global_batch or known.get("global_batch")
    if not isinstance(total, int):
        _unknown(reading, "global_batch", "the file does not say it; give --global-batch")
    strategy = _with_batch(replace(layout.strategy, pp=pp, dp=dp), reading, total)
    return Layout(
        context=replace(layout.context, job=replace(layout.context.job, global_batch=total)),
        strategy=replace(strategy, dp=int(known.get("dp", dp))),
        places=Values(reading).places,
    )


def _unknown(reading: Reading, key: str, message: str) -> NoReturn:
    raise InputError.single(reading.path, key, message)


def _with_batch(strategy: Strategy, reading: Reading, global_batch: int) -> Strategy:
    """What the file does not state of the batch follows as far as it can in whole numbers."""
    if "num_micro_batches" not in reading.decisions:
        number = max(1, global_batch // (strategy.dp * strategy.micro_batch))
        return replace(strategy, num_micro_batches=number)
    if "micro_batch" not in reading.decisions:
        size = max(1, global_batch // (strategy.dp * strategy.num_micro_batches))
        return replace(strategy, micro_batch=size)
    return strategy

"""What can be said of a file without a model or a cluster: contradictions, and the rules."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.check.complete import Completed
from planner.check.degrees import batch_of, gpus_of
from planner.check.values import Values
from planner.formats.format import Reading, World
from planner.spec.strategy import REPLICA_DEGREES, gpus_of_replica

COUNTS = (*range(1, 33), 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
"""Replicas that a job of unknown size may have."""


def lints(
    reading: Reading,
    *,
    num_gpus: int | None,
    of_cluster: int | None,
    global_batch: int | None,
    compute_capability: float = 0.0,
    shape: Mapping[str, Any],
) -> Iterator[Completed]:
    """The file on every number of GPUs that it may be for: what is wrong on all of them is wrong.

    The number is the file's, the job's (``num_gpus``) or the cluster's.
    """
    counts = [of_cluster] if of_cluster else list(_counts(reading, num_gpus))
    for count in counts:
        values = Values(reading)
        gpus = gpus_of(values, asked=num_gpus, of_cluster=count)
        is_open = any(name in reading.left_open for name in (*REPLICA_DEGREES, "num_gpus"))
        dp = None if is_open else gpus.dp
        batch = None if dp is None else batch_of(values, dp, asked=global_batch)
        known: dict[str, Any] = {**shape, **gpus.degrees}
        known |= {"num_gpus": gpus.num_gpus} | ({} if dp is None else {"dp": dp})
        known |= vars(batch) if batch else {}
        known |= {
            name: each.value for name, each in reading.decisions.items() if each.value is not None
        }
        world = World(
            num_gpus=gpus.num_gpus, decisions=known, compute_capability=compute_capability
        )
        findings = () if is_open else tuple(values.findings)
        yield Completed(world=world, layout=None, findings=findings, assumed=())


def _counts(reading: Reading, num_gpus: int | None) -> Iterator[int]:
    values = Values(reading)
    gpus = gpus_of(values, asked=num_gpus, of_cluster=1)
    inner = gpus_of_replica(gpus.degrees)
    if num_gpus or values.whole("num_gpus") or values.whole("dp"):
        yield gpus.num_gpus
        return
    yield from (inner * count for count in COUNTS)

"""The degrees of a layout and its batch, each from what the file and the job say."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.check.values import Values
from planner.limits import MAX_BATCH
from planner.spec.strategy import MODEL_PARALLEL_DEGREES, gpus_of_replica


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """How the GPUs are cut up."""

    num_gpus: int
    degrees: Mapping[str, int]
    """Of MODEL_PARALLEL_DEGREES."""
    dp: int | None
    """None where those do not divide the GPUs."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences: of a micro-batch, of an iteration, and how many micro-batches that takes."""

    micro_batch: int
    num_micro_batches: int
    global_batch: int


def gpus_of(values: Values, *, asked: int | None, of_cluster: int) -> Gpus:
    """GPUs and degrees: from the file, else ``asked`` (the job's), else the whole cluster.

    Contradictions become findings.
    """
    degrees = {name: values.whole(name) or 1 for name in MODEL_PARALLEL_DEGREES}
    inner = gpus_of_replica(degrees)
    names, given = (" x ".join(map(str, each)) for each in (degrees, degrees.values()))
    dp, stated = values.whole("dp"), values.whole("num_gpus")
    product = None if dp is None else dp * inner
    if product is not None and stated is not None and product != stated:
        text = f"dp x {names} must be the {stated} GPUs of the file"
        values.add("gpus.divide", f"{text}; given {dp} x {given} = {product}", "dp", "num_gpus")
    named = stated if stated is not None else product
    if asked is not None and named is not None and asked != named:
        text = f"the file is for {named} GPUs; the job has {asked}"
        values.add("job.gpus", text, "num_gpus", "dp", *MODEL_PARALLEL_DEGREES)
    num_gpus = named or asked or of_cluster
    if num_gpus % inner:
        text = f"{names} must divide the {num_gpus} GPUs; given {given} = {inner}"
        largest_first = sorted(degrees, key=lambda name: -degrees[name])
        values.add("gpus.divide", text, *largest_first, "num_gpus")
        return Gpus(num_gpus=num_gpus, degrees=degrees, dp=None)
    rest = num_gpus // inner
    return Gpus(num_gpus=num_gpus, degrees=degrees, dp=rest if dp in (None, rest) else None)


def batch_of(values: Values, dp: int, *, asked: int | None) -> Batch | None:
    """The batch: what the file leaves open follows; None where nothing does in whole numbers."""
    micro, number = values.whole("micro_batch"), values.whole("num_micro_batches")
    whole = values.whole("global_batch", most=MAX_BATCH)
    names = ("global_batch", "num_micro_batches", "micro_batch", "dp", "num_gpus")
    if asked is not None and whole is not None and asked != whole:
        text = f"the file's global batch is {whole} sequences; the job's is {asked}"
        values.add("job.global_batch", text, "global_batch")
    total = whole if whole is not None else asked
    if micro is not None and number is not None:
        made = dp * micro * number
        if total is not None and made != total:
            rule = "batch.arithmetic" if whole is not None else "job.global_batch"
            text = (
                f"dp x micro-batch x micro-batches must be the global batch of {total}; "
                f"given {dp} x {micro} x {number} = {made}"
            )
            values.add(rule, text, *names)
            return None
        return Batch(micro_batch=micro, num_micro_batches=number, global_batch=made)
    if micro is None and number is None:
        values.assumed.append("micro-batch 1")
    if total is None:
        values.assumed += [] if number else ["one micro-batch per iteration"]
        micro, number = micro or 1, number or 1
        made = dp * micro * number
        return Batch(micro_batch=micro, num_micro_batches=number, global_batch=made)
    factor = dp * (number or micro or 1)
    if total % factor:
        name = "micro-batches" if number else "micro-batch"
        text = f"dp x {name} must divide the global batch of {total}; given {dp} x "
        values.add("batch.arithmetic", f"{text}{factor // dp} = {factor}", *names)
        return None
    rest = total // factor
    if number is not None:
        return Batch(micro_batch=rest, num_micro_batches=number, global_batch=total)
    return Batch(micro_batch=micro or 1, num_micro_batches=rest, global_batch=total)

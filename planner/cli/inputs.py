"""Turns command-line arguments into contexts, collecting every problem before it complains."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.catalog.names import did_you_mean
from planner.cost.context import Context
from planner.cost.kernels import peak_flops_per_s
from planner.errors import InputError, Problem
from planner.frameworks.registry import FRAMEWORKS, load_traits
from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec, Precision
from planner.spec.model import ModelSpec
from planner.units import format_count, parse_count

ANY_FRAMEWORK = "any"
DEFAULT_SEQ_LEN = 8192
DEFAULT_BATCH_TOKENS = 4 * 2**20
DEFAULT_TOKENS_PER_ACCELERATOR = 1024
"""Clusters beyond 4,096 accelerators get a larger default batch, as their runs have."""
SMOOTH_BATCH = 64
"""Batches that are no multiple of this get a hint."""
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Question:
    """Contexts to search, and the defaults that were assumed."""

    contexts: tuple[Context, ...]
    notes: tuple[str, ...]


class Collector:
    """Runs readers and keeps the problems of all of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, where: str, message: str) -> None:
        """Note one problem of a command-line option."""
        self.problems.append(Problem(where="command line", key=where, message=message))

    def read(self, reader: Callable[[], Value]) -> Value | None:
        """Return what ``reader`` returns, or note its problems."""
        try:
            return reader()
        except InputError as error:
            self.problems.extend(error.problems)
            return None

    def count(self, option: str, text: str | None) -> int | None:
        """Read a count such as 4M, or note what is wrong with it."""
        if text is None:
            return None
        try:
            return parse_count(text)
        except ValueError as error:
            self.add(option, str(error))
            return None

    def finish(self) -> None:
        """Raise when anything was noted."""
        if self.problems:
            raise InputError(self.problems)


def _frameworks(collector: Collector, name: str) -> tuple[str, ...]:
    if name == ANY_FRAMEWORK:
        return FRAMEWORKS
    if name in FRAMEWORKS:
        return (name,)
    known = (*FRAMEWORKS, ANY_FRAMEWORK)
    collector.add(
        "--framework",
        f"unknown framework {name!r}; allowed are {', '.join(known)}. {did_you_mean(name, known)}",
    )
    return ()


def _precision(collector: Collector, text: str, cluster: ClusterSpec | None) -> Precision:
    known = get_args(Precision)
    if text not in known:
        collector.add("--precision", f"unknown precision {text!r}; allowed are {', '.join(known)}")
        return "bf16"
    precision: Precision = text  # type: ignore[assignment]
    if cluster is not None:
        try:
            peak_flops_per_s(cluster.accelerator, precision)
        except ValueError as error:
            collector.add("--precision", str(error))
    return precision


def _seq_len(
    collector: Collector, given: int | None, model: ModelSpec | None, notes: list[str]
) -> int | None:
    if given is not None and given < 1:
        collector.add("--seq-len", f"must be at least 1; given {given}")
        return None
    if model is None:
        return given
    if given is None:
        seq_len = min(model.max_seq_len, DEFAULT_SEQ_LEN)
        notes.append(f"sequence length {seq_len} (default: the model's, at most {DEFAULT_SEQ_LEN})")
        return seq_len
    if given > model.max_seq_len:
        notes.append(
            f"sequence length {given}, beyond the {model.max_seq_len} {model.name} was made for"
        )
    return given


def _global_batch(
    collector: Collector,
    sequences: int | None,
    tokens: str | None,
    seq_len: int | None,
    cluster: ClusterSpec | None,
    notes: list[str],
) -> int | None:
    num_tokens = collector.count("--global-batch-tokens", tokens)
    if sequences is not None and tokens is not None:
        collector.add("--global-batch", "contradicts --global-batch-tokens; give one of them")
        return None
    if sequences is not None:
        if sequences < 1:
            collector.add("--global-batch", f"must be at least 1 sequence; given {sequences}")
            return None
        return sequences
    if seq_len is None:
        return None
    if num_tokens is not None:
        batch = round(num_tokens / seq_len)
        if batch < 1:
            collector.add(
                "--global-batch-tokens",
                f"{num_tokens} tokens are less than one sequence of {seq_len}",
            )
            return None
        if batch >= SMOOTH_BATCH and batch % SMOOTH_BATCH:
            rounder = round(batch / SMOOTH_BATCH) * SMOOTH_BATCH
            notes.append(
                f"hint: global batch {batch} has few divisors and so few layouts; "
                f"--global-batch {rounder} has more"
            )
        if batch * seq_len != num_tokens:
            notes.append(
                f"global batch {batch} sequences: {format_count(batch * seq_len)} tokens, "
                f"the nearest to {format_count(num_tokens)}"
            )
        return batch
    if tokens is not None:
        return None
    return _default_batch(seq_len, cluster, notes)


def _default_batch(seq_len: int, cluster: ClusterSpec | None, notes: list[str]) -> int:
    num_accelerators = cluster.num_accelerators if cluster else 0
    target = max(DEFAULT_BATCH_TOKENS, DEFAULT_TOKENS_PER_ACCELERATOR * num_accelerators)
    batch = 1 << max(0, round(math.log2(target / seq_len)))
    notes.append(
        f"global batch {batch} sequences ({format_count(batch * seq_len)} tokens; default: about "
        f"{format_count(target)})"
    )
    return batch


def _assumptions(cluster: ClusterSpec, precision: Precision) -> list[str]:
    """What was filled in about the hardware."""
    accelerator = cluster.accelerator
    notes = list(cluster.assumptions)
    if precision == "bf16" and not accelerator.peak_flops_per_s.get("bf16"):
        notes.append(f"{accelerator.name} has no bf16 rate; planned at its fp16 rate")
    guessed = len(accelerator.assumptions) + len(cluster.node.assumptions)
    if guessed:
        notes.append(
            f"{guessed} figures of {accelerator.name} and {cluster.node.name} have no source; "
            "`planner hardware` marks them assumed"
        )
    return notes


def _unsupported_hardware(names: tuple[str, ...], cluster: ClusterSpec) -> list[str]:
    vendor = cluster.accelerator.vendor
    return [
        f"{name} runs on {vendor} hardware; it is made for {', '.join(vendors)}"
        for name in names
        if vendor not in (vendors := load_traits(name).support.vendors)
    ]


def read_question(
    *,
    model: str,
    cluster: str,
    framework: str,
    precision: str,
    global_batch: int | None,
    global_batch_tokens: str | None,
    seq_len: int | None,
    tokens: str | None,
    margin_percent: float,
) -> Question:
    """Read all arguments; raises one InputError with every problem found."""
    collector, notes = Collector(), list[str]()
    model_spec = collector.read(lambda: load_model(model))
    cluster_spec = collector.read(lambda: load_cluster(cluster))
    names = _frameworks(collector, framework)
    kind = _precision(collector, precision, cluster_spec)
    length = _seq_len(collector, seq_len, model_spec, notes)
    batch = _global_batch(collector, global_batch, global_batch_tokens, length, cluster_spec, notes)
    total = collector.count("--tokens", tokens)
    if not 0.0 <= margin_percent < 100.0:
        collector.add("--margin", f"must be from 0 to below 100 percent; given {margin_percent}")
    collector.finish()
    assert model_spec is not None
    assert cluster_spec is not None
    assert length is not None
    assert batch is not None
    job = JobSpec(global_batch=batch, seq_len=length, precision=kind, total_tokens=total)
    if margin_percent:
        notes.append(f"{margin_percent:g} % of HBM left free for what the model misses (--margin)")
    notes += _assumptions(cluster_spec, kind)
    notes += _unsupported_hardware(names, cluster_spec)
    contexts = tuple(
        Context(
            model=model_spec,
            job=job,
            cluster=cluster_spec,
            traits=load_traits(name),
            margin_fraction=margin_percent / 100.0,
        )
        for name in names
    )
    return Question(contexts=contexts, notes=tuple(notes))


def argument_for_file(argument: str) -> str:
    """Make a path argument absolute so that a saved plan can be read from anywhere."""
    path = Path(argument)
    is_file = path.suffix in (".yaml", ".yml") or "/" in argument
    return str(path.resolve()) if is_file else argument

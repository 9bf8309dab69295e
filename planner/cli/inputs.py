"""Turns command-line arguments into contexts, collecting every problem before it complains."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.catalog.names import did_you_mean
from planner.cli.batch import read_global_batch
from planner.cli.collector import Collector
from planner.cost.context import Context
from planner.cost.kernels import peak_flops_per_s
from planner.frameworks.registry import FRAMEWORKS, load_traits
from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec, Precision
from planner.spec.model import ModelSpec

ANY_FRAMEWORK = "any"
DEFAULT_SEQ_LEN = 8192
MAX_SEQ_LEN = 10**8


@dataclass(frozen=True, kw_only=True)
class Question:
    """Contexts to search, and the defaults that were assumed."""

    contexts: tuple[Context, ...]
    notes: tuple[str, ...]


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
    if given is not None and given > MAX_SEQ_LEN:
        collector.add("--seq-len", f"must be at most {MAX_SEQ_LEN:,}; given {given}")
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
    batch = read_global_batch(
        collector, notes, global_batch, global_batch_tokens, seq_len=length, cluster=cluster_spec
    )
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

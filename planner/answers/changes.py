"""Changes of a question after which more may fit, cheapest first; a machine at another size."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from planner.answers.whatif import Change, Scale
from planner.catalog.clusters import (
    load_cluster,
    load_cluster_of,
    split_host_memory,
    with_host_memory,
)
from planner.cost.context import Context
from planner.cost.stage_model import HOST_USABLE_FRACTION
from planner.errors import InputError
from planner.frameworks.registry import CURRENT, FRAMEWORKS, load_traits, smaller_states
from planner.frameworks.settings import with_optimizer, with_training
from planner.layers.parameters import count_parameters
from planner.query.resolve import Case, place_of, resolve
from planner.query.traits import read_settings
from planner.search.space.narrow import narrowing_of
from planner.spec.cluster import ClusterSpec
from planner.units import GIB

ALLOWABLE = "cross-domain-tp"  # a search leaves it out, and it may take less memory
MARGIN_STEP = 0.005
HOST_STEP_BYTES = 16 * GIB
NOTHING_OFFLOADED = "--forbid offload"
UNLIMITED = 2.0**24  # times the memory there is: more than any layout fills

# Changes of one kind to a question of one framework, those to be tried first in front.
Kind = Callable[[Case], Iterator[Change] | Scale]


def kinds(case: Case) -> list[Kind]:
    """Every kind of change: what costs nothing first, money last.

    ``case`` has all frameworks that were asked; a kind changes the question of one of them.
    """
    asked = {context.traits.name for context in case.contexts}
    return [
        *(partial(without, text=text) for text in case.narrowing.limiting),
        allowed,
        switches,
        smaller_optimizers,
        more_host_memory,
        shorter_sequences,
        less_margin,
        partial(other_frameworks, asked=asked),
        other_batches,
    ]


def changed(
    case: Case,
    context: Context,
    *options: str,
    beside: tuple[str, ...] = (),
) -> Change:
    """A change of the context whose words are its options, but for those ``beside``."""
    return Change(words=" ".join(options), case=case.of(context), options=(*options, *beside))


def narrowed(case: Case, text: str) -> Case | None:
    """The question with one more option; None where the others contradict it."""
    try:
        return replace(case, narrowing=narrowing_of((*case.narrowing.texts, text)))
    except InputError:
        return None


def without(case: Case, text: str) -> Iterator[Change]:
    """The question without one of its options."""
    if text in case.narrowing.texts:
        wider = replace(case, narrowing=case.narrowing.without(text))
        yield Change(words=f"without {text}", case=wider)


def allowed(case: Case) -> Iterator[Change]:
    """Yield the change that adds what a search leaves out unless allowed."""
    wider = narrowed(case, f"--allow {ALLOWABLE}")
    if wider is not None and ALLOWABLE not in case.narrowing.allowed:
        yield Change(words=f"--allow {ALLOWABLE}", case=wider, options=("--allow", ALLOWABLE))


def switches(case: Case) -> Iterator[Change]:
    """The framework's switches that take less memory, one by one, then all of them."""
    listed = [text.split() for text in case.context.traits.support.memory_switches]
    useful = [texts for texts in listed if _switched(case, texts) is not None]
    together = [text for texts in useful for text in texts]
    several = [*useful, together] if len(useful) > 1 else useful
    yield from filter(None, (_switched(case, texts) for texts in several))


def _switched(case: Case, texts: Sequence[str]) -> Change | None:
    """The question with settings; None where they are there already."""
    traits = case.context.traits
    settings = read_settings(texts)
    if set(settings) <= set(traits.settings):
        return None
    paths = {path for path, _ in settings}
    kept = tuple(setting for setting in traits.settings if setting[0] not in paths)
    other = load_traits(traits.name, traits.profile, (*kept, *settings))
    other = with_training(other, traits.training)
    # What the question says otherwise than a profile stays.
    made = replace(
        other,
        recompute=replace(other.recompute, selected=traits.recompute.selected),
        optimizer=traits.optimizer,
        memory_uncertainty_fraction=traits.memory_uncertainty_fraction,
    )
    options = [word for text in texts for word in ("--set", text)]
    return changed(case, replace(case.context, traits=made), *options)


def smaller_optimizers(case: Case) -> Iterator[Change]:
    """The same optimizer with smaller states, the largest of them first."""
    traits = case.context.traits
    names = smaller_states(traits.optimizer.name, traits.name)
    others = [with_optimizer(traits, name) for name in names]
    for other in sorted(others, key=lambda one: -one.optimizer.matrix.element_bytes):
        context = replace(case.context, traits=other)
        yield changed(case, context, "--optimizer", other.optimizer.name)


def more_host_memory(case: Case) -> Scale:
    """More host memory where the framework can use it, up to what the model takes in one node."""
    context = case.context
    have = context.cluster.node.host_memory_bytes or 0.0
    is_used = any(":host" in name for name in context.traits.support.offload)
    # 32 bytes: more than any framework keeps of a parameter, weights and staging included.
    most = 32.0 * count_parameters(context.model) / HOST_USABLE_FRACTION

    def at(steps: int) -> Change:
        wanted = (math.floor(have / HOST_STEP_BYTES) + steps) * HOST_STEP_BYTES
        larger = context.with_node(host_memory_bytes=wanted, host_memory_note="")
        return changed(case, larger, "--host-memory", f"{wanted / GIB:g}GiB")

    lacking = max(0, math.ceil((most - have) / HOST_STEP_BYTES))
    return Scale(at=at, num_steps=lacking if have and is_used else 0)


def shorter_sequences(case: Case) -> Scale:
    """Shorter sequences, the batch in sequences as it is."""
    job = case.context.job
    # Whole multiples of a power of two: 128 steps or more to a sequence, none below 64 tokens.
    most = max(1, job.seq_len // 128)
    step = max(64, 2 ** int(math.log2(most)))
    longest = (job.seq_len - 1) // step

    def at(steps: int) -> Change:
        seq_len = (longest + 1 - steps) * step
        shorter = case.context.with_job(seq_len=seq_len)
        batch = ("--global-batch", str(job.global_batch))
        return changed(case, shorter, "--seq-len", str(seq_len), beside=batch)

    # Less than an eighth of the length is another job.
    least = max(1, math.ceil(job.seq_len / 8 / step))
    return Scale(at=at, num_steps=max(0, longest + 1 - least))


def less_margin(case: Case) -> Scale:
    """Less of HBM left free, down to nothing."""
    num_steps = math.ceil(case.context.margin_fraction / MARGIN_STEP - 1e-9)

    def at(step: int) -> Change:
        smaller = (num_steps - step) * MARGIN_STEP
        context = replace(case.context, margin_fraction=smaller)
        return changed(case, context, "--margin", f"{100.0 * smaller:g}")

    return Scale(at=at, num_steps=num_steps)


def other_frameworks(case: Case, asked: set[str]) -> Iterator[Change]:
    """Frameworks that were not asked for: the question as their command would read it."""
    query, context = case.query, case.context
    profile = () if context.traits.profile == CURRENT else ("--profile", CURRENT)
    for name in FRAMEWORKS:
        if query is None or name in asked:
            continue
        with suppress(InputError):  # it does not offer what was chosen
            other = query.with_(framework=name, profile=None)
            found = resolve(other, num_gpus=context.cluster.num_accelerators).context
            job = replace(found.job, global_batch=context.job.global_batch)
            kept = replace(found, cluster=context.cluster, job=job)
            yield changed(case, kept, "--framework", name, *profile)


def other_batches(case: Case) -> Iterator[Change]:
    """Rounder batches, which have more divisors, then smaller ones."""
    job = case.context.job
    rounder = [math.ceil(job.global_batch / step) * step for step in (8, 64, 512)]
    smaller = [job.global_batch // divisor for divisor in (2, 8)]
    for batch in dict.fromkeys((*rounder, *smaller)):
        if batch not in (0, job.global_batch):
            context = case.context.with_job(global_batch=batch)
            yield changed(case, context, "--global-batch", str(batch))


def with_memory(context: Context, *, hbm: float = 1.0, host: float = 1.0) -> Context:
    """The context with so many times the HBM, host memory and NVMe; the unknown stays so."""
    node = context.cluster.node
    num_bytes, nvme = node.host_memory_bytes, node.nvme_bytes
    return context.with_node(
        accelerator=replace(node.accelerator, hbm_bytes=hbm * node.accelerator.hbm_bytes),
        host_memory_bytes=num_bytes and host * num_bytes,
        nvme_bytes=nvme and host * nvme,
    )


def of_size(case: Case, num_gpus: int) -> Case:
    """The question on another number of the same GPUs, in whole nodes or a part of one.

    As the catalog or the cluster's file has so many; else as many of its own nodes below its
    outermost network level. Levels of the network and shares of a node follow from the number.
    """
    cluster, query = case.context.cluster, case.query
    if num_gpus == cluster.num_accelerators:
        return case
    with suppress(InputError):
        if query is not None:
            place = place_of(query.cluster, query.get("host_memory")) or query.cluster
            machine, host_memory_bytes = split_host_memory(place)
            made = load_cluster_of(str(machine), num_gpus)
            made = with_host_memory(made, host_memory_bytes) if host_memory_bytes else made
            return case.with_each(lambda context: replace(context, cluster=made))
    size = cluster.node.num_accelerators
    num_nodes = -(-num_gpus // size)
    fabric = replace(cluster.fabric, num_accelerators=num_nodes * size)
    grown = replace(cluster, num_nodes=num_nodes, fabric=fabric)
    return case.with_each(lambda context: replace(context, cluster=grown))


def argument_of(cluster: ClusterSpec) -> str:
    """Return the command-line argument of a catalog cluster; empty for one from a file."""
    with suppress(InputError):
        if load_cluster(cluster.name).num_accelerators == cluster.num_accelerators:
            return cluster.name
    return ""


def most_gpus(context: Context) -> int:
    """GPUs of the largest cluster that is looked at: 64 times the nodes, 2**17 GPUs at most."""
    cluster = context.cluster
    per_node = (cluster.node.whole or cluster.node).num_accelerators
    num_nodes = min(64 * cluster.num_nodes, 2**17 // per_node)
    return max(num_nodes, cluster.num_nodes) * per_node

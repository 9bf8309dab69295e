"""Changes of a question after which more may fit: what costs nothing first, money last.

Each says itself in words of the command line, as options that can be added as they stand.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.cost.build import HOST_USABLE_FRACTION
from planner.cost.context import Context
from planner.cost.module_sets import module_sets
from planner.frameworks.optimizers import optimizer_names, smaller_states
from planner.frameworks.registry import CURRENT, FRAMEWORKS, load_traits
from planner.frameworks.settings import (
    usual_mtp_layers,
    with_optimizer,
    with_recompute_modules,
    with_training,
)
from planner.layers.parameters import count_parameters
from planner.plans.limits import narrowing_of
from planner.plans.trait_settings import read_settings
from planner.search.space.narrow import Narrowing
from planner.search.space.offered import not_offered
from planner.spec.strategy import SCHEDULES
from planner.spec.traits import FrameworkTraits
from planner.units import GIB

BATCH_DIVISORS = (2, 8)
BATCH_STEPS = (8, 64, 512)
ALLOWABLE = ("cross-domain-tp",)
"""What a search leaves out, and may take less memory."""
PROFILE = "profile="
MOST_SHORTENING = 8
"""Times shorter sequences are suggested at most."""
LENGTH_STEPS = 128
"""Of a sequence, into which shorter ones are rounded, in steps of a power of two of tokens."""
LEAST_LENGTH_STEP = 64
MARGIN_STEP = 0.005
HOST_STEP_BYTES = 16 * GIB
HOST_BYTES_PER_PARAM = 32.0
"""More than any framework keeps of a parameter, weights and staging included."""

Question = tuple[Context, Narrowing]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change to the question, in the words of the command line."""

    words: str
    question: Question
    options: tuple[str, ...] = ()
    """What to add to the command; ``without --fix ...`` takes an option away instead."""


Maker = Callable[[Question], Iterator[Change]]
"""Changes of one kind, those to be tried first in front."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Changes of one kind by how much: if one lets something fit, those behind it do as well."""

    at: Callable[[int], Change]
    """The change of so many steps."""
    num_steps: int


ScaleMaker = Callable[[Question], Scale | None]


def option_change(question: Question, *options: str) -> Change:
    """A change whose words are its options."""
    return Change(words=" ".join(options), question=question, options=options)


def makers(contexts: Sequence[Context], narrowing: Narrowing) -> list[Maker | ScaleMaker]:
    """Kinds of changes, in the order of what they cost."""

    def dropping(text: str) -> Maker:
        return lambda question: _without(question, text)

    asked = {context.traits.name for context in contexts}
    return [
        *map(dropping, narrowing.limiting),
        _allowed,
        switches,
        smaller_optimizers,
        more_host_memory,
        shorter_sequences,
        less_margin,
        lambda question: _other_frameworks(question, asked),
        _other_batches,
    ]


def _without(question: Question, text: str) -> Iterator[Change]:
    context, narrowing = question
    if text in narrowing.texts:
        yield Change(words=f"without {text}", question=(context, narrowing.without(text)))


def _allowed(question: Question) -> Iterator[Change]:
    context, narrowing = question
    for name in ALLOWABLE:
        if name not in narrowing.allowed:
            text = f"--allow {name}"
            wider = narrowing_of((*narrowing.texts, text))
            yield option_change((context, wider), "--allow", name)


def switches(question: Question) -> Iterator[Change]:
    """The framework's switches that take less memory, one by one, then all of them."""
    switches = [text.split() for text in question[0].traits.support.memory_switches]
    useful = [texts for texts in switches if _switched(question, texts) is not None]
    everything = [text for texts in useful for text in texts]
    for texts in [*useful, *([everything] if len(useful) > 1 else [])]:
        change = _switched(question, texts)
        if change is not None:
            yield change


def _switched(question: Question, texts: Sequence[str]) -> Change | None:
    """The question with a profile, settings or both; None where they are there already."""
    context, narrowing = question
    traits = context.traits
    profiles = [text.removeprefix(PROFILE) for text in texts if text.startswith(PROFILE)]
    plain = [f"traits.{text}" for text in texts if not text.startswith(PROFILE)]
    if profiles and traits.profile != CURRENT:
        return None
    settings = read_settings(plain)
    paths = {path for path, _ in settings}
    kept = tuple(setting for setting in traits.settings if setting[0] not in paths)
    profile = profiles[0] if profiles else traits.profile
    made = load_traits(traits.name, profile, (*kept, *settings))
    if profile == traits.profile and set(settings) <= set(traits.settings):
        return None
    options = [word for text in plain for word in ("--set", text)]
    options = [*(["--profile", profile] if profiles else []), *options]
    changed = replace(context, traits=_like(traits, made))
    return option_change((changed, narrowing), *options)


def smaller_optimizers(question: Question) -> Iterator[Change]:
    """The same optimizer with smaller states, the largest of them first."""
    context, narrowing = question
    traits = context.traits
    others = [
        with_optimizer(traits, name) for name in smaller_states(traits.optimizer.name, traits.name)
    ]
    for other in sorted(others, key=lambda one: -one.optimizer.matrix.element_bytes):
        changed = replace(context, traits=other)
        yield option_change((changed, narrowing), "--optimizer", other.optimizer.name)


def more_host_memory(question: Question) -> Scale | None:
    """More host memory in every node, where the framework can use it."""
    context, narrowing = question
    have = context.cluster.node.host_memory_bytes
    if not have or not any(":host" in name for name in context.traits.support.offload):
        return None

    def at(steps: int) -> Change:
        wanted = (math.floor(have / HOST_STEP_BYTES) + steps) * HOST_STEP_BYTES
        options = ("--host-memory", f"{wanted / GIB:g}GiB")
        return option_change((with_host_bytes(context, wanted), narrowing), *options)

    return Scale(at=at, num_steps=_most_host_steps(context))


def _most_host_steps(context: Context) -> int:
    """Up to what the whole model takes in one node."""
    most = HOST_BYTES_PER_PARAM * count_parameters(context.model) / HOST_USABLE_FRACTION
    have = context.cluster.node.host_memory_bytes or 0.0
    return max(0, math.ceil((most - have) / HOST_STEP_BYTES))


def with_host_bytes(context: Context, num_bytes: float) -> Context:
    """The context with so much host memory in every node."""
    node = replace(context.cluster.node, host_memory_bytes=num_bytes, host_memory_note="")
    return replace(context, cluster=replace(context.cluster, node=node))


def shorter_sequences(question: Question) -> Scale | None:
    """Shorter sequences, the batch in sequences as it is."""
    context, narrowing = question
    job = context.job
    step = max(LEAST_LENGTH_STEP, 2 ** int(math.log2(max(1, job.seq_len // LENGTH_STEPS))))
    longest = (job.seq_len - 1) // step

    def at(steps: int) -> Change:
        seq_len = (longest + 1 - steps) * step
        shorter = replace(context, job=replace(job, seq_len=seq_len))
        batch = ("--global-batch", str(job.global_batch))
        return Change(
            words=f"--seq-len {seq_len}",
            question=(shorter, narrowing),
            options=("--seq-len", str(seq_len), *batch),
        )

    least = max(1, math.ceil(job.seq_len / MOST_SHORTENING / step))
    return Scale(at=at, num_steps=max(0, longest + 1 - least))


def less_margin(question: Question) -> Scale | None:
    """Less of HBM left free, down to nothing."""
    context, narrowing = question
    margin = context.margin_fraction
    steps = math.ceil(margin / MARGIN_STEP - 1e-9)

    def at(step: int) -> Change:
        smaller = (steps - step) * MARGIN_STEP
        changed = replace(context, margin_fraction=smaller)
        return option_change((changed, narrowing), "--margin", f"{100.0 * smaller:g}")

    return Scale(at=at, num_steps=steps) if steps else None


def _like(asked: FrameworkTraits, other: FrameworkTraits) -> FrameworkTraits:
    """Other traits of the same framework with the margin, optimizer and modules chosen."""
    recompute = replace(other.recompute, selected=asked.recompute.selected)
    other = with_training(other, asked.training)
    return replace(
        other,
        recompute=recompute,
        optimizer=asked.optimizer,
        memory_uncertainty_fraction=asked.memory_uncertainty_fraction,
    )


def _other_frameworks(question: Question, asked: set[str]) -> Iterator[Change]:
    context, narrowing = question
    profile = () if context.traits.profile == CURRENT else ("--profile", CURRENT)
    for name in FRAMEWORKS:
        other = None if name in asked else other_framework(context, name)
        if other is not None and not_offered(other, narrowing) is None:
            yield option_change((other, narrowing), "--framework", name, *profile)


def other_framework(context: Context, name: str) -> Context | None:
    """The question asked of another framework, as its command would read it.

    What the user chose (settings, margin, optimizer, modules, schedules, placement) is kept, what
    was a default becomes the other's own. None where it does not offer what was chosen.
    """
    own = context.traits
    default = load_traits(own.name, own.profile, own.settings)
    if own.optimizer.name not in optimizer_names(name):
        return None
    traits = with_optimizer(load_traits(name, CURRENT, own.settings), own.optimizer.name)
    if own.training.is_frozen:
        if own.training.mode not in traits.support.train:
            return None
        traits = with_training(traits, own.training)
    margin, usual = own.memory_uncertainty_fraction, default.memory_uncertainty_fraction
    if margin != usual or context.margin_fraction != margin:
        traits = replace(traits, memory_uncertainty_fraction=context.margin_fraction)
    if own.recompute.selected != default.recompute.selected:
        known = {module.name for module in traits.recompute.modules}
        if not set(own.recompute.selected) <= known:
            return None
        traits = with_recompute_modules(traits, own.recompute.selected)
    placements = _kept(context.placements, default.support.placements, traits.support.placements)
    asked = tuple(one for one in SCHEDULES if one in default.support.schedules)
    schedules = _kept(context.schedules, asked, traits.support.schedules)
    if not placements or not schedules:
        return None
    layers, usual = context.job.mtp_layers, usual_mtp_layers(context.model, default)
    if layers == usual:
        layers = usual_mtp_layers(context.model, traits)
    elif layers and not traits.support.trains_mtp:
        return None
    other = replace(
        context,
        job=replace(context.job, mtp_layers=layers),
        traits=traits,
        margin_fraction=traits.memory_uncertainty_fraction,
        placements=placements,
        schedules=tuple(one for one in SCHEDULES if one in schedules),
        module_sets=(),
    )
    return replace(other, module_sets=module_sets(other)) if context.module_sets else other


def _kept(
    given: tuple[str, ...], default: tuple[str, ...], offered: tuple[str, ...]
) -> tuple[str, ...]:
    """Of what was given the part that is offered; all that is where nothing was given."""
    if not given or set(given) == set(default):
        return offered
    return tuple(one for one in given if one in offered)


def _other_batches(question: Question) -> Iterator[Change]:
    """Rounder batches, which have more divisors, then smaller ones."""
    context, narrowing = question
    batch = context.job.global_batch
    rounder = [-(-batch // step) * step for step in BATCH_STEPS]
    smaller = [batch // divisor for divisor in BATCH_DIVISORS]
    for other in dict.fromkeys((*rounder, *smaller)):
        if other not in (0, batch):
            changed = replace(context, job=replace(context.job, global_batch=other))
            yield option_change((changed, narrowing), "--global-batch", str(other))

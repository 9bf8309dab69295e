"""What is trained, from the options of a command."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeAlias

from planner.cli.collector import Collector
from planner.frameworks.settings import with_training
from planner.layers.adapter_sizes import training_problem
from planner.spec.job import Precision
from planner.spec.model import ModelSpec
from planner.spec.training import (
    ALL_LINEAR,
    FULL,
    MAX_RANK,
    MODES,
    USUAL_RANK,
    Mode,
    Training,
    read_targets,
)
from planner.spec.traits import FrameworkTraits

TrainingOptions: TypeAlias = tuple[str, int | None, str | None]
"""``--train``, ``--lora-rank`` and ``--lora-targets`` as given."""
DEFAULT_FRAMEWORK, ADAPTER_FRAMEWORK = "megatron", "accelerate"
ALL_WEIGHTS: TrainingOptions = ("full", None, None)


WITH_A_REFERENCE = ("dpo", "kto", "orpo", "simpo", "ppo", "grpo", "rlhf", "rl")
SEVERAL_MODELS = (
    "Several models at once are not planned: plan the one that is trained as full, lora or qlora, "
    "and leave room for a frozen reference with --margin PERCENT of HBM: its weights take 2 bytes "
    "a parameter, over the GPUs that share them"
)
"""What can be asked in place of preference tuning and reinforcement learning."""


def usual_framework(training: TrainingOptions, notes: list[str]) -> str:
    """Where none is named: of full training, and of adapters, which not every framework trains."""
    if training[0] == "full":
        return DEFAULT_FRAMEWORK
    notes.append(f"{ADAPTER_FRAMEWORK} (default for adapters; --framework names another)")
    return ADAPTER_FRAMEWORK


def read_training(collector: Collector, given: TrainingOptions, notes: list[str]) -> Training:
    """What the options say is trained; notes what they leave open."""
    word, rank, targets = given
    mode = next((each for each in MODES if each == word), None)
    if mode is None:
        allowed = ", ".join(MODES)
        instead = f". {SEVERAL_MODELS}" if word.strip().lower() in WITH_A_REFERENCE else ""
        message = f"unknown way to train {word!r}; allowed are {allowed}{instead}"
        collector.add("--train", message)
        return FULL
    if mode == "full":
        for option, value in (("--lora-rank", rank), ("--lora-targets", targets)):
            if value is not None:
                collector.add(option, "belongs to --train lora or qlora; given full")
        return FULL
    return _adapters(collector, mode, rank, targets, notes)


def _adapters(
    collector: Collector,
    mode: Mode,
    rank: int | None,
    targets: str | None,
    notes: list[str],
) -> Training:
    if rank is not None and not 1 <= rank <= MAX_RANK:
        collector.add("--lora-rank", f"must be from 1 to {MAX_RANK:,}; given {rank}")
        return FULL
    chosen = collector.parsed("--lora-targets", targets or ALL_LINEAR, read_targets)
    if chosen is None:
        return FULL
    if rank is None:
        notes.append(f"adapters of rank {USUAL_RANK} (--lora-rank changes it)")
    return Training(mode=mode, rank=rank or USUAL_RANK, targets=chosen)


def _problems(
    traits: FrameworkTraits, training: Training, model: ModelSpec | None, precision: Precision
) -> Iterator[tuple[str, str]]:
    """Options that a framework which trains so refuses, and why."""
    support = traits.support
    if precision not in support.frozen_precisions:
        allowed = ", ".join(support.frozen_precisions)
        message = f"{training.mode} under {traits.name} computes in {allowed} here"
        yield "--precision", f"{message}; given {precision}"
    if model is None:
        return
    option, message = training_problem(
        model, training, support.joined_families, joined=traits.kernels.joins_adapters
    )
    if message:
        yield option, message


def training_so(
    collector: Collector,
    chosen: Sequence[FrameworkTraits],
    training: Training,
    model: ModelSpec | None,
    precision: Precision,
    notes: list[str],
) -> list[FrameworkTraits]:
    """The frameworks that train so, as they do; those of several that do not are noted."""
    if not training.is_frozen:
        return list(chosen)
    able = [traits for traits in chosen if training.mode in traits.support.train]
    left = ", ".join(traits.name for traits in chosen if traits not in able)
    if able and left:
        notes.append(f"left out for --train {training.mode}: {left}")
    problems = dict.fromkeys(
        problem for traits in able for problem in _problems(traits, training, model, precision)
    )
    for option, message in problems:
        collector.add(option, message)
    found = [collector.read(partial(with_training, traits, training)) for traits in able or chosen]
    return [traits for traits in found if traits is not None]

"""Strategies drawn from real search spaces of DeepSpeed, for several test folders."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import contexts
from enumerated import enumerate_space

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.formats.decision import reasons
from planner.formats.deepspeed.decisions import TABLE
from planner.formats.format import Located
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_optimizer
from planner.search.space.interleaving import default_layers
from planner.spec.job import JobSpec, Precision
from planner.spec.strategy import (
    Strategy,
    StrategyColumns,
)

QUESTIONS: tuple[tuple[str, str, str, str, Precision, int], ...] = (
    ("llama3-8b", "1xdgx-h100", "current", "adam", "bf16", 64),
    ("llama3.1-70b", "4xdgx-h100", "current", "adam-bf16", "bf16", 96),
    ("gpt3-13b", "2xdgx-a100-640", "megatron", "adam", "fp16", 48),
    ("gpt2-xl", "1xdgx-a100-640", "megatron-bf16", "sgd-momentum", "bf16", 40),
    ("llama3-8b", "2xdgx-h100", "zero++", "lion", "bf16", 64),
    ("mixtral-8x7b", "2xdgx-h100", "current", "adafactor", "bf16", 32),
    ("opt-13b", "2xdgx-h100", "current", "muon", "bf16", 64),
    ("llama3-8b", "4xdgx-h100", "current", "sgd", "bf16", 48),
)
"""Model, cluster, profile, optimizer, precision and global batch."""


def context_of(question: tuple[str, str, str, str, Precision, int]) -> Context:
    model, cluster, profile, optimizer, precision, batch = question
    return Context(
        model=load_model(model),
        job=JobSpec(global_batch=batch, seq_len=2048, precision=precision),
        cluster=load_cluster(cluster),
        traits=with_optimizer(load_traits("deepspeed", profile), optimizer),
    )


@cache
def spaces() -> tuple[tuple[Context, StrategyColumns], ...]:
    contexts = [context_of(question) for question in QUESTIONS]
    return tuple((context, enumerate_space(context).strategy) for context in contexts)


def _layers(context: Context, pp: int, pick: random.Random) -> tuple[int, ...]:
    """As equal as can be, or with layers moved between stages."""
    layers = list(default_layers(context.model.num_blocks, pp, 1))
    for _ in range(pick.randrange(3)):
        giver, taker = pick.randrange(pp), pick.randrange(pp)
        if layers[giver] > 1:
            layers[giver] -= 1
            layers[taker] += 1
    return tuple(layers)


def draw(pick: random.Random) -> tuple[Context, Strategy]:
    """One legal strategy with a random split and random recomputation."""
    context, columns = pick.choice(spaces())
    row = columns.values(pick.randrange(len(columns)))
    layers = _layers(context, row["pp"], pick)
    full = tuple(pick.choice((0, count, pick.randint(0, count))) for count in layers)
    selective = tuple(pick.choice((0, n - m)) for n, m in zip(layers, full, strict=True))
    none = (0,) * len(layers)
    return context, Strategy(
        **row,
        layers_per_stage=layers,
        recompute_layers_per_stage=pick.choice((none, full)),
        selective_layers_per_stage=pick.choice((none, selective)),
    )


def expressible(seed: int) -> Iterator[tuple[Context, Strategy]]:
    """Strategies that a DeepSpeed file can hold, without an end."""
    pick = random.Random(seed)
    while True:
        context, strategy = draw(pick)
        if not reasons(TABLE, context, strategy):
            yield context, strategy


def canonical(context: Context, strategy: Strategy) -> Strategy:
    """The strategy as a file can say it: modules by name, no percent without offload."""
    modules = strategy.recompute_modules
    if any(strategy.selective_layers_per_stage):
        modules = context.traits.recompute.selected if modules is None else modules
    percent = strategy.offload_percent if "optimizer" in strategy.offload else 100
    return replace(strategy, recompute_modules=modules, offload_percent=percent)


def strategy_of(context: Context, decisions: dict[str, Located]) -> Strategy:
    """The strategy that decisions describe, everything they leave out neutral."""
    found = {name: value.value for name, value in decisions.items()}
    neutral = {"zero_stage": 0, "layers_per_stage": (context.model.num_blocks,)}
    fields = Strategy.__dataclass_fields__.keys()
    return contexts.strategy_of(**neutral | {k: v for k, v in found.items() if k in fields})

"""Strategies drawn from real enumerations, for formats of Megatron."""

from dataclasses import replace
from functools import cache

import contexts
import numpy as np
from enumerated import enumerate_space

from planner.cost.context import Context
from planner.frameworks.settings import with_optimizer
from planner.schedules.closed_form import chunk_layers
from planner.search.space.interleaving import default_layers
from planner.spec.job import Precision
from planner.spec.strategy import (
    PLACEMENT_NAMES,
    PLACEMENTS,
    POLICY_COUNT_FIELDS,
    Strategy,
    StrategyColumns,
    split_values,
)

Row = tuple[Context, Strategy]
SHARDED_CASES = (0, 2, 3, 4, 9, 11)  # whose profile and optimizer have ZeRO stages 2 and 3
# Model, cluster, global batch, sequence length, precision, profile, optimizer.
CASES: tuple[tuple[str, str, int, int, Precision, str, str], ...] = (
    ("llama3-8b", "1xdgx-h100", 64, 8192, "bf16", "current", "adam"),
    ("llama3-70b", "8xdgx-h100", 256, 8192, "fp8", "current", "adam-bf16"),
    ("llama3.1-405b", "16xdgx-h100", 128, 32768, "bf16", "bridge", "adam"),
    ("mixtral-8x7b", "8xdgx-h100", 128, 4096, "bf16", "current", "adam"),
    ("qwen3-30b-a3b", "4xdgx-h100", 128, 4096, "fp8_block", "bridge", "adam"),
    ("deepseek-v3", "16xdgx-h100", 512, 4096, "fp8", "current", "muon"),
    ("gpt3-175b-megatron", "16xdgx-h100", 96, 2048, "fp16", "no-overlap", "adam"),
    ("nemotron-4-15b", "2xdgx-h100", 64, 4096, "mxfp8", "current", "sgd-momentum"),
    ("qwen2.5-7b", "2xdgx-h100", 48, 4096, "bf16", "current", "sgd"),
    ("gpt2-xl", "1xdgx-h100", 64, 1024, "bf16", "current", "adam"),
    ("gpt-oss-20b", "2xdgx-h100", 64, 4096, "bf16", "current", "adam"),
    ("glm-4.5-air", "8xdgx-h100", 128, 8192, "fp4", "current", "adam"),
    ("kimi-k2", "32xdgx-h100", 512, 8192, "bf16", "no-overlap", "adam"),
    ("deepseek-v3.2", "32xdgx-h100", 512, 8192, "bf16", "current", "adam"),
)


@cache
def context_of(case: int) -> Context:
    model, cluster, batch, seq_len, precision, profile, optimizer = CASES[case]
    job = {"global_batch": batch, "seq_len": seq_len, "precision": precision}
    context = contexts.context_of(model=model, cluster=cluster, profile=profile, **job)
    traits = with_optimizer(context.traits, optimizer)
    return replace(context, traits=traits, placements=PLACEMENT_NAMES[: len(PLACEMENTS)])


@cache
def space_of(case: int) -> StrategyColumns:
    return enumerate_space(context_of(case), uses_all=True).strategy


def draw_sharded(seed: int, case: int) -> Row:
    """A legal strategy of ZeRO stage 2 or 3; ValueError where the case has none."""
    columns = space_of(case)
    return draw(seed, case, columns.take(np.flatnonzero(columns.zero_stage > 1)))


def draw(seed: int, case: int, columns: StrategyColumns | None = None) -> Row:
    """A legal strategy with stages as uneven and recomputed as chance has it."""
    rng = np.random.default_rng(seed)
    context = context_of(case)
    columns = space_of(case) if columns is None else columns
    number = columns.values(int(rng.integers(len(columns))))
    layers = list(default_layers(context.model.num_blocks, number["pp"], number["vpp"]))
    if number["vpp"] == 1 and number["pp"] > 1:
        for _ in range(int(rng.integers(4))):
            source, target = (int(n) for n in rng.integers(number["pp"], size=2))
            if source != target and layers[source] > 1:
                layers[source], layers[target] = layers[source] - 1, layers[target] + 1
    strategy = Strategy(**number, **split_values(layers, {}))
    return context, with_policy(context, strategy, rng)


def with_policy(context: Context, strategy: Strategy, rng: np.random.Generator) -> Strategy:
    """No recomputation, selective, full, a number of layers per chunk, or activations offloaded."""
    layers = strategy.layers_per_stage
    kind = rng.choice(["none", "selective", "full", "block", "offloaded"])
    if kind == "selective":
        known = [module.name for module in context.traits.recompute.modules]
        modules = ("core_attn", "layernorm") if rng.random() < 0.5 else None
        assert modules is None or set(modules) <= set(known)
        return replace(strategy, selective_layers_per_stage=layers, recompute_modules=modules)
    if kind == "full":
        return replace(strategy, recompute_layers_per_stage=layers)
    if kind == "block":
        chunks = chunk_layers(layers, strategy.vpp) if strategy.vpp > 1 else layers
        most = int(rng.integers(1, max(chunks) + 1))
        counts = [min(n, most) for n in chunks]
        full = tuple(sum(counts[stage :: strategy.pp]) for stage in range(strategy.pp))
        return replace(strategy, recompute_layers_per_stage=full)
    if kind == "offloaded" and strategy.pp == 1:
        return replace(strategy, offloaded_layers_per_stage=(int(rng.integers(1, layers[0])),))
    return strategy


# What stands where a file says nothing.
NEUTRAL: dict[str, object] = dict.fromkeys(("dp_replicate", "tp", "pp", "vpp", "cp", "ep"), 1)
NEUTRAL |= {"zero_stage": 0, "sequence_parallel": False, "offload": "none", "schedule": "1f1b"}
NEUTRAL |= {"offload_percent": 100, "placement": PLACEMENT_NAMES[0]}


def planned(context: Context, strategy: Strategy) -> dict[str, object]:
    """The decisions of a plan by the names of DECISIONS, but the number of processes."""
    names = (*NEUTRAL, "etp", "layers_per_stage", "micro_batch")
    found: dict[str, object] = {name: getattr(strategy, name) for name in names}
    found |= dict(zip(POLICY_COUNT_FIELDS, strategy.policy_counts, strict=True))
    found |= {name: getattr(context.job, name) for name in ("global_batch", "seq_len", "precision")}
    found["optimizer"] = context.traits.optimizer.name
    if any(strategy.selective_layers_per_stage):
        modules = strategy.recompute_modules
        selected = context.traits.recompute.selected if modules is None else modules
        found["recompute_modules"] = selected
    return found


def understood(decisions: dict[str, object], strategy: Strategy) -> dict[str, object]:
    """Decisions of a reading, neutral where the file says nothing."""
    empty = dict.fromkeys(POLICY_COUNT_FIELDS, (0,) * strategy.pp)
    return NEUTRAL | empty | {"etp": decisions.get("tp", 1)} | decisions

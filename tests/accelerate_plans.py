"""Strategies for the formats of Accelerate, drawn from the spaces a search enumerates."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from enumerated import enumerate_space

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_optimizer
from planner.search.space.interleaving import default_layers
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.spec.job import JobSpec
from planner.spec.strategy import (
    Strategy,
    StrategyColumns,
    split_values,
)

Case = tuple[Context, Strategy]
JOBS = (
    ("llama3-8b", "2xdgx-h100", "accelerate", 32, 4096),
    ("llama3-8b", "1xdgx-h100", "accelerate", 16, 32768),
    ("llama3-70b", "4xdgx-h100", "accelerate", 64, 8192),
    ("gpt2-xl", "1xdgx-a100-640", "accelerate", 24, 1024),
    ("mixtral-8x7b", "2xdgx-h100", "accelerate", 32, 4096),
    ("llama3-8b", "2xdgx-h100", "deepspeed", 32, 4096),
    ("llama3-8b", "2xdgx-h100", "megatron", 32, 4096),
    ("mixtral-8x7b", "2xdgx-h100", "megatron", 32, 4096),
    ("llama3-8b", "2xdgx-h100", "torchtitan", 32, 4096),
)
PRECISIONS = ("bf16", "fp16", "fp8")
OPTIMIZERS = ("adam", "sgd", "sgd-momentum")
ONE_CHUNK = Narrowing(values={"vpp": (1,)})
DATA_PARALLEL = Narrowing(values={"pp": (1,), "tp": (1,), "vpp": (1,)})
NARROWED = {"accelerate": EVERYTHING, "deepspeed": DATA_PARALLEL}


@cache
def context_of(index: int) -> Context:
    model, cluster, framework, batch, length = JOBS[index]
    return Context(
        model=load_model(model),
        job=JobSpec(global_batch=batch, seq_len=length),
        cluster=load_cluster(cluster),
        traits=load_traits(framework),
    )


@cache
def columns_of(index: int) -> StrategyColumns:
    return enumerate_space(context_of(index), NARROWED.get(JOBS[index][2], ONE_CHUNK)).strategy


def drawn(rng: random.Random, index: int) -> Case:
    """A legal layout with whole, no or partial recomputation and, at times, uneven stages."""
    context, columns = context_of(index), columns_of(index)
    row = rng.randrange(len(columns))
    values = columns.values(row)
    pp = values["pp"]
    layers = default_layers(context.model.num_blocks, pp, values["vpp"])
    if pp == 2 and values["vpp"] == 1 and rng.random() < 0.5:
        layers = (layers[0] + 1, layers[1] - 1)
    most = min(layers)
    full = rng.choice([(0,) * pp, (0,) * pp, layers, layers, (rng.randint(0, most),) * pp])
    optimizer = rng.choice(OPTIMIZERS)
    traits = context.traits
    if context.traits.name != "torchtitan" and values["zero_stage"] != 1:
        traits = with_optimizer(traits, optimizer)
    job = replace(context.job, precision=rng.choice(PRECISIONS[: 2 + (rng.random() < 0.2)]))
    strategy = Strategy(**values, **split_values(layers, {"full": full}))
    return replace(context, traits=traits, job=job), strategy


def cases(seed: int) -> Iterator[Case]:
    """Layouts without end, all jobs in turn; the same ones for the same seed."""
    rng = random.Random(seed)
    while True:
        for index in range(len(JOBS)):
            yield drawn(rng, index)

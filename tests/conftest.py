"""What many tests start from: small models, clusters with little memory, whole contexts."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.frameworks.registry import load_traits
from planner.layers.op import LayerShape
from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec, Precision
from planner.spec.model import Biases, ModelSpec
from planner.spec.strategy import StrategyColumns


def make_model(**changes: object) -> ModelSpec:
    """A GPT of a few layers; every dimension is a power of two."""
    sizes: dict[str, object] = {
        "name": "small",
        "num_layers": 4,
        "hidden_size": 1024,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_dim": 64,
        "ffn_size": 4096,
        "vocab_size": 32000,
        "max_seq_len": 1024,
        "biases": Biases(qkv=True, attention_output=True, mlp=True),
    }
    return ModelSpec(**{**sizes, **changes})


def with_hbm(cluster: ClusterSpec, hbm_bytes: float) -> ClusterSpec:
    """The cluster with accelerators of another memory size."""
    accelerator = replace(cluster.accelerator, hbm_bytes=hbm_bytes)
    return replace(cluster, node=replace(cluster.node, accelerator=accelerator))


def make_context(
    *,
    model: ModelSpec | str | None = None,
    cluster: str = "1xdgx-h100",
    framework: str = "megatron",
    profile: str = "current",
    global_batch: int = 16,
    seq_len: int = 1024,
    hbm_bytes: float | None = None,
    precision: Precision = "bf16",
) -> Context:
    """A context from names; ``model`` may be a spec."""
    machines = load_cluster(cluster)
    if model is None or isinstance(model, str):
        model = load_model(model) if model else make_model()
    return Context(
        model=model,
        job=JobSpec(global_batch=global_batch, seq_len=seq_len, precision=precision),
        cluster=with_hbm(machines, hbm_bytes) if hbm_bytes else machines,
        traits=load_traits(framework, profile),
    )


def make_columns(**values: object) -> StrategyColumns:
    """Columns from scalars and lists; else 1 (0 for codes, ZeRO and sp; 100 percent)."""
    codes = ("zero_stage", "offload", "placement", "sequence_parallel", "schedule")
    defaults = dict.fromkeys(codes, 0) | {"offload_percent": 100}
    given = {
        field.name: np.atleast_1d(values.pop(field.name, defaults.get(field.name, 1)))
        for field in fields(StrategyColumns)
    }
    assert not values, f"unknown columns {sorted(values)}"
    length = max(len(column) for column in given.values())
    return StrategyColumns(**{k: np.broadcast_to(v, length).copy() for k, v in given.items()})


def make_shape(
    *, micro_batch: int = 1, seq_len: int = 1024, tp: int = 1, cp: int = 1, ep: int = 1, sp: int = 0
) -> LayerShape:
    """The shape of one micro-batch, as columns of length one."""
    return LayerShape(
        micro_batch=np.array([float(micro_batch)]),
        seq_len=seq_len,
        tp=np.array([float(tp)]),
        cp=np.array([float(cp)]),
        ep=np.array([float(ep)]),
        sequence_parallel=np.array([sp]),
    )


@pytest.fixture(scope="session")
def small_model() -> Callable[..., ModelSpec]:
    return make_model


@pytest.fixture(scope="session")
def context_of() -> Callable[..., Context]:
    return make_context


@pytest.fixture(scope="session")
def columns_of() -> Callable[..., StrategyColumns]:
    return make_columns


@pytest.fixture(scope="session")
def shape_of() -> Callable[..., LayerShape]:
    return make_shape

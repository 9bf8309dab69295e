"""Small models, contexts, columns and strategies that many tests start from."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from planner.answers.base import Plan
from planner.answers.layout import fill_in, requested
from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.frameworks.registry import load_traits
from planner.layers.op import LayerShape
from planner.spec.cluster import ClusterSpec, LevelSpec
from planner.spec.job import JobSpec, Precision
from planner.spec.model import Biases, ModelSpec
from planner.spec.strategy import Strategy, StrategyColumns
from planner.spec.traits import FrameworkTraits


def small_model(**changes: object) -> ModelSpec:
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


def of_levels(*levels: LevelSpec, package: LevelSpec | None = None) -> ClusterSpec:
    """H100s in these levels, the scale-up domain first, without measured collectives."""
    domain, *inner, fabric = levels
    base = load_cluster("1xdgx-h100")
    size = domain.num_accelerators
    accelerator = replace(base.accelerator, collectives={})
    machine = {"num_accelerators": size, "scale_up": domain, "package": package}
    node = replace(base.node, accelerator=accelerator, **machine)
    number = fabric.num_accelerators // size
    return replace(base, node=node, num_nodes=number, fabric=fabric, inner_fabric=tuple(inner))


def context_of(
    *,
    model: ModelSpec | str | None = None,
    cluster: str = "1xdgx-h100",
    framework: str = "megatron",
    profile: str = "current",
    global_batch: int = 16,
    seq_len: int = 1024,
    hbm_bytes: float | None = None,
    precision: Precision = "bf16",
    mtp_layers: int = 0,
) -> Context:
    """A context from names; ``model`` may be a spec."""
    machines = load_cluster(cluster)
    if model is None or isinstance(model, str):
        model = load_model(model) if model else small_model()
    return Context(
        model=model,
        job=JobSpec(
            global_batch=global_batch,
            seq_len=seq_len,
            precision=precision,
            mtp_layers=mtp_layers,
        ),
        cluster=with_hbm(machines, hbm_bytes) if hbm_bytes else machines,
        traits=load_traits(framework, profile),
    )


def changed_traits(traits: FrameworkTraits, **parts: Mapping[str, Any]) -> FrameworkTraits:
    """The traits with other values in some of their parts (``overlap``, ``states``, ...)."""
    made = {name: replace(getattr(traits, name), **changes) for name, changes in parts.items()}
    return replace(traits, **made)


def with_traits(context: Context, **parts: Mapping[str, Any]) -> Context:
    """The context with traits of other values in some of their parts."""
    return replace(context, traits=changed_traits(context.traits, **parts))


def columns_of(**values: object) -> StrategyColumns:
    """Columns from scalars and lists; else 1 (0 for codes, ZeRO and sp; 100 percent; etp: tp)."""
    codes = ("zero_stage", "offload", "placement", "sequence_parallel", "schedule")
    defaults = dict.fromkeys(codes, 0) | {"offload_percent": 100, "etp": values.get("tp", 1)}
    given = {
        field.name: np.atleast_1d(values.pop(field.name, defaults.get(field.name, 1)))
        for field in fields(StrategyColumns)
    }
    assert not values, f"unknown columns {sorted(values)}"
    length = max(len(column) for column in given.values())
    return StrategyColumns(**{k: np.broadcast_to(v, length).copy() for k, v in given.items()})


def shape_of(
    *,
    micro_batch: int = 1,
    seq_len: int = 1024,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    sp: int = 0,
) -> LayerShape:
    """The shape of one micro-batch, as columns of length one; etp is tp when None."""
    return LayerShape(
        micro_batch=np.array([float(micro_batch)]),
        seq_len=seq_len,
        tp=np.array([float(tp)]),
        cp=np.array([float(cp)]),
        ep=np.array([float(ep)]),
        etp=np.array([float(etp or tp)]),
        sequence_parallel=np.array([sp]),
    )


def strategy_of(**changes: Any) -> Strategy:
    """One GPU, four layers, ZeRO 1, nothing recomputed; etp is tp where none is given."""
    sizes = ("dp", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "num_micro_batches")
    values = dict.fromkeys(sizes, 1) | {"zero_stage": 1, "offload": "none"}
    values |= {"sequence_parallel": False, "etp": changes.get("tp", 1), "layers_per_stage": (4,)}
    values |= changes
    none = (0,) * len(values["layers_per_stage"])
    unchanged = {"selective_layers_per_stage": none, "recompute_layers_per_stage": none}
    return Strategy(**{**unchanged, **values})


def priced(context: Context, strategy: Strategy) -> Plan:
    """A plan that no search found."""
    found = estimate(context, strategy)
    return Plan(context=context, strategy=strategy, estimate=found, is_optimal=False)


def plan_of(context: Context, **layout: Any) -> Plan:
    """The plan of a layout given degree by degree."""
    return priced(*fill_in(context, requested(**layout)))

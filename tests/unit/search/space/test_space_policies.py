"""Which policies a framework can say, and what they make of a stage model."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from enumerated import enumerate_space

from planner.cost.context import Context
from planner.cost.stage import FULL
from planner.cost.stage_model import stage_model
from planner.search.space.narrow import read_narrowing
from planner.search.space.policies import (
    Policy,
    filled_counts,
    least_memory_policy,
    of_kinds,
    part_numbers,
    policies_of,
    with_part,
)
from planner.search.stages.capacity import layer_ranges
from planner.spec.model import ModelSpec, MoeSpec

Contexts = Callable[..., Context]
ALL = ("none", "selective", "full", "offloaded")
NONE, SELECTIVE, WHOLE = (Policy(kinds=(kind,)) for kind in ALL[:3])
PART, AWAY = (Policy(kinds=("none", kind), part=kind) for kind in ("full", "offloaded"))
MIXED = {"allow": ["mixed-layers"]}


@pytest.mark.parametrize(
    ("framework", "options", "policies"),
    [
        ("megatron", {}, (NONE, SELECTIVE, WHOLE, PART, AWAY)),
        ("megatron", {"forbid": ["offload"]}, (NONE, SELECTIVE, WHOLE, PART)),
        ("megatron", {"fix": ["recompute=full"]}, (WHOLE,)),
        ("megatron", {"fix": ["recompute=selective|full"]}, (SELECTIVE, WHOLE)),
        ("megatron", {"fix": ["recompute=none"]}, (NONE, AWAY)),
        ("megatron", MIXED, (Policy(kinds=ALL),)),
        ("megatron", {"fix": ["recompute=full"], **MIXED}, (WHOLE,)),
        ("torchtitan", {}, (NONE, SELECTIVE, WHOLE)),
        ("deepspeed", {}, (NONE, WHOLE)),
        ("deepspeed", MIXED, (Policy(kinds=("none", "full")),)),
        ("deepspeed", {"fix": ["recompute=selective"]}, ()),
        ("deepspeed", {"fix": ["recompute=selective"], **MIXED}, ()),
    ],
    ids=str,
)
def test_policies_are_those_of_the_framework_that_the_options_leave(
    context_of: Contexts,
    framework: str,
    options: dict[str, list[str]],
    policies: tuple[Policy, ...],
) -> None:
    context = context_of(framework=framework)
    assert policies_of(context, read_narrowing(**options)) == policies


def test_only_several_kinds_without_a_part_are_decided_layer_by_layer() -> None:
    assert Policy(kinds=ALL).is_mixed
    assert not any(one.is_mixed for one in (NONE, WHOLE, PART))
    assert least_memory_policy((NONE, PART, SELECTIVE)) == Policy(
        kinds=("none", "selective", "full")
    )


@pytest.mark.parametrize("kind", ["full", "offloaded"])
def test_a_part_in_the_layers_costs_is_that_many_layers_of_every_stage(
    context_of: Contexts, kind: str
) -> None:
    context = context_of(cluster="1xdgx-h100", global_batch=8)
    strategy = enumerate_space(context, read_narrowing(limit=["pp<=2"])).strategy
    if kind == "offloaded":
        strategy = strategy.take(strategy.pp == 1)
    whole = stage_model(context, strategy)
    places, number = part_numbers(whole)
    assert len(places)
    baked, whole = with_part(whole.take(places), kind, number), whole.take(places)
    for pp in np.unique(baked.strategy.pp).tolist():
        rows = np.flatnonzero(baked.strategy.pp == pp)
        one, same = baked.take(rows), whole.take(rows)
        layers = np.full((len(rows), pp), context.model.num_blocks / pp)
        counts = np.zeros((3, len(rows), pp))
        policy = Policy(kinds=("none", kind), part=kind)
        for i, row in enumerate(rows.tolist()):
            vpp = int(one.strategy.vpp[i])
            own = filled_counts(policy, layers[i], counts[:, i], vpp, float(number[row]))
            counts[:, i] = own
        assert (counts.sum(axis=0) < layers).any(axis=1).all()
        assert one.iteration_s(layers) == pytest.approx(same.iteration_s(layers, counts))
        held = same.peak_bytes(layers, counts)
        assert one.peak_bytes(layers) == pytest.approx(held, rel=1e-12)
        assert (one.fits(layers) == same.fits(layers, counts)).all()


def test_every_chunk_holds_the_layers_of_a_part(
    context_of: Contexts, small_model: Callable[..., ModelSpec]
) -> None:
    """Three stages of two chunks of up to three layers: an end lacks layers of one chunk only."""
    context = context_of(cluster="3xh100-sxm", global_batch=6)
    context = replace(context, model=small_model(num_layers=15))
    narrowing = read_narrowing(fix=["pp=3", "vpp=2", "micro_batch=1"])
    strategy = enumerate_space(context, narrowing).strategy.take(np.array([0]))
    places, number = part_numbers(stage_model(context, strategy))
    assert number.tolist() == [1.0, 2.0]
    baked = with_part(stage_model(context, strategy).take(places), "full", number)
    fewest, most = layer_ranges(baked, np.arange(3.0)[None, :])
    assert fewest.tolist() == [[4.0, 2.0, 4.0], [5.0, 4.0, 5.0]]
    assert (most == 6.0).all()
    assert filled_counts(PART, np.array([5.0, 5.0, 5.0]), np.zeros((3, 3)), 2, 2.0)[
        FULL
    ].tolist() == [
        4.0,
        4.0,
        4.0,
    ]


@pytest.mark.parametrize("leading", [1, 2, 3])
@pytest.mark.parametrize("policy", [NONE, SELECTIVE, WHOLE, PART], ids=lambda one: one.in_words)
def test_leading_layers_are_as_many_as_the_first_stage_holds(
    context_of: Contexts,
    small_model: Callable[..., ModelSpec],
    leading: int,
    policy: Policy,
) -> None:
    """In the layers' costs and counted layer by layer, to the byte."""
    moe = MoeSpec(num_experts=2, top_k=1, expert_ffn_size=512, num_leading_dense_layers=leading)
    context = context_of(
        model=small_model(num_layers=6, moe=moe), cluster="2xh100-sxm", global_batch=4
    )
    strategy = enumerate_space(context, read_narrowing(fix=["pp=2", "vpp=1"])).strategy
    whole = stage_model(context, strategy)
    assert whole.num_leading == leading
    for first in range(1, 6):
        layers = np.tile([float(first), 6.0 - first], (len(whole), 1))
        if policy.part:
            model = with_part(whole, policy.part, np.ones(len(whole)))
            counts = filled_counts(policy, layers[0], np.zeros((3, 2)), 1, 1.0)
        else:
            model = of_kinds(whole, policy.kinds)
            counts = filled_counts(policy, layers[0], np.zeros((3, 2)))
        every = np.repeat(counts[:, None, :], len(whole), axis=1)
        one, other = model.held_bytes(layers), whole.held_bytes(layers, every)
        assert one == pytest.approx(other, rel=1e-12)

"""Edits that are not accepted do not count: the next best are found."""

from collections.abc import Callable

import pytest

from planner.cost.context import Context
from planner.search.edits import Edit
from planner.search.repair import repairs
from planner.spec.strategy import Strategy

BROKEN = Strategy(
    dp=8,
    tp=2,
    pp=1,
    vpp=1,
    cp=1,
    ep=1,
    etp=2,
    zero_stage=1,
    micro_batch=8,
    num_micro_batches=2,
    sequence_parallel=True,
    offload="none",
    layers_per_stage=(32,),
    selective_layers_per_stage=(0,),
    recompute_layers_per_stage=(0,),
)


@pytest.fixture
def context(context_of: Callable[..., Context]) -> Context:
    return context_of(model="llama3-8b", cluster="2xdgx-h100", global_batch=128, seq_len=8192)


def test_the_best_edit_that_is_accepted_comes_first(context: Context) -> None:
    free = repairs(context, BROKEN)
    first = int(free.edits[0].columns.micro_batch[0])
    assert first != BROKEN.micro_batch

    def keeps_batch(edit: Edit) -> bool:
        return int(edit.columns.micro_batch[0]) == BROKEN.micro_batch

    found = repairs(context, BROKEN, accepts=keeps_batch)
    assert found.edits
    assert all(map(keeps_batch, found.edits))
    assert found.num_changes >= free.num_changes

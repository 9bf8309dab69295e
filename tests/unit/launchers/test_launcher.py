"""Nodes of a plan: as many as it uses, and only where ranks keep their order."""

from dataclasses import replace

import pytest
from contexts import context_of, strategy_of

from planner.launchers import LAUNCHERS, MAX_NAME, allocation_of, job_name

problems = LAUNCHERS["slurm"].problems


@pytest.mark.parametrize(
    ("cluster", "gpus", "nodes", "per_node", "exclusive"),
    [
        ("1xdgx-h100", 8, 1, 8, True),
        ("4xdgx-h100", 16, 2, 8, True),
        ("4xdgx-h100", 4, 1, 4, False),
        ("4xdgx-h100", 1, 1, 1, False),
        ("18xgb200-tray", 72, 18, 4, True),
    ],
)
def test_only_the_nodes_used_are_asked_for(
    cluster: str, gpus: int, nodes: int, per_node: int, exclusive: bool
) -> None:
    plan = context_of(cluster=cluster), strategy_of(dp=gpus)
    found = allocation_of(*plan)
    assert problems(*plan) == []
    assert (found.num_nodes, found.gpus_per_node) == (nodes, per_node)
    assert found.is_exclusive is exclusive


@pytest.mark.parametrize(
    ("cluster", "gpus", "words"),
    [("4xdgx-h100", 12, "given 12 GPUs"), ("1xgb200-nvl72", 72, "rack of several hosts")],
)
def test_ranks_without_equal_hosts_are_refused(cluster: str, gpus: int, words: str) -> None:
    (problem,) = problems(context_of(cluster=cluster), strategy_of(dp=gpus))
    assert words in problem


def test_all_that_is_wrong_with_hosts_is_told() -> None:
    assert len(problems(context_of(cluster="2xgb200-nvl72"), strategy_of(dp=100))) == 2


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Llama 3.1_70B", "llama-3-1-70b-1xdgx-h100"),
        ("7b/ÄÖ", "b-1xdgx-h100"),
        ("../$(id)", "id-1xdgx-h100"),
        ("x" * 80, "x" * MAX_NAME),
    ],
)
def test_job_names_are_labels(model: str, name: str) -> None:
    context = context_of()
    assert job_name(replace(context, model=replace(context.model, name=model))) == name

"""Evidence: the published runs nearest to a plan, found by a distance one can check by hand."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from contexts import context_of, small_model

from planner.answers.evidence import MAX_RUNS, NEAR_OCTAVES, distances, evidence, published_runs
from planner.answers.layout import fill_in, requested
from planner.cost.context import Context
from planner.spec.cluster import ClusterSpec
from planner.spec.strategy import Strategy


def plan_of(context: Context, **request: object) -> tuple[Context, Strategy]:
    return fill_in(context, requested(**request))  # type: ignore[arg-type]


def renamed(context: Context, **names: str) -> Context:
    node = context.cluster.node
    node = replace(node, accelerator=replace(node.accelerator, **names))
    cluster: ClusterSpec = replace(context.cluster, node=node)
    return replace(context, cluster=cluster)


@pytest.fixture(scope="module")
def near_plan() -> tuple[Context, Strategy]:
    context = context_of(model="llama3-70b", cluster="8xdgx-h100", global_batch=64, seq_len=8192)
    return plan_of(context, tp=4, pp=4)


def test_the_rows_are_whole_and_differ() -> None:
    runs = published_runs()
    assert len({run.id for run in runs}) == len(runs) > 300
    for run in runs:
        assert run.gpus == run.dp * run.tp * run.pp * run.cp
        assert run.active_params <= run.params
        assert (run.kind == "mixture") == (run.active_params < run.params)
        assert run.measured_s > 0 < run.predicted_s
        assert run.source


def test_runs_of_the_same_accelerator_come_nearest_first(
    near_plan: tuple[Context, Strategy],
) -> None:
    found = evidence(*near_plan)
    assert not found.note
    assert len(found.runs) == MAX_RUNS
    assert {near.accelerator for near in found.runs} == {"h100-sxm"}
    octaves = [near.octaves for near in found.runs]
    assert octaves == sorted(octaves)
    assert max(octaves) <= NEAR_OCTAVES
    same = [run.accelerator == "h100-sxm" for run in published_runs()]
    assert octaves[0] == distances(*near_plan)[same].min()


def test_the_distance_counts_octaves_by_hand(near_plan: tuple[Context, Strategy]) -> None:
    context, strategy = near_plan
    wider = replace(strategy, tp=2 * strategy.tp, dp=strategy.dp // 2)
    moved = np.abs(distances(context, wider) - distances(context, strategy))
    assert moved == pytest.approx(0.5)  # one octave of tp counts half
    other = replace(context, traits=replace(context.traits, name="none", profile="none"))
    farther = distances(other, strategy) - distances(context, strategy)
    by_hand = [
        2.0 * (run.framework == "megatron") + 0.5 * (run.profile == "current")
        for run in published_runs()
    ]
    assert farther == pytest.approx(np.array(by_hand))


def test_another_generation_stands_in_and_is_named(near_plan: tuple[Context, Strategy]) -> None:
    context, strategy = near_plan
    kin = evidence(renamed(context, name="h100-new"), strategy)
    assert kin.note == "no published run on h100-new; Hopper instead"
    assert kin.runs
    assert {near.architecture for near in kin.runs} == {"Hopper"}


@pytest.mark.parametrize(
    "names",
    [
        {"name": "x", "vendor": "AMD", "architecture": "Hopper"},
        {"name": "x", "architecture": ""},
        {"name": "x", "architecture": "Rubin"},
    ],
)
def test_without_any_near_run_that_is_said(
    names: dict[str, str], near_plan: tuple[Context, Strategy]
) -> None:
    context, strategy = near_plan
    found = evidence(renamed(context, **names), strategy)
    assert found.runs == ()
    line = found.line(context)
    assert line == "evidence: no published run on x"


def test_a_tiny_model_is_near_to_nothing() -> None:
    model = small_model(num_layers=2, hidden_size=256, ffn_size=1024, vocab_size=1024)
    context, strategy = plan_of(context_of(model=model))
    assert evidence(context, strategy).note == "no published run on h100-sxm is near"


def test_the_table_is_read_only_when_asked_for() -> None:
    code = (
        "from unittest import mock\n"
        "import csv\n"
        "with mock.patch.object(csv, 'DictReader', side_effect=AssertionError):\n"
        "    import planner.cli.app, planner.answers.plan, planner.report.plan\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""``--profile``, ``--set`` and ``planner show frameworks``: what they change, say and refuse."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from in_process import json_of, planner

from planner.frameworks.registry import FRAMEWORKS, load_traits, profile_names
from planner.spec.traits import OverlapTraits

SMALL = ("plan", "gpt3-xl", "1xdgx-a100-640", "--top", "1")
MEMORY = ("memory", "gpt3-xl", "1xdgx-a100-640")
PROBLEMS = f"""\
command line::--profile: unknown profile of megatron; given 'brige', allowed: \
{", ".join(profile_names("megatron"))}; did you mean bridge?
command line::--set traits.overlap.tensor_parallel: unknown trait; given 0.5, allowed: \
{", ".join(trait.name for trait in fields(OverlapTraits))}; \
did you mean traits.overlap.tensor_parallel_overlap?
command line::--set traits.overlap.ring_achieved_fraction: wrong value; given 3, allowed: numbers \
from 0 to 1
command line::--precision: unknown precision 'fp7'; allowed are bf16, fp16, fp8, fp8_block, \
mxfp8, fp4, fp32, tf32. did you mean fp8, fp4?
""".splitlines()
SLOW = ("--set", "traits.overheads.step_overhead_s=10")


def test_a_setting_changes_the_plan_and_the_answer_says_so() -> None:
    plain = json_of(*SMALL)
    slow = json_of(*SMALL, *SLOW)
    added = slow["plans"][0]["iter_time_s"] - plain["plans"][0]["iter_time_s"]
    usual_s = load_traits("megatron").overheads.step_overhead_s
    assert added == pytest.approx(10 - usual_s)
    assert plain["assumptions"][0]["traits"] == {}
    assert slow["assumptions"][0]["traits"] == {"overheads": {"step_overhead_s": 10.0}}


def test_a_saved_plan_keeps_profile_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "best.yaml"
    options = ("--profile", "bridge", *SLOW, "--set", "traits.support.zero_stages=[1]")
    assert planner(*SMALL, *options, "--save", str(path)).code == 0
    inputs = yaml.safe_load(path.read_text())["inputs"]
    assert inputs["profile"] == "bridge"
    assert inputs["traits"] == {
        "overheads": {"step_overhead_s": 10.0},
        "support": {"zero_stages": [1]},
    }
    monkeypatch.setenv("COLUMNS", "400")
    tree = planner("explain", str(path), "time")
    assert (tree.code, tree.err) == (0, "")
    assert "set traits.overheads.step_overhead_s=10, traits.support.zero_stages=[1]; " in tree.out
    item = planner("explain", str(path), "step_overhead").out
    assert "time.step_overhead: 10 s" in item
    assert "given" in item.split("traits.overheads.step_overhead_s")[1].splitlines()[0]


@pytest.mark.parametrize("command", [SMALL, MEMORY])
def test_all_problems_of_software_options_come_at_once(command: tuple[str, ...]) -> None:
    run = planner(
        *command, "--profile", "brige", "--precision", "fp7",
        "--set", "traits.overlap.tensor_parallel=0.5",
        "--set", "traits.overlap.ring_achieved_fraction=3",
    )  # fmt: skip
    assert (run.code, run.out) == (2, "")
    assert run.err.splitlines() == PROBLEMS


def test_a_profile_no_framework_has_is_refused_with_those_of_each() -> None:
    run = planner(*SMALL, "--framework", "any", "--profile", "brige")
    assert run.code == 2
    assert [line.partition(";")[0] for line in run.err.splitlines()] == [
        f"command line::--profile: unknown profile of {name}" for name in FRAMEWORKS
    ]


def test_every_profile_is_listed() -> None:
    lines = planner("show", "frameworks", "--all").out.splitlines()
    rows = {tuple(line.split()[:2]) for line in lines}
    assert rows >= {(name, profile) for name in FRAMEWORKS for profile in profile_names(name)}


def test_a_profile_shows_every_trait_as_set_takes_it_with_its_source() -> None:
    run = planner("show", "frameworks", "megatron/bridge", "--all")
    assert "megatron, profile bridge: NeMo and Megatron-Bridge recipes" in run.out
    assert "traits.states.gradient_reduce_bytes=2  (current: 4)\n" in run.out
    assert "    recipes set grad_reduce_in_fp32 false\n" in run.out
    shown = [line.partition("  ")[0] for line in run.out.splitlines() if line[:7] == "traits."]
    options = [part for text in shown for part in ("--set", text)]
    assert planner(*MEMORY, *options).code == 0

"""``--profile``, ``--set`` and ``planner show frameworks``: what they change, say and refuse."""

import pytest
from in_process import json_of, planner

from planner.frameworks.registry import FRAMEWORKS, load_traits, profile_names

SMALL = ("plan", "gpt3-xl", "1xdgx-a100-640", "--top", "1")
MEMORY = ("memory", "gpt3-xl", "1xdgx-a100-640")
SLOW = ("--set", "traits.overheads.step_overhead_s=10")


def test_a_setting_changes_the_plan_and_the_answer_says_so() -> None:
    plain = json_of(*SMALL)
    slow = json_of(*SMALL, *SLOW)
    added = slow["plans"][0]["iter_time_s"] - plain["plans"][0]["iter_time_s"]
    usual_s = load_traits("megatron").overheads.step_overhead_s
    assert added == pytest.approx(10 - usual_s)
    assert plain["assumptions"][0]["traits"] == {}
    assert slow["assumptions"][0]["traits"] == {"overheads": {"step_overhead_s": 10.0}}


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

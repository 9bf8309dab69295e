"""What a plan says of its software follows the traits, and says only what matters."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from contexts import context_of

from planner.answers.layout import fill_in, requested
from planner.answers.rows import SoftwareRow
from planner.answers.software import TOPICS, WORDS, assumptions_line, differences, phrases
from planner.cost.context import Context
from planner.frameworks.registry import (
    CURRENT,
    FRAMEWORKS,
    LOSSES,
    load_traits,
    profile_names,
    saved_figures,
    table_names,
)
from planner.query.traits import read_settings

# Topics with nothing to say of Megatron.
UNSAID = {"secondary_shards", "accumulation", "states", "weight_shards"}
PHRASES = [
    line.split(" | ")
    for line in Path(__file__).with_name("phrases.txt").read_text("utf-8").splitlines()[1:]
]
SAID = yaml.safe_load(Path(__file__).with_name("said.yaml").read_text("utf-8"))
PROFILES = [(name, profile) for name in FRAMEWORKS for profile in profile_names(name)]


def line_of(context: Context, **layout: object) -> str:
    context, strategy = fill_in(context, requested(**layout))  # type: ignore[arg-type]
    return assumptions_line(context, [strategy])


def test_every_kernel_and_loss_has_words() -> None:
    assert set(WORDS["layers"]) == set(table_names())
    assert set(WORDS["loss"]) == set(saved_figures(LOSSES))
    assert set(WORDS["attention"]) == {
        *("fused", "flash1", "flash2", "flash_attn", "unfused", "eager")
    }


@pytest.mark.parametrize(("setting", "topic", "phrase"), PHRASES)
def test_a_setting_changes_the_phrase_of_its_topic_alone(
    setting: str, topic: str, phrase: str
) -> None:
    before = phrases(load_traits("megatron"))
    after = phrases(load_traits("megatron", CURRENT, read_settings([f"traits.{setting}"])))
    assert before.get(topic) != phrase
    assert after == {**before, topic: phrase}


@pytest.mark.parametrize(("question", "layout", "said", "lacks"), SAID)
def test_only_what_matters_for_the_layout_is_said(
    question: dict[str, Any], layout: dict[str, Any], said: list[str], lacks: list[str]
) -> None:
    line = line_of(context_of(**question), **layout)
    assert all(words in line for words in said), line
    assert not any(words in line for words in lacks), line


def test_the_line_names_profile_versions_settings_and_how_to_change_them() -> None:
    settings = read_settings(
        ["traits.overlap.ring_achieved_fraction=0.125", "traits.support.zero_stages=[1]"]
    )
    context = replace(context_of(), traits=load_traits("megatron", "bridge", settings))
    line = line_of(context)
    assert line.startswith("assumes megatron bridge: NeMo 24.07 to Megatron-Bridge (2024-26); ")
    fraction, stages = "ring_achieved_fraction=0.125", "zero_stages=[1]"
    assert f"set traits.overlap.{fraction}, traits.support.{stages}; " in line
    profiles = "current, classic, nanotron, nemo, no-overlap, 6 more"
    assert f"--profile ({profiles}) or --set traits.SECTION.KEY=VALUE" in line


def test_plain_data_holds_every_topic_and_the_settings() -> None:
    settings = read_settings(["traits.support.zero_stages=[1]"])
    data = SoftwareRow.of(load_traits("megatron", CURRENT, settings))
    assert (data.framework, data.profile) == ("megatron", "current")
    assert data.traits == {"support": {"zero_stages": [1]}}
    assert set(data.software) == set(TOPICS) - UNSAID


@pytest.mark.parametrize(("framework", "profile"), PROFILES)
def test_every_other_profile_differs_from_the_current_one_in_words(
    framework: str, profile: str
) -> None:
    assert bool(differences(framework, profile)) == (profile != CURRENT)

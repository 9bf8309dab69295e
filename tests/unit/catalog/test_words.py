"""Entries of the catalog that words apply to."""

import pytest

from planner.catalog.words import find_hardware, find_models
from planner.errors import InputError


def test_all_words_apply_and_case_and_hyphens_do_not_count() -> None:
    found = find_models(("MoE", "qwen"))
    assert "qwen3-30b-a3b" in found
    assert "qwen3-8b" not in found
    assert not any(name.startswith("mixtral") for name in found)
    assert find_models(("llama-3.1",)) == ["llama3.1-405b", "llama3.1-70b", "llama3.1-8b"]


def test_a_number_is_not_the_beginning_of_another() -> None:
    assert "llama3-8b" in find_models(("8b",))
    assert not [name for name in find_models(("8b",)) if "80b" in name or "1.8b" in name]


def test_hardware_is_found_by_maker_kind_and_links() -> None:
    found = find_hardware(("h100", "nvlink"))
    assert ("nodes", "dgx-h100") in found
    assert {kind for kind, _ in found} == {"nodes"}
    assert ("accelerators", "mi300x") in find_hardware(("amd", "accelerator"))


def test_every_word_that_applies_to_nothing_is_named() -> None:
    with pytest.raises(InputError) as caught:
        find_models(("lama", "moe", "nosuch"))
    problems = [problem.message for problem in caught.value.problems]
    assert len(problems) == 2
    assert "did you mean llama" in problems[0]
    assert "`planner show models` lists all" in problems[1]


def test_words_may_apply_to_nothing_together() -> None:
    assert find_models(("moe", "bert")) == []

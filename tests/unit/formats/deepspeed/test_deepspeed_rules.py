"""What rules of DeepSpeed files say."""

import json
from typing import Any

import pytest

from planner.formats.deepspeed.format import FORMAT
from planner.formats.format import CheckContext, SourceText


def said(rule: str, content: dict[str, Any]) -> list[str]:
    """Messages of one rule over a file for 16 ranks."""
    settings = FORMAT.read(SourceText(path="ds.json", text=json.dumps(content))).settings
    world = CheckContext(num_gpus=16, decisions={})
    (found,) = [each for each in FORMAT.rules if each.name == rule]
    return [broken.message for broken in found.check(settings, world)]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train_micro_batch_size_per_gpu", 8, "given 8 sequence(s), 8 per micro-batch, needed"),
        ("gradient_accumulation_steps", 3, "given 8 sequence(s), 3 step(s), needed"),
    ],
)
def test_a_batch_that_does_not_add_up_names_what_is_given(key: str, value: int, words: str) -> None:
    (message,) = said("batch_triple_adds_up", {"train_batch_size": 8, key: value})
    assert words in message


def test_a_removed_key_comes_with_what_stands_for_it() -> None:
    (message,) = said("key_not_removed", {"amp": {"enabled": True}})
    assert message.endswith("leave it out, or bf16, fp16 or torch_autocast in its place")
    (message,) = said("key_not_removed", {"sparse_attention": {}})
    assert message.endswith("leave it out")


@pytest.mark.parametrize("kind", ["OnebitAdam", "OneBitLamb", "ZeroOneAdam"])
def test_an_optimizer_of_an_older_release_is_called_removed(kind: str) -> None:
    (message,) = said("optimizer_is_known", {"optimizer": {"type": kind}})
    assert message.startswith(f"DeepSpeed removed {kind}; ")


@pytest.mark.parametrize(
    ("section", "sizes", "number"),
    [
        ("tensor_parallel", {"tp": {"tp_size": 4}}, 1),
        ("tensor_parallel", {"autotp_size": 4, "tp": {"tp_size": 4}}, 0),
        ("expert_parallel", {"autoep_size": 8}, 1),
    ],
)
def test_sizes_without_effect(section: str, sizes: dict[str, Any], number: int) -> None:
    assert len(said("sizes_take_effect", {"train_batch_size": 16, section: sizes})) == number

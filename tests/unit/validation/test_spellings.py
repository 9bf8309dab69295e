"""Words of sources in those of the reader."""

from pathlib import Path
from typing import Any

import pytest

from planner.frameworks.registry import FRAMEWORKS, profile_names
from planner.validation.compare import measured_figures
from planner.validation.records import Record, read_runs
from planner.validation.spellings import spelled_alike

RUNS = Path(__file__).parents[2] / "validation" / "fine_tuning_runs.jsonl"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_runs(RUNS).records}


def spelled(part: str, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = spelled_alike({part: given})[part]
    return found


def test_an_accelerator_stands_for_its_usual_node() -> None:
    assert spelled("hardware", gpu="a100-80gb-sxm")["node"] == "dgx-a100-640"
    assert spelled("hardware", gpu="l40s-48gb-pcie")["node"] == "pcie-8x-l40s"
    assert "node" not in spelled("hardware", gpu="abacus")


def test_a_stated_node_is_kept() -> None:
    assert spelled("hardware", gpu="a100-80gb-sxm", node=None)["node"] is None


@pytest.mark.parametrize(("word", "stage"), [("dist-opt", 1), ("fsdp", 3), (2, 2), ("odd", "odd")])
def test_words_of_sharding_are_stages(word: str | int, stage: str | int) -> None:
    assert spelled("parallel", zero=word)["zero"] == stage


@pytest.mark.parametrize(
    ("detail", "offload"),
    [
        ({"optimizer": 1.0, "params": 0}, "optimizer:host"),
        ({"optimizer": 1.0, "params": 1.0}, "optimizer+parameters:host"),
        ({"optimizer": 0.25, "params": 0}, "in words"),
        ({"optimizer": 1.0, "activations": "checkpoint inputs"}, "in words"),
    ],
)
def test_offload_is_told_by_its_parts(detail: dict[str, Any], offload: str) -> None:
    given = spelled("parallel", offload="in words", offload_detail=detail)
    assert given["offload"] == offload


def test_autocast_trains_in_the_precision_of_its_products() -> None:
    assert spelled_alike({"precision": "bf16 autocast, fp32 optimizer"})["precision"] == "bf16"


def test_a_figure_is_of_the_kind_that_was_read() -> None:
    given = spelled("memory", reported_gb=5.0, kind="torch max reserved as logged", unit="GiB")
    assert given["reserved_gib"] == 5.0
    given = spelled("memory", reported_gb=5.0, kind="per GPU, tool not stated")
    assert given["reported_gb"] == 5.0


def test_gigabytes_are_not_gibibytes(records: dict[str, Record]) -> None:
    measured = measured_figures(records["fms-main-mistral-7b-full-none-b4-1xa100"])
    assert measured.allocated_gib == pytest.approx(72.43e9 / 2**30)


def test_a_framework_is_a_generation_unless_the_record_says_otherwise() -> None:
    given = {"framework": "megatron-deepspeed", "precision": "bf16"}
    assert spelled_alike(given)["software"]["profile"] == "megatron-bf16"
    own = {"framework": "torchtitan", "profile": "2024"}
    assert spelled_alike({**given, "software": own})["software"] == own
    assert "software" not in spelled_alike({"framework": "abacus"})


def test_every_framework_that_is_named_has_its_profile(records: dict[str, Record]) -> None:
    for record in records.values():
        if record.software:
            assert record.software.framework in FRAMEWORKS
            assert record.software.profile in profile_names(record.software.framework)


def test_words_of_a_record_choose_the_profile_of_its_adapters(records: dict[str, Record]) -> None:
    for name, profile in {
        "fms-main-mistral-7b-lora-none-b4-1xa100": "peft-2024",
        "fms-main-mistral-7b-lora-none-b4-2xa100": "peft-2024-fsdp1",
        "fms-main-mistral-7b-lora-foak-fast-kernels-b4-1xa100": "peft-2024-fused",
        "fms-main-mistral-7b-lora-baseline-peft-bnb-b4-1xa100": "peft-2024-widened",
        "fms-main-mistral-7b-lora-accelerated-peft-bnb-foak-b4-1xa100": "peft-2024-4-bit",
        "qwen-readme-qwen-7b-lora-s256-1xa100": "peft-2023",
    }.items():
        software = records[name].software
        assert software is not None
        assert (software.framework, software.profile) == ("accelerate", profile)


def test_a_suspect_run_is_not_scored(records: dict[str, Record]) -> None:
    suspect = [record for record in records.values() if record.suspect]
    assert suspect
    assert not any(record.is_scored for record in suspect)

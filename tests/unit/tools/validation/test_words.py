"""Words of sources in those of the reader: words.yaml has what becomes of which record."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.frameworks.registry import FRAMEWORKS, profile_names
from tools.validation.compare import compare, measured_figures
from tools.validation.mapping import layout_layers
from tools.validation.records import Record, read_runs
from tools.validation.words import spelled_alike

CASES = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))
RUNS = Path(__file__).parents[3] / "validation" / "fine_tuning_runs.jsonl"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_runs(RUNS).records}


@pytest.mark.parametrize(
    ("record", "places"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_a_record_is_spelled_alike(record: dict[str, Any], places: dict[str, Any]) -> None:
    found = spelled_alike(record)
    for place, value in places.items():
        part, _, key = place.partition("/")
        holder = found[part] if key else found
        assert holder.get(key or part, "absent") == value, place


def test_gigabytes_are_not_gibibytes(records: dict[str, Record]) -> None:
    measured = measured_figures(records["fms-main-mistral-7b-full-none-b4-1xa100"])
    assert measured.allocated_gib == pytest.approx(72.43e9 / 2**30)


def test_every_framework_that_is_named_has_its_profile(records: dict[str, Record]) -> None:
    for record in records.values():
        assert record.software.framework in FRAMEWORKS
        assert record.software.profile in profile_names(record.software.framework)


STATED: dict[str, dict[str, Any]] = yaml.safe_load("""
fms-main-mistral-7b-lora-none-b4-1xa100: {software.loss: shifted}
fms-main-mistral-7b-lora-none-b4-2xa100: {software.loss: kept, software.sharding: fsdp1}
fms-main-mistral-7b-lora-foak-fast-kernels-b4-1xa100:
  {software.blocks: fused, software.loss: fused-shifted}
fms-main-mistral-7b-lora-baseline-peft-bnb-b4-1xa100:
  {software.loss: shifted, kernels.widens_stream: true}
qwen-readme-qwen-7b-lora-s256-1xa100:
  {software.blocks: eager-2023, software.loss: shifted, kernels.adapters: 16-bit}
""")


@pytest.mark.parametrize("name", STATED)
def test_words_of_a_record_state_facts_of_its_software(
    records: dict[str, Record], name: str
) -> None:
    software = records[name].software
    assert (software.framework, software.profile) == ("accelerate", "peft")
    stated = {**STATED[name], "kernels.adapter_dropout": True}
    assert stated.items() <= records[name].traits.items()


def test_a_suspect_run_is_not_scored(records: dict[str, Record]) -> None:
    suspect = [record for record in records.values() if record.suspect]
    assert suspect
    assert not any(record.is_scored for record in suspect)


def test_a_peak_is_that_of_the_longest_batch(records: dict[str, Record]) -> None:
    record = records["peft-mm-llama3.2-3b-full-1xl40s"]
    assert record.model.seq_len == 210
    assert record.at_peak.model.seq_len == 768
    at_mean = record.model_copy(update={"memory": None})
    whole, mean = compare(record).predicted, compare(at_mean).predicted
    assert whole.iter_time_s == mean.iter_time_s
    assert whole.reserved_gib == pytest.approx(39.7, abs=0.1)
    assert mean.reserved_gib == pytest.approx(29.9, abs=0.1)  # Of the optimizer's step
    of_one_length = records["fms-main-mistral-7b-full-none-b4-1xa100"]
    assert of_one_length.at_peak is of_one_length


@pytest.mark.parametrize(("pp", "vpp"), [(4, 1), (8, 1), (16, 1), (4, 2), (2, 8)])
def test_stages_of_deepseek_are_those_of_its_recipe(pp: int, vpp: int) -> None:
    record = {
        "framework": "megatron-bridge/megatron-core",
        "flops_convention": "causal; mtp",
        "model": {"name": "deepseek-v3-671b", "layers": 61},
        "parallel": {"pp": pp, "vpp": vpp},
    }
    layout = spelled_alike(record)["parallel"]["pp_layout"]
    assert layout.endswith("mL")
    assert sum(layout_layers(layout, pp)) == 61
    plain = spelled_alike({**record, "flops_convention": None})["parallel"]["pp_layout"]
    assert plain == layout.replace("mL", "L")
    elsewhere = spelled_alike({**record, "framework": "megatron-core"})
    assert "pp_layout" not in elsewhere["parallel"]

"""Records of adapters, mapped by hand."""

from pathlib import Path

import pytest

from planner.spec.training import TARGETS
from planner.validation.adapters import to_training
from planner.validation.hardware import CannotEstimateError
from planner.validation.mapping import to_run
from planner.validation.records import Lora, Record, read_runs

LINES = Path(__file__).parents[2] / "validation" / "fine_tuning_runs.jsonl"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_runs(LINES).records}


def lora(**given: object) -> Lora:
    return Lora.model_validate({"rank": 16, "target_modules": ("q_proj", "v_proj"), **given})


def test_a_base_of_4_bits_is_qlora_and_one_of_16_lora() -> None:
    assert to_training(lora()).mode == "lora"
    found = to_training(lora(quantized_base_bits=4))
    assert (found.mode, found.rank, found.targets) == ("qlora", 16, ("q", "v"))


def test_several_adapters_take_memory_and_each_token_takes_one() -> None:
    assert to_training(lora(concurrent_adapters=4)).num_adapters == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"quantized_base_bits": 8}, "a base of 8 bits is not modelled"),
        ({"modules_to_save": ("wte", "lm_head")}, "trained whole beside adapters: wte, lm_head"),
        ({"target_modules": ("q_proj", "experts")}, "adapters of other modules: unknown .*experts"),
        ({"target_modules": ("input_layernorm",)}, "other modules: unknown .*input_layernorm"),
        ({"target_modules": ()}, "targets of the adapters not published"),
        ({"rank": None}, "rank of the adapters not published"),
    ],
)
def test_what_is_not_modelled_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(CannotEstimateError, match=said):
        to_training(lora(**given))


def test_a_run_trains_what_its_record_says(records: dict[str, Record]) -> None:
    run = to_run(records["fms-main-mistral-7b-lora-accelerated-peft-bnb-b4-2xa100"])
    training = run.context.traits.training
    assert (training.mode, training.rank, training.targets) == ("qlora", 16, TARGETS[:4])
    assert run.strategy.zero_stage == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        # DoRA trains magnitudes beside the adapters.
        ("peft-mm-llama3.2-3b-dora-r32-1xl40s", "9,289,728 .*not those of adapters, 9,175,040"),
        ("gaudi-llama2-7b-lora-fsdp-s512-8xgaudi2", "trains full here; given lora"),
        ("primerl-qwen3-30b-a3b-rl-lora16-s16k-8xh100-fa3", "unknown target 'experts'"),
        ("torchtune-llama3.2-3b-lora-1xa100", "this offload is not modelled"),
    ],
)
def test_runs_that_cannot_be_estimated_are_skipped_by_name(
    records: dict[str, Record], name: str, said: str
) -> None:
    with pytest.raises(CannotEstimateError, match=said):
        to_run(records[name])


def test_a_projection_that_the_model_lacks_is_named(records: dict[str, Record]) -> None:
    record = records["fms-main-mistral-7b-lora-none-b4-1xa100"]
    model = record.model.model_copy(update={"gated_mlp": False})
    changed = record.model_copy(
        update={"model": model, "lora": lora(target_modules=("gate_proj", "up_proj"))}
    )
    with pytest.raises(CannotEstimateError, match="has no gate; allowed are"):
        to_run(changed)

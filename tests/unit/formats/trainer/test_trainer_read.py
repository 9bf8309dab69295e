"""What TrainingArguments decide, and what is said about their keys."""

import json
from typing import Any

import pytest

from planner.formats.format import CheckContext, ParsedConfig, SourceText
from planner.formats.trainer.format import FORMAT
from planner.formats.trainer.keys import WHOLE, known, replaced


def read(**arguments: Any) -> ParsedConfig:
    return FORMAT.read(SourceText(path="t.json", text=json.dumps(arguments, indent=1)))


ON_HOST = {"offload_optimizer": {"device": "cpu"}}
UNFORCED = {"zero_force_ds_cpu_optimizer": False}


def zero(more: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 3} | (more or {})}


def decisions(**arguments: Any) -> dict[str, object]:
    return {name: each.value for name, each in read(**arguments).decisions.items()}


def test_defaults_are_those_of_transformers() -> None:
    assert decisions() == {"micro_batch": 8, "optimizer": "adam", "zero_stage": 0}


@pytest.mark.parametrize(
    ("fsdp", "stage", "offload"),
    [
        (True, 3, "none"),
        ("full_shard", 3, "none"),
        ("shard_grad_op offload", 2, "optimizer+parameters:host"),
        (["full_shard", "offload"], 3, "optimizer+parameters:host"),
    ],
)
def test_old_and_new_forms_of_fsdp_decide_the_stage(fsdp: object, stage: int, offload: str) -> None:
    found = decisions(fsdp=fsdp)
    assert (found["zero_stage"], found.get("offload", "none")) == (stage, offload)


def test_deepspeed_in_the_file_decides() -> None:
    found = decisions(deepspeed=zero(ON_HOST), gradient_accumulation_steps=4)
    assert found["zero_stage"] == 3
    assert found["offload"] == "optimizer:host"
    assert found["num_micro_batches"] == 4


@pytest.mark.parametrize(
    ("arguments", "optimizer"),
    [
        ({"optim": "sgd"}, "sgd"),
        ({"optim": "sgd", "optim_args": "momentum=0.9"}, "sgd-momentum"),
        ({"optim": "adamw_torch"}, "adam"),
        ({"optim": "adamw_8bit"}, "adam-8bit-bitsandbytes"),
        ({"optim": "paged_adamw_8bit"}, "adam-8bit-bitsandbytes"),
        ({"optim": "lomo"}, None),
        ({"optim": "adamw_8bit", "fsdp": True, "fsdp_config": {"version": 1}}, "adam-8bit"),
        ({"optim": "adamw_8bit", "deepspeed": zero()}, "adam-8bit-bitsandbytes"),
        # Accelerate puts DeepSpeed's own in its place, unless it is told not to.
        ({"optim": "adamw_8bit", "deepspeed": zero(ON_HOST)}, "adam"),
        ({"optim": "adamw_8bit", "deepspeed": zero(ON_HOST) | UNFORCED}, "adam-8bit-bitsandbytes"),
        ({"optim": "adamw_8bit", "deepspeed": zero() | {"optimizer": {"type": "Lion"}}}, "lion"),
    ],
)
def test_optimizers_have_the_planner_s_names(
    arguments: dict[str, Any], optimizer: str | None
) -> None:
    assert decisions(**arguments).get("optimizer") == optimizer


def test_findings_name_key_line_and_the_nearest_known_one() -> None:
    reading = read(per_device_train_batchsize=2, bf16="yes", fsdp_config={"reshard": True})
    found = [(each.rule, each.key, each.line) for each in reading.findings]
    assert found == [
        ("trainer.unknown_key", "per_device_train_batchsize", 2),
        ("trainer.bad_value", "bf16", 3),
        ("trainer.unknown_key", "fsdp_config.reshard", 5),
    ]
    assert "per_device_train_batch_size" in reading.findings[0].message


@pytest.mark.parametrize("name", ["model_name_or_path", "dataset_name", "max_seq_length"])
def test_arguments_of_the_script_itself_block_nothing(name: str) -> None:
    found = [(each.rule, each.severity) for each in read(bf16=True, **{name: "own"}).findings]
    assert found == [("trainer.unknown_key", "note")]


def test_arguments_of_the_script_are_one_finding() -> None:
    own = {f"own_{number}": {"inner": 1} for number in range(10)}
    (finding,) = read(bf16=True, lora_rank=8, push_to_hf=False, **own).findings
    assert (finding.severity, finding.line) == ("note", 3)
    assert finding.message.startswith("lora_rank, push_to_hf, own_0,")
    assert " and 4 more: no key of TrainingArguments" in finding.message


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("warmup_ratio", "warmup_steps, which takes a share below 1 in its place"),
        ("evaluation_strategy", "eval_strategy in its place"),
        ("overwrite_output_dir", "nothing in its place"),
    ],
)
def test_a_key_of_an_older_release_is_a_note_with_what_replaced_it(key: str, instead: str) -> None:
    (finding,) = read(bf16=True, **{key: 1}).findings
    assert (finding.severity, finding.line) == ("note", 3)
    assert f"{key} ({instead})" in finding.message


def test_no_old_key_is_known_and_what_replaces_one_is() -> None:
    assert not set(replaced()) & set(known())
    named = {words.split()[0].strip(",") for words in replaced().values() if words}
    for name in named - {"variable"}:
        assert name.partition(".")[0] in known()


def test_the_best_model_is_not_refused_for_an_old_name_of_the_strategy() -> None:
    given = {"load_best_model_at_end": True, "evaluation_strategy": "steps"}
    settings, world = read(**given).settings, CheckContext(num_gpus=8, decisions={})
    assert not [each for rule in FORMAT.rules for each in rule.check(settings, world)]


def test_comments_are_found_because_transformers_reads_plain_json() -> None:
    source = SourceText(path="t.json", text='{\n"bf16": true // fast\n}')
    assert [each.rule for each in FORMAT.read(source).findings] == ["trainer.bad_value"]


def test_numbers_in_quotes_are_findings() -> None:
    """transformers keeps the text, and fails in the first step."""
    (finding,) = read(gradient_accumulation_steps="8").findings
    assert finding.rule == "trainer.bad_value"
    assert finding.message == "given '8'; a whole number is allowed"


def test_a_mistyped_optimizer_gets_the_nearest() -> None:
    settings, world = read(optim="adamw_torchh").settings, CheckContext(num_gpus=8, decisions={})
    (broken,) = [each for rule in FORMAT.rules for each in rule.check(settings, world)]
    assert "did you mean adamw_torch" in broken.message
    assert "galore" not in broken.message


@pytest.mark.parametrize("key", WHOLE)
def test_a_whole_number_with_a_point_ends_a_training(key: str) -> None:
    assert [each.message for each in read(**{key: 2.0}).findings] == [
        "given 2.0, which stays so; a whole number is allowed"
    ]
    assert not read(**{key: 2}).findings
    assert read(**{key: 2.5}).findings


def test_the_number_of_epochs_may_have_a_point() -> None:
    assert not read(num_train_epochs=3.0, logging_steps=10.0).findings

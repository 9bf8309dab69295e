"""Reading a DeepSpeed file: lines, findings, and what keys decide."""

from typing import Any

import pytest

from planner.errors import InputError
from planner.formats.deepspeed.format import read, recognise
from planner.formats.format import SourceText

BATCH = (
    '"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4'
)


def source(text: str) -> SourceText:
    return SourceText(path="ds.json", text=text)


def decided(text: str) -> dict[str, Any]:
    found = read(source("{" + text + "}")).decisions
    return {name: value.value for name, value in found.items()}


def findings(text: str) -> list[tuple[str, str, int]]:
    found = read(source("{" + text + "}")).findings
    return [(each.rule.removeprefix("deepspeed."), each.key, each.line) for each in found]


def test_decisions_name_their_key_and_line() -> None:
    reading = read(
        source('{\n// batch\n"train_batch_size": 8,\n"zero_optimization": {\n"stage": 2}}')
    )
    stage = reading.decisions["zero_stage"]
    assert (stage.value, stage.key, stage.line) == (2, "zero_optimization.stage", 5)
    assert reading.settings["train_batch_size"].line == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BATCH, {"dp": 8, "num_gpus": 8, "global_batch": 64, "micro_batch": 2}),
        (BATCH + ', "pipeline": {"stages": 4}', {"dp": 8, "pp": 4, "num_gpus": 32}),
        (BATCH + ', "sequence_parallel_size": 2', {"dp": 8, "cp": 2, "num_gpus": 16}),
        ('"train_micro_batch_size_per_gpu": 2', {"micro_batch": 2, "num_micro_batches": 1}),
        ('"train_batch_size": 400', {"global_batch": 400, "num_micro_batches": 1}),
        (
            (
                '"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, '
                '"data_parallel_size": 4, "tensor_parallel": {"autotp_size": 2}'
            ),
            {"global_batch": 24, "dp": 4, "tp": 2, "num_gpus": 8},
        ),
        (
            '"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2, "data_parallel_size": 4',
            {"num_micro_batches": 3},
        ),
        ('"zero_optimization": true', {"zero_stage": 1}),
        ('"zero_optimization": {"cpu_offload": true}', {"offload": "optimizer:host"}),
        (
            (
                '"zero_optimization": {"stage": 3, "offload_optimizer": '
                '{"device": "cpu", "ratio": 0.29}}'
            ),
            {"offload": "optimizer:host", "offload_percent": 29},
        ),
        (
            (
                '"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}, '
                '"offload_param": {"device": "nvme"}}'
            ),
            {"offload": "optimizer+parameters:nvme"},
        ),
        (
            (
                '"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, '
                '"offload_param": {"device": "cpu"}}'
            ),
            {"offload": "optimizer:host"},
        ),
        ('"bfloat16": {"enabled": true}', {"precision": "bf16"}),
        ('"optimizer": {"type": "Adam"}', {"optimizer": "adam"}),
        (
            '"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}',
            {"optimizer": "sgd-momentum"},
        ),
        (
            (
                '"optimizer": {"type": "AdamW"}, "bf16": {"enabled": true, '
                '"bf16_optimizer_states": true}'
            ),
            {"optimizer": "adam-bf16"},
        ),
        ('"expert_parallel": {"enabled": true, "autoep_size": 4}', {"ep": 4}),
        ('"training_script": {"sequence_length": 4096}', {"seq_len": 4096}),
        ('"train_batch_size": 5e2', {"global_batch": 500}),
    ],
)
def test_keys_decide(text: str, expected: dict[str, Any]) -> None:
    found = decided(text)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        (BATCH + ', "tensor_parallel": {"autotp_size": 2}', "dp"),
        (BATCH + ', "tensor_parallel": {"autotp_size": 2}', "global_batch"),
        ('"zero_optimization": {"offload_param": {"device": "cpu"}}', "offload"),
        ('"pipeline": {"stages": "auto"}', "pp"),
        ('"expert_parallel": {"enabled": false, "autoep_size": 4}', "ep"),
        ('"bf16": {"enabled": "auto"}', "precision"),
        (
            '"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto"',
            "num_micro_batches",
        ),
        ('"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto"', "num_micro_batches"),
        (('"train_batch_size": 65, "train_micro_batch_size_per_gpu": 2, '
         '"gradient_accumulation_steps": 4'), "dp"),
    ],
)  # fmt: skip
def test_what_a_file_leaves_open_is_not_decided(text: str, absent: str) -> None:
    assert absent not in decided(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"zero_optimisation": {}', ("unknown_key", "zero_optimisation", 1)),
        ('\n"bf16": {"enable": true}', ("unknown_key", "bf16.enable", 2)),
        ('"fp16": true', ("bad_value", "fp16", 1)),
        ('"train_batch_size": "8"', ("bad_value", "train_batch_size", 1)),
        ('"train_batch_size": 0', ("bad_value", "train_batch_size", 1)),
        ('"steps_per_print": 1, "steps_per_print": 2', ("duplicate_key", "steps_per_print", 1)),
        ('"train_batch_size": "auto"', ("auto_value", "train_batch_size", 1)),
        ('"training_script": {"layers": 3}', ("unknown_key", "training_script.layers", 1)),
        (
            '"training_script": {"layers_per_stage": ["a"]}',
            ("bad_value", "training_script.layers_per_stage", 1),
        ),
    ],
)
def test_what_is_wrong_is_a_finding_with_its_line(text: str, expected: object) -> None:
    assert findings(text) == [expected]


def test_an_unknown_key_comes_with_the_nearest_known_one() -> None:
    found = read(source('{"gradient_accumulation_step": 1}')).findings[0]
    assert "gradient_accumulation_steps" in found.message
    assert found.severity == "error"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('"bf16": {"loss_scale": 0}', "it is a key of fp16"),
        ('"offload_optimizer": {"device": "cpu"}', "it is a key of zero_optimization"),
        ('"max_grad_norm": 1.0', "gradient_clipping in its place"),
        ('"compile": {"backend": "inductor"}', "engine.compile() in the script in its place"),
        ('"training_script": {"stage": 1}', "it is a key of zero_optimization"),
    ],
)
def test_a_key_in_the_wrong_place_is_an_error_that_names_the_right_one(
    text: str, hint: str
) -> None:
    (finding,) = read(source("{" + text + "}")).findings
    assert finding.severity == "error"
    assert finding.message.endswith(hint)


def test_keys_of_the_script_at_the_top_are_one_warning() -> None:
    own = ", ".join(f'"num-layers-{number}": 1' for number in range(10))
    (finding,) = read(source('{"train_batch_size": 8,\n' + own + "}")).findings
    assert (finding.severity, finding.key, finding.line) == ("warning", "num-layers-0", 2)
    assert " and 2 more: ignored by DeepSpeed" in finding.message


@pytest.mark.parametrize("key", ["_comment", "comment", "_comment_2", "//", "#comment"])
def test_a_comment_written_as_a_key_at_the_top_is_none_of_ours(key: str) -> None:
    assert findings(f'"{key}": "tuned by hand"') == []
    assert findings(f'"zero_optimization": {{"{key}": 1}}') != []


def test_keys_of_user_chosen_sections_are_free() -> None:
    assert findings('"scheduler": {"type": "W", "params": {"anything": 1}}') == []
    assert findings('"zero_optimization": {"offload_param": null, "overlap_comm": null}') == []


def test_auto_is_no_finding_where_trainer_fills_it_in() -> None:
    text = '{"train_batch_size": "auto", "zero_optimization": {"reduce_bucket_size": "auto"}}'
    (finding,) = read(source(text)).findings
    assert (finding.rule, finding.key) == ("deepspeed.auto_value", "train_batch_size")
    assert finding.message.startswith('"auto", here and at 1 other key(s), is filled in')
    assert read(source(text), fills_auto=True).findings == ()


@pytest.mark.parametrize("text", ["", "[1]", "3", "train_batch_size: 8", '{"a": 1'])
def test_what_is_no_object_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match=r"ds.json::line 1: "):
        read(source(text))


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        ('{"train_batch_size": 8}', True),
        ('// by hand\n{"zero_optimization": {"stage": 1}}', True),
        ('# by hand\n{"train_micro_batch_size_per_gpu": 1,}', True),
        ('{"model_type": "llama", "num_hidden_layers": 32}', False),
        ('{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}', False),
        ("train_batch_size: 8", False),
        ('["train_batch_size"]', False),
        ('{"train_batch_size": ', False),
    ],
)
def test_files_are_recognised_by_their_content(text: str, is_ours: bool) -> None:
    assert recognise(source(text)) is is_ours

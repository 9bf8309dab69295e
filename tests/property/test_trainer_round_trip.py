"""TrainingArguments: what is written reads back, and foreign keys stay."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from accelerate_plans import Case, cases

from planner.errors import ExpressError
from planner.formats.format import CheckContext, SourceText
from planner.formats.trainer.format import FORMAT
from planner.spec.job import read_documents

FOREIGN = """{
  "output_dir": "runs/1",
    "learning_rate": 3e-4,
  "per_device_train_batch_size": 1,
  "gradient_checkpointing": true,
  "fsdp_config": {"fsdp_version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
  "seed":   7
}
"""


def source(text: str) -> SourceText:
    return SourceText(path="training_arguments.json", text=text)


def assert_reads_as(text: str, case: Case) -> None:
    """Every decision of the file is the plan's; degrees stand in the environment."""
    context, strategy = case
    reading = FORMAT.read(source(text))
    found = {name: value.value for name, value in reading.decisions.items()}
    assert reading.findings == ()
    assert found["micro_batch"] == strategy.micro_batch
    assert found["num_micro_batches"] == strategy.num_micro_batches
    assert found["precision"] == context.job.precision
    assert found["optimizer"] == context.traits.optimizer.name
    assert found["zero_stage"] == strategy.zero_stage
    assert found.get("offload", "none") == strategy.offload
    recomputes = found.get("recompute_layers_per_stage") == "all"
    assert recomputes is (strategy.recompute == "full")


@pytest.fixture(scope="module")
def plans() -> list[Case]:
    found: list[Case] = []
    for case in cases(17):
        with suppress(ExpressError):
            FORMAT.emit(*case)
            found.append(case)
        if len(found) == 80:
            break
    return found


def test_what_is_written_reads_back_as_the_plan(plans: list[Case]) -> None:
    for plan in plans:
        assert_reads_as(FORMAT.emit(*plan).files[0].text, plan)


def test_no_written_file_breaks_a_rule(plans: list[Case]) -> None:
    for plan in plans:
        reading = FORMAT.read(source(FORMAT.emit(*plan).files[0].text))
        world = CheckContext(num_gpus=plan[1].num_gpus, decisions={})
        broken = [rule.name for rule in FORMAT.rules if list(rule.check(reading.settings, world))]
        assert broken == []


def test_a_plan_written_into_a_file_reads_back_and_foreign_keys_stay(plans: list[Case]) -> None:
    without_mesh = [plan for plan in plans if not FORMAT.emit(*plan).environment]
    assert len(without_mesh) > 10
    for plan in without_mesh:
        text = FORMAT.written_into(source(FOREIGN), *plan).text
        assert_reads_as(text, plan)
        for line in ('  "output_dir": "runs/1",', '    "learning_rate": 3e-4,', '  "seed":   7'):
            assert line in text
        assert json.loads(text)["fsdp_config"]["state_dict_type"] == "SHARDED_STATE_DICT"


def test_a_plan_written_over_another_leaves_nothing_of_it(plans: list[Case]) -> None:
    without_mesh = [plan for plan in plans if not FORMAT.emit(*plan).environment]
    for old, new in zip(without_mesh, reversed(without_mesh), strict=True):
        text = FORMAT.written_into(source(FORMAT.emit(*old).files[0].text), *new).text
        assert_reads_as(text, new)


def test_a_mesh_has_no_place_in_the_file(plans: list[Case]) -> None:
    plan = next(plan for plan in plans if FORMAT.emit(*plan).environment)
    with pytest.raises(ExpressError, match="PARALLELISM_CONFIG_DP_SHARD_SIZE"):
        FORMAT.write_into(source(FOREIGN), *plan)


def test_a_file_that_leaves_zero_to_another_is_not_written_into(plans: list[Case]) -> None:
    text = '{"per_device_train_batch_size": 1, "deepspeed": "zero.json"}'
    plan = next(plan for plan in plans if plan[0].traits.name == "deepspeed")
    with pytest.raises(ExpressError, match="names a file"):
        FORMAT.write_into(source(text), *plan)


@pytest.mark.parametrize("kind", ["", "packed", "padded", "grouped"])
def test_grouped_documents_are_written_and_read_back_and_others_are_the_scripts(
    kind: str, plans: list[Case]
) -> None:
    for context, strategy in plans:
        longest = context.job.seq_len
        documents = read_documents(f"{kind}:{longest // 8}", longest) if kind else None
        case = (replace(context, job=replace(context.job, documents=documents)), strategy)
        emitted = FORMAT.emit(*case)
        text = emitted.files[0].text
        assert_reads_as(text, case)
        batching = FORMAT.read(source(text)).batching
        assert (batching.value if batching else "") == (kind if kind == "grouped" else "")
        told = [each.key for each in emitted.decided if "documents" in each.key]
        is_scripts = kind in ("packed", "padded")
        assert told == [f"training script: documents {kind}"] * is_scripts


def test_a_users_own_sampling_stays(plans: list[Case]) -> None:
    for plan in (each for each in plans if not FORMAT.emit(*each).environment):
        own = FOREIGN.replace('"seed"', '"train_sampling_strategy": "sequential",\n  "seed"')
        assert (
            '"train_sampling_strategy": "sequential"'
            in FORMAT.written_into(source(own), *plan).text
        )

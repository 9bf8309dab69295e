"""Accelerate's file and TrainingArguments: what is written reads back, foreign keys stay."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import pytest
from accelerate_plans import Case, cases

from planner.documents.tree import parsed_yaml
from planner.errors import ExpressError
from planner.formats.accelerate.format import FORMAT as ACCELERATE
from planner.formats.format import CheckContext, Format, ParsedConfig, SourceText
from planner.formats.trainer.format import FORMAT as TRAINER
from planner.spec.job import read_documents

NEUTRAL = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp_replicate": 1, "offload": "none"}
NEUTRAL |= {"sequence_parallel": False}
CARRIED = (*NEUTRAL, "dp", "zero_stage")
FOREIGN = """\
# kept: the team's defaults
debug: false   # quiet
main_training_function: main
fsdp_config:
  fsdp_state_dict_type: SHARDED_STATE_DICT  # kept too
  version: 2
deepspeed_config:
  gradient_clipping: 0.5   # ours
distributed_type: FSDP
compute_environment: LOCAL_MACHINE
# the end
"""
ARGUMENTS = """{
  "output_dir": "runs/1",
    "learning_rate": 3e-4,
  "per_device_train_batch_size": 1,
  "gradient_checkpointing": true,
  "fsdp_config": {"fsdp_version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
  "seed":   7
}
"""


def source(text: str) -> SourceText:
    return SourceText(path="file", text=text)


def found_in(reading: ParsedConfig) -> dict[str, object]:
    assert reading.findings == ()
    return {name: value.value for name, value in reading.decisions.items()}


def assert_accelerate_reads_as(text: str, case: Case) -> None:
    """Every decision of the file is the plan's; what it leaves out is neutral or in user code."""
    context, strategy = case
    reading = ACCELERATE.read(source(text))
    found = found_in(reading)
    assert found["num_gpus"] == strategy.num_gpus
    assert found.get("precision", "bf16") == context.job.precision
    for name in CARRIED:
        assert found.get(name, NEUTRAL.get(name)) == getattr(strategy, name), name
    kind = reading.settings["distributed_type"].value
    if kind == "DEEPSPEED":
        assert found["num_micro_batches"] == strategy.num_micro_batches
    if kind == "FSDP":
        full = found.get("recompute_layers_per_stage", (0,) * strategy.pp)
        expected = strategy.recompute_layers_per_stage
        assert full == ("all" if strategy.recompute == "full" else expected)


def assert_trainer_reads_as(text: str, case: Case) -> None:
    """Every decision of the file is the plan's; degrees stand in the environment."""
    context, strategy = case
    found = {"offload": "none"} | found_in(TRAINER.read(source(text)))
    for name in ("micro_batch", "num_micro_batches", "zero_stage", "offload"):
        assert found[name] == getattr(strategy, name), name
    assert found["precision"] == context.job.precision
    assert found["optimizer"] == context.traits.optimizer.name
    recomputes = found.get("recompute_layers_per_stage") == "all"
    assert recomputes is (strategy.recompute == "full")


READS_AS: dict[str, Callable[[str, Case], None]] = {
    "accelerate": assert_accelerate_reads_as,
    "trainer": assert_trainer_reads_as,
}


def expressible(kind: Format, seed: int, number: int) -> list[Case]:
    found = []
    for case in cases(seed):
        with suppress(ExpressError):
            kind.emit(*case)
            found.append(case)
        if len(found) == number:
            break
    return found


@pytest.fixture(scope="module")
def accelerate_plans() -> list[Case]:
    return expressible(ACCELERATE, seed=7, number=60)


@pytest.fixture(scope="module")
def trainer_plans() -> list[Case]:
    return expressible(TRAINER, seed=17, number=80)


@pytest.fixture(params=[ACCELERATE, TRAINER], ids=lambda kind: kind.name)
def kind_and_plans(request: pytest.FixtureRequest) -> tuple[Format, list[Case]]:
    return request.param, request.getfixturevalue(f"{request.param.name}_plans")


def without_mesh(plans: list[Case]) -> list[Case]:
    found = [plan for plan in plans if not TRAINER.emit(*plan).environment]
    assert len(found) > 10
    return found


def test_every_section_is_drawn(accelerate_plans: list[Case]) -> None:
    texts = [ACCELERATE.emit(*plan).files[0].text for plan in accelerate_plans]
    kinds = {ACCELERATE.read(source(text)).settings["distributed_type"].value for text in texts}
    assert kinds >= {"FSDP", "MULTI_GPU", "DEEPSPEED"}
    assert all("mixed_precision" in text for text in texts)


def test_what_is_written_reads_back_as_the_plan_and_breaks_no_rule(
    kind_and_plans: tuple[Format, list[Case]],
) -> None:
    kind, plans = kind_and_plans
    for plan in plans:
        emitted = kind.emit(*plan)
        assert emitted == kind.emit(*plan)
        text = emitted.files[0].text
        READS_AS[kind.name](text, plan)
        reading = kind.read(source(text))
        decisions = found_in(reading) if kind is ACCELERATE else {}
        world = CheckContext(
            num_gpus=plan[1].num_gpus, decisions=decisions, environment=emitted.environment
        )
        broken = [rule.name for rule in kind.rules if list(rule.check(reading.settings, world))]
        assert broken == []


def test_a_plan_written_into_a_file_reads_back_and_foreign_lines_stay(
    accelerate_plans: list[Case],
) -> None:
    kept = [line for line in FOREIGN.splitlines() if "version" not in line and "type:" not in line]
    for plan in accelerate_plans[:30]:
        text = ACCELERATE.write_into(source(FOREIGN), *plan)
        assert_accelerate_reads_as(text, plan)
        assert [line for line in text.splitlines() if line in kept] == kept
        section = parsed_yaml("f", text).value["fsdp_config"]
        assert section["fsdp_state_dict_type"] == "SHARDED_STATE_DICT"


def test_a_plan_written_into_arguments_reads_back_and_foreign_keys_stay(
    trainer_plans: list[Case],
) -> None:
    for plan in without_mesh(trainer_plans):
        text = TRAINER.written_into(source(ARGUMENTS), *plan).text
        assert_trainer_reads_as(text, plan)
        for line in ('  "output_dir": "runs/1",', '    "learning_rate": 3e-4,', '  "seed":   7'):
            assert line in text
        assert json.loads(text)["fsdp_config"]["state_dict_type"] == "SHARDED_STATE_DICT"
        # A user's own sampling stays.
        sampling = '"train_sampling_strategy": "sequential"'
        own = ARGUMENTS.replace('"seed"', f'{sampling},\n  "seed"')
        assert sampling in TRAINER.written_into(source(own), *plan).text


def test_a_plan_written_over_another_leaves_nothing_of_it(
    kind_and_plans: tuple[Format, list[Case]],
) -> None:
    kind, plans = kind_and_plans
    plans = plans[:40] if kind is ACCELERATE else without_mesh(plans)
    for old, new in zip(plans, reversed(plans), strict=True):
        text = kind.written_into(source(kind.emit(*old).files[0].text), *new).text
        READS_AS[kind.name](text, new)


def test_every_reason_is_in_one_error() -> None:
    context, strategy = next(
        case for case in islice(cases(3), 50) if case[0].model.num_blocks == 32
    )
    layers = {"selective": (2,), "recompute": (3,), "offloaded": (1,)}
    odd = replace(
        strategy,
        **{f"{policy}_layers_per_stage": counts for policy, counts in layers.items()},
        layers_per_stage=(32,),
        zero_stage=1,
        pp=1,
        vpp=2,
    )
    with pytest.raises(ExpressError) as caught:
        ACCELERATE.emit(context, odd)
    for part in (*(f"{policy}_layers" for policy in layers), "vpp 2", "zero_stage"):
        assert part in str(caught.value)


def test_what_has_no_place_in_arguments_is_not_written_into_them(trainer_plans: list[Case]) -> None:
    meshed = next(plan for plan in trainer_plans if TRAINER.emit(*plan).environment)
    with pytest.raises(ExpressError, match="PARALLELISM_CONFIG_DP_SHARD_SIZE"):
        TRAINER.write_into(source(ARGUMENTS), *meshed)
    # Nor is a file that leaves ZeRO to another.
    text = '{"per_device_train_batch_size": 1, "deepspeed": "zero.json"}'
    plan = next(plan for plan in trainer_plans if plan[0].traits.name == "deepspeed")
    with pytest.raises(ExpressError, match="names a file"):
        TRAINER.write_into(source(text), *plan)


@pytest.mark.parametrize("kind", ["", "packed", "padded", "grouped"])
def test_grouped_documents_are_written_and_read_back_and_others_are_the_scripts(
    kind: str, trainer_plans: list[Case]
) -> None:
    for context, strategy in trainer_plans:
        longest = context.job.seq_len
        documents = read_documents(f"{kind}:{longest // 8}", longest) if kind else None
        case = (replace(context, job=replace(context.job, documents=documents)), strategy)
        emitted = TRAINER.emit(*case)
        text = emitted.files[0].text
        assert_trainer_reads_as(text, case)
        batching = TRAINER.read(source(text)).batching
        assert (batching.value if batching else "") == (kind if kind == "grouped" else "")
        told = [each.key for each in emitted.decided if "documents" in each.key]
        is_scripts = kind in ("packed", "padded")
        assert told == [f"training script: documents {kind}"] * is_scripts

"""Accelerate's file: what is written reads back, and foreign keys stay."""

from contextlib import suppress
from dataclasses import replace
from itertools import islice

import pytest
from accelerate_plans import Case, cases

from planner.documents.tree import parsed_yaml
from planner.errors import ExpressError
from planner.formats.accelerate.format import FORMAT
from planner.formats.format import CheckContext, SourceText

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


def source(text: str) -> SourceText:
    return SourceText(path="accelerate.yaml", text=text)


def assert_reads_as(text: str, case: Case) -> None:
    """Every decision of the file is the plan's; what it leaves out is neutral or in user code."""
    context, strategy = case
    reading = FORMAT.read(source(text))
    found = {name: value.value for name, value in reading.decisions.items()}
    assert reading.findings == ()
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


def expressible(seed: int, number: int) -> list[Case]:
    found = []
    for case in cases(seed):
        with suppress(ExpressError):
            FORMAT.emit(*case)
            found.append(case)
        if len(found) == number:
            break
    return found


@pytest.fixture(scope="module")
def plans() -> list[Case]:
    return expressible(seed=7, number=60)


def test_every_section_is_drawn(plans: list[Case]) -> None:
    texts = [FORMAT.emit(*plan).files[0].text for plan in plans]
    kinds = {FORMAT.read(source(text)).settings["distributed_type"].value for text in texts}
    assert kinds >= {"FSDP", "MULTI_GPU", "DEEPSPEED"}


def test_what_is_written_reads_back_as_the_plan(plans: list[Case]) -> None:
    for plan in plans:
        text = FORMAT.emit(*plan).files[0].text
        assert_reads_as(text, plan)
        assert "mixed_precision" in text


def test_the_same_plan_gives_the_same_file(plans: list[Case]) -> None:
    assert all(FORMAT.emit(*plan) == FORMAT.emit(*plan) for plan in plans[:20])


def test_no_written_file_breaks_a_rule(plans: list[Case]) -> None:
    for plan in plans:
        emitted = FORMAT.emit(*plan)
        reading = FORMAT.read(source(emitted.files[0].text))
        decisions = {name: value.value for name, value in reading.decisions.items()}
        world = CheckContext(
            num_gpus=plan[1].num_gpus, decisions=decisions, environment=emitted.environment
        )
        broken = [rule.name for rule in FORMAT.rules if list(rule.check(reading.settings, world))]
        assert broken == []


def test_a_plan_written_into_a_file_reads_back_and_foreign_lines_stay(plans: list[Case]) -> None:
    for plan in plans[:30]:
        text = FORMAT.write_into(source(FOREIGN), *plan)
        assert_reads_as(text, plan)
        kept = [
            line for line in FOREIGN.splitlines() if "version" not in line and "type:" not in line
        ]
        lines = text.splitlines()
        assert [line for line in lines if line in kept] == kept
        assert parsed_yaml("f", text).value["fsdp_config"]["fsdp_state_dict_type"] == (
            "SHARDED_STATE_DICT"
        )


def test_a_plan_written_over_another_leaves_nothing_of_it(plans: list[Case]) -> None:
    for old, new in zip(plans[:20], plans[20:40], strict=True):
        text = FORMAT.write_into(source(FORMAT.emit(*old).files[0].text), *new)
        assert_reads_as(text, new)


def test_every_reason_is_in_one_error() -> None:
    context, strategy = next(
        case for case in islice(cases(3), 50) if case[0].model.num_blocks == 32
    )
    odd = replace(
        strategy,
        selective_layers_per_stage=(2,),
        offloaded_layers_per_stage=(1,),
        layers_per_stage=(32,),
        recompute_layers_per_stage=(3,),
        zero_stage=1,
        pp=1,
        vpp=2,
    )
    with pytest.raises(ExpressError) as caught:
        FORMAT.emit(context, odd)
    for part in ("selective_layers", "recompute_layers", "offloaded_layers", "vpp 2", "zero_stage"):
        assert part in str(caught.value)

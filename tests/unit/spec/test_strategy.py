from dataclasses import fields, replace

import pytest
from contexts import strategy_of

from planner.catalog.models import load_model
from planner.spec.strategy import (
    GPU_DEGREES,
    MODEL_PARALLEL_DEGREES,
    OFFLOAD_CODES,
    PLACEMENT_NAMES,
    PLACEMENTS,
    SCHEDULES,
    STAGE_DEGREES,
    StrategyColumns,
)

DEGREES = {"dp": 2, "tp": 4, "pp": 2, "cp": 3, "ep": 2}
PLAN = strategy_of(
    **DEGREES,
    micro_batch=2,
    num_micro_batches=8,
    sequence_parallel=True,
    offload="optimizer:nvme",
    layers_per_stage=(5, 3),
)


def test_gpus_are_dp_tp_pp_cp_with_ep_inside_dp() -> None:
    assert PLAN.num_gpus == 2 * 4 * 2 * 3
    assert PLAN.columns().num_gpus.tolist() == [48]
    # Experts are replicated over the 4 x 3 x 2 ranks of a stage, of which 4 x 2 hold all once.
    assert PLAN.columns().expert_dp.tolist() == [3]


def test_degrees_of_gpus_are_the_fields_of_that_kind() -> None:
    assert {"dp", "tp", "pp", "cp"} <= set(GPU_DEGREES)
    assert set(MODEL_PARALLEL_DEGREES) == {*GPU_DEGREES} - {"dp"}
    assert set(STAGE_DEGREES) == {*GPU_DEGREES} - {"pp"}
    assert len(set(GPU_DEGREES)) == len(GPU_DEGREES)
    for order in PLACEMENTS.values():
        assert set(order) == {*GPU_DEGREES, "ep"}


def test_a_layout_is_known_by_degrees_above_one_and_by_an_etp_of_its_own() -> None:
    assert PLAN.degrees == DEGREES
    other = {"tp": 4, "pp": 2, "vpp": 2, "cp": 3, "ep": 2, "etp": 1}
    assert replace(PLAN, etp=1, dp=1, vpp=2).degrees == other


@pytest.mark.parametrize(
    ("schedule", "stage"), [("1f1b", 1), ("zb-h1", 1), ("zb-v", 0), ("dualpipe-v", 0)]
)
def test_the_head_is_on_the_last_stage_or_where_a_v_ends(schedule: str, stage: int) -> None:
    plan = replace(PLAN, schedule=schedule)
    assert plan.head_stage == stage
    assert plan.columns().head_stage.tolist() == [stage]


@pytest.mark.parametrize(
    ("selective", "full", "name"),
    [
        ((0, 0), (0, 0), "none"),
        ((0, 0), (5, 3), "full"),
        ((5, 3), (0, 0), "selective"),
        ((0, 0), (2, 0), "full 2/8"),
        ((1, 3), (2, 0), "full 2/8 + selective 4/8"),
    ],
)
def test_recomputation_has_a_name(
    selective: tuple[int, ...], full: tuple[int, ...], name: str
) -> None:
    plan = replace(PLAN, selective_layers_per_stage=selective, recompute_layers_per_stage=full)
    assert plan.recompute == name


def test_columns_carry_every_field_of_the_plan() -> None:
    codes = {"offload": OFFLOAD_CODES, "placement": PLACEMENT_NAMES, "schedule": SCHEDULES}
    for field in fields(StrategyColumns):
        expected = getattr(PLAN, field.name)
        if field.name in codes:
            expected = codes[field.name].index(expected)
        assert getattr(PLAN.columns(), field.name).tolist() == [expected], field.name


def test_sizes_that_follow_from_the_fields_of_a_model() -> None:
    # Llama-3-8B: 32 query and 8 key/value heads of 128.
    llama = load_model("llama3-8b")
    assert (llama.query_size, llama.kv_size, llama.value_size) == (4096, 1024, 4096)
    # DeepSeek-V3: 128 heads, values of 128.
    assert load_model("deepseek-v3").value_size == 128 * 128
    # Both stacks of an encoder-decoder are blocks.
    t5 = load_model("t5-11b")
    assert (t5.num_layers, t5.num_decoder_layers, t5.num_blocks) == (24, 24, 48)

"""Multi-token prediction in Megatron's and Bridge's words: written, read back, repaired."""

from collections.abc import Callable

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.formats.format import SourceText
from planner.formats.megatron.options import layout_text
from planner.formats.registry import load_format
from planner.query.from_file import Job
from planner.query.layout import complete
from planner.spec.strategy import Strategy

MEGATRON, BRIDGE = load_format("megatron"), load_format("bridge")
RUN = "torchrun --nproc-per-node 8 run_recipe.py --recipe glm45_air_106b_pretrain_config"


@pytest.fixture
def glm(context_of: Callable[..., Context]) -> Callable[[int], Context]:
    return lambda number: context_of(
        model="glm-4.5-air", cluster="4xdgx-h100", seq_len=4096, mtp_layers=number
    )


@pytest.fixture
def plan(strategy_of: Callable[..., Strategy]) -> Strategy:
    return strategy_of(
        dp=8,
        pp=4,
        ep=8,
        num_micro_batches=2,
        layers_per_stage=(12, 12, 12, 10),
        selective_layers_per_stage=(0,) * 4,
        recompute_layers_per_stage=(0,) * 4,
    )


def source(text: str, path: str = "run.args") -> SourceText:
    return SourceText(path=path, text=text)


def test_layers_stand_in_front_of_the_loss() -> None:
    assert layout_text((3, 1, 0), 2) == "Et*3|t|mmL"


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_written_is_read_back(
    glm: Callable[[int], Context], plan: Strategy, number: int
) -> None:
    text = MEGATRON.emit(glm(number), plan).files[0].text
    assert ("--mtp-num-layers 1\n" in text) == bool(number)
    assert ("mL'" in text) == bool(number)
    reading = MEGATRON.read(source(text))
    assert reading.findings == ()
    assert reading.decisions["mtp_layers"].value == number
    assert reading.decisions["layers_per_stage"].value == plan.layers_per_stage


def test_what_stays_open_is_the_weight_or_the_layers(
    glm: Callable[[int], Context], plan: Strategy
) -> None:
    left = [set(MEGATRON.emit(glm(number), plan).left_open.values()) for number in (0, 1)]
    assert "--mtp-num-layers" in left[0] - left[1]
    assert "--mtp-loss-scaling-factor" in left[1] - left[0]


def test_a_repair_adds_the_layers_and_their_place(
    glm: Callable[[int], Context], plan: Strategy
) -> None:
    before, after = (MEGATRON.emit(glm(number), plan).files[0].text for number in (0, 1))
    written = MEGATRON.write_into(source(before), glm(1), plan)
    assert sorted(written.split()) == sorted(after.split())
    assert MEGATRON.write_into(source(after), glm(1), plan) == after


def test_a_layout_without_its_letter_is_repaired(
    glm: Callable[[int], Context], plan: Strategy
) -> None:
    whole = MEGATRON.emit(glm(1), plan).files[0].text
    assert MEGATRON.write_into(source(whole.replace("mL", "L")), glm(1), plan) == whole


def test_a_recipe_is_told_to_train_them_or_not(
    glm: Callable[[int], Context], plan: Strategy
) -> None:
    for number, word in ((0, "null"), (1, "1"), (2, "2")):
        text = BRIDGE.emit(glm(number), plan).files[0].text
        assert f"model.mtp_num_layers={word}\n" in text
        reading = BRIDGE.read(source(f"{RUN} {text.replace(chr(10), ' ')}\n", "run.sh"))
        assert reading.decisions["mtp_layers"].value == number


def test_a_model_without_them_is_not_mentioned_to_a_recipe(
    context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> None:
    text = BRIDGE.emit(context_of(), strategy_of(dp=8, num_micro_batches=2)).files[0].text
    assert "mtp" not in text


def test_a_recipe_that_is_not_told_trains_what_its_model_has() -> None:
    overrides = "train.micro_batch_size=1 train.global_batch_size=16 "
    overrides += "model.tensor_model_parallel_size=1 model.pipeline_model_parallel_size=1 "
    overrides += "model.context_parallel_size=1 model.expert_model_parallel_size=8"
    job = Job(model=load_model("glm-4.5-air"), cluster=load_cluster("1xdgx-h100"))
    for said, number in (("", 1), (" model.mtp_num_layers=null", 0)):
        reading = BRIDGE.read(source(f"{RUN} {overrides}{said}\n", "run.sh"))
        made = complete(reading, job, "megatron")
        assert made.layout is not None
        assert made.layout.context.job.mtp_layers == number

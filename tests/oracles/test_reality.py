"""Small GPTs trained for real over gloo, against their plans: bytes on the wire, bytes held, time.

Bytes are those of the first rank; what stays with gloo under tensor parallelism is named. An
iteration is within 60 % of its plan, layouts are in its order, on the machine as ``planner
calibrate --measure`` finds it under as many processes as train. These tests run alone: beside
other work DeepSpeed's stage 3 may have let go of gathered weights earlier, and times are disturbed;
of these a second attempt is made.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from reality_cases import (
    CASES,
    ONE_CORE,
    REPLICATED,
    SIZES,
    Case,
    Figures,
    calibrated,
    launch_settings,
    measured,
    model_text,
    plan_of,
    planned,
    train,
)

pytestmark = pytest.mark.alone
CLUSTER = Path(__file__).with_name("training") / "cpu-cluster.yaml"
FEW_TOKENS = SIZES | {"seq_len": 48}
ON_FOUR = {
    f"{name} on 4": replace(CASES[name], ranks=4)
    for name in ("FSDP2, ZeRO 3", "DeepSpeed ZeRO 3", "1F1B")
}
ALL = CASES | ON_FOUR
Seen = Mapping[str, tuple[Figures, Figures]]  # planned and measured, by case


def message_bytes(case: Case) -> int:
    """Activations of a micro-batch between two layers."""
    return 4 * case.micro_batch * FEW_TOKENS["seq_len"] * FEW_TOKENS["hidden_size"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("reality")
    model = folder / "tiny-gpt.yaml"
    model.write_text(model_text(FEW_TOKENS))
    ranks = train(ALL, folder, steps=0, sizes=FEW_TOKENS, limit_s=600)
    length = FEW_TOKENS["seq_len"]
    whole = plan_of(REPLICATED, model, CLUSTER, seq_len=length)
    return {
        name: (
            planned(case, plan_of(case, model, CLUSTER, ONE_CORE, length), whole),
            measured(case, ranks[name], FEW_TOKENS),
        )
        for name, case in ALL.items()
    }


FIGURES = ("sent_bytes", "lasting_bytes", "forward_bytes", "step_bytes")


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("name", ALL)
def test_bytes_sent_held_and_left_by_a_forward_are_those_of_the_plan(
    seen: Seen, name: str, figure: str
) -> None:
    ours, real = (getattr(each, figure) for each in seen[name])
    if figure == "forward_bytes" and ALL[name].kind == "tensor":
        ours += 2 * message_bytes(ALL[name])
    assert ours == real


NAMES = ("DDP", "DDP, recomputed", "FSDP2, ZeRO 3", "1F1B")
ATTEMPTS = 2
WITHIN = 0.6
APART = 1.25  # planned times this far apart have an order
Times = Mapping[str, tuple[float, float]]  # planned and measured seconds, by case


def attempt(folder: Path) -> Times:
    """Measure the machine, plan and train."""
    folder.mkdir()
    cluster, model = calibrated(2, folder), folder / "tiny-gpt.yaml"
    model.write_text(model_text(SIZES))
    settings = (*ONE_CORE, *launch_settings(cluster))
    cases = {name: CASES[name] for name in NAMES}
    ranks = train(cases, folder, steps=5, sizes=SIZES, limit_s=600)
    return {
        name: (
            plan_of(case, model, cluster, settings).estimate.iter_time_s,
            measured(case, ranks[name], SIZES).step_s,
        )
        for name, case in cases.items()
    }


def far_off(times: Times) -> list[str]:
    return [name for name, (ours, real) in times.items() if abs(ours / real - 1.0) > WITHIN]


def out_of_order(times: Times) -> list[tuple[str, str]]:
    return [
        (one, other)
        for one, other in combinations(times, 2)
        if not 1 / APART < times[one][0] / times[other][0] < APART
        and (times[one][0] < times[other][0]) != (times[one][1] < times[other][1])
    ]


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> Times:
    folder = tmp_path_factory.mktemp("reality")
    for number in range(ATTEMPTS):
        found = attempt(folder / str(number))
        if not far_off(found) and not out_of_order(found):
            break
    return found


def test_an_iteration_takes_the_planned_time_within_60_percent(times: Times) -> None:
    assert not far_off(times), times


def test_layouts_whose_planned_times_differ_are_in_their_order(times: Times) -> None:
    assert not out_of_order(times), times


def test_recomputation_is_planned_a_tenth_to_a_third_longer(times: Times) -> None:
    """A repeated forward is a third of three; the more a step exchanges, the less it shows."""
    plain, repeated = times["DDP"][0], times["DDP, recomputed"][0]
    assert 1.1 * plain < repeated < 4.0 / 3.0 * plain

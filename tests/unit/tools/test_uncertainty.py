"""What plans leave free: shortfalls of dense models, groups weighing the same, never too little."""

import pytest
import yaml

from planner.frameworks.registry import FRAMEWORKS
from tools.uncertainty import quantile, uncertainty_text
from tools.validation.compare import Comparison, Figures
from tools.validation.records import Record


def row(framework: str, model: str, shortfall: float, **of_model: object) -> Comparison:
    record = Record.model_validate(
        {
            "id": f"{framework}-{model}-{shortfall}",
            "source": {"title": "one"},
            "quality": "A",
            "framework": framework,
            "model": {"name": model, **of_model},
            "hardware": {"gpu": "h100", "gpus": 8},
            "parallel": {},
            "software": {"framework": framework, "profile": "current"},
            "precision": "bf16",
            "complete": True,
        }
    )
    return Comparison(
        record=record,
        measured=Figures(reserved_gib=50.0 * (1.0 + shortfall)),
        predicted=Figures(reserved_gib=50.0),
    )


@pytest.fixture
def rows() -> list[Comparison]:
    return [
        *(row("megatron", "a", 0.01) for _ in range(9)),
        row("deepspeed", "b", 0.06),
        row("deepspeed", "c", 0.10),
        *(row("torchtitan", "d", -0.02) for _ in range(3)),
    ]


def percents(rows: list[Comparison]) -> dict[str, float]:
    found = yaml.safe_load(uncertainty_text(rows))
    return {name: line["memory_percent"] for name, line in found.items()}


def test_no_framework_is_below_what_most_peaks_of_all_keep(rows: list[Comparison]) -> None:
    # Four groups: -2, 1, 6 and 10 %; four of five peaks lie at or below the last.
    assert percents(rows) == dict.fromkeys(FRAMEWORKS, 10.0)
    more = [*rows, row("megatron", "e", 0.02), row("megatron", "f", 0.02)]
    assert percents(more) == dict.fromkeys(FRAMEWORKS, 6.0) | {"deepspeed": 10.0}


def test_mixtures_do_not_count(rows: list[Comparison]) -> None:
    moe = {"experts": 8, "top_k": 2, "expert_ffn": 64}
    assert percents([*rows, row("torchtitan", "g", 0.5, moe=moe)]) == percents(rows)


def test_groups_weigh_the_same_and_less_than_nothing_is_nothing() -> None:
    assert quantile([[0.1] * 9, [0.2]], 0.5) == pytest.approx(0.1)
    assert quantile([[0.1] * 9, [0.2]], 0.6) == pytest.approx(0.2)
    assert quantile([[-0.1]], 0.9) == 0.0

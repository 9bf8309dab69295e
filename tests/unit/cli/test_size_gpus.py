"""The size command over given sizes: curves, formats, charts, exit codes."""

import pytest
from in_process import json_of

from planner.errors import InputError
from planner.limits import MAX_SIZES
from planner.query.job import read_sizes, smooth_step

QUESTION = ("size", "llama3-8b", "dgx-h100", "--gpus", "8..64", "--global-batch", "64")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8..64", (8, 16, 32, 64)),
        ("24..100", (24, 48, 96, 100)),
        ("64", (64,)),
        ("64,8,8", (8, 64)),
        ("8..32,24", (8, 16, 24, 32)),
    ],
)
def test_sizes(text: str, sizes: tuple[int, ...]) -> None:
    assert read_sizes(text) == sizes


@pytest.mark.parametrize(
    "text",
    ["", "8..", "64..8", "0", "-8", "8.5", "a", "1..99999999", ",".join(map(str, range(1, 70)))],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--gpus"):
        read_sizes(text)
    assert len(read_sizes(",".join(map(str, range(1, MAX_SIZES + 1))))) == MAX_SIZES


def test_the_batch_that_is_proposed_divides_over_the_gpus() -> None:
    assert [smooth_step(gpus) for gpus in (1, 128, 96, 40, 67)] == [64, 64, 48, 40, 64]


def test_json_holds_every_size_in_base_units() -> None:
    data = json_of(*QUESTION, "--weak")
    assert data["scaling"] == "weak"
    assert [size["gpus"] for size in data["sizes"]] == [8, 16, 32, 64]
    assert [size["global_batch"] for size in data["sizes"]] == [64, 128, 256, 512]
    for size in data["sizes"]:
        plan = size["plan"]
        ideal = data["sizes"][0]["plan"]["tokens_per_s"] * size["gpus"] / data["base_gpus"]
        assert size["efficiency"] == pytest.approx(plan["tokens_per_s"] / ideal)
        assert plan["gpus"] == size["gpus"]

"""The README of emitted files: ranks as the network sees them, cells that keep a table whole."""

from typing import Any

import pytest
from contexts import context_of, strategy_of

from planner.cost.topology import group_of
from planner.formats.format import Format
from planner.launchers import load_launcher
from planner.report.emitted import PlanText, output_files
from planner.spec.strategy import PLACEMENT_NAMES

PLAN = PlanText(text="plan", model="my model.yaml", cluster="a b.yaml")


@pytest.fixture
def readme(fake_format: Format) -> Any:
    def text(**strategy: Any) -> str:
        context = context_of(cluster="8xdgx-h100", framework="deepspeed", global_batch=64)
        plan = strategy_of(**strategy)
        files = output_files(fake_format, load_launcher("torchrun"), context, plan, PLAN)
        return next(file.text for file in files if file.name == "README.md")

    return text


def apart(text: str) -> dict[str, str]:
    """Axis to distance of its neighbours, from the table of ranks."""
    lines = text.partition("| axis |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {axis: distance for axis, _, distance in cells}


@pytest.mark.parametrize("placement", PLACEMENT_NAMES)
def test_the_table_of_ranks_is_where_the_network_has_them(readme: Any, placement: str) -> None:
    sizes = {"tp": 2, "cp": 1, "dp": 8, "num_micro_batches": 8, "placement": placement}
    distances = apart(readme(**sizes))
    columns = strategy_of(**sizes).columns()
    group = group_of("dp_shard", columns, context_of(cluster="8xdgx-h100").cluster)
    assert distances["tp"] == "1"
    assert distances["dp"] == "2"
    assert group.local[0] == 8 // int(distances["dp"])
    assert (distances["cp"], distances["pp"]) == ("-", "-")


def test_file_names_with_spaces_are_quoted_in_the_command_that_checks(readme: Any) -> None:
    check = "planner check config.json --model 'my model.yaml' --cluster 'a b.yaml'"
    assert check in readme(dp=8, num_micro_batches=8)

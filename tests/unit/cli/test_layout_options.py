"""The options that give a layout come from the fields of a strategy."""

import inspect
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from planner.cli.layout import Layout, fixes_layout, takes_layout
from planner.cli.memory import memory
from planner.spec.strategy import COLUMNS, DECIDED


def ran(*arguments: str) -> dict[str, Any]:
    """What a command of its own gets of these options."""
    found: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @takes_layout
    def show(name: str, *, layout: Layout, last: bool = False) -> None:
        found.update(layout, name=name, last=last)

    result = CliRunner().invoke(app, ["x", *arguments])
    assert result.exit_code == 0, result.output
    return found


def test_an_option_that_is_left_out_is_neutral_or_follows() -> None:
    found = ran()
    assert set(found) == {*DECIDED, "name", "last"}
    for name in DECIDED:
        known = COLUMNS[name]
        assert found[name] == (None if known.follows else known.value(known.neutral)), name


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (("--tp", "4"), "tp", 4),
        (("--schedule", "zb-v"), "schedule", "zb-v"),
        (("--dp-replicate", "2"), "dp_replicate", 2),
        (("--sequence-parallel",), "sequence_parallel", True),
        (("--no-sequence-parallel",), "sequence_parallel", False),
        (("--last",), "last", True),
    ],
)
def test_an_option_has_the_name_and_the_type_of_its_field(
    arguments: tuple[str, ...], name: str, value: object
) -> None:
    assert ran(*arguments)[name] == value


def test_options_stand_where_the_command_has_its_layout_and_say_what_a_field_is() -> None:
    parameters = inspect.signature(memory).parameters
    names = list(parameters)
    assert "layout" not in names
    assert names[names.index("settings") + 1 : names.index("global_batch")] == [
        name for name in COLUMNS if name in DECIDED
    ]
    (option,) = parameters["zero_stage"].annotation.__metadata__
    assert option.help == "ZeRO stage, 0 to 3 (FSDP: 3) [highest offered]."
    for name in DECIDED:
        (option,) = parameters[name].annotation.__metadata__
        assert all(word in option.help for word in COLUMNS[name].words), name


def test_a_search_takes_the_same_options_as_fixed_values() -> None:
    found: list[str] = []
    app = typer.Typer()

    @app.command()
    @fixes_layout
    def show(
        name: str,
        schedule: str = "all",
        fix: Annotated[list[str] | None, typer.Option()] = None,
    ) -> None:
        found.extend([name, schedule, *(fix or ())])

    words = ["x", "--tp", "4|8", "--fix", "pp=2", "--no-sequence-parallel", "--schedule", "1f1b"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert found == ["x", "1f1b", "tp=4|8", "sequence_parallel=off", "pp=2"]

"""The options of a question stand in every command that asks one, and make a Query."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from planner.cli import options
from planner.cli.app import app
from planner.query.options import OPTIONS
from planner.query.query import Query
from planner.spec.strategy import SEARCHED_FIELDS, STRATEGY_FIELDS


def asked(*arguments: str) -> Query:
    """What a command of its own gets of these options."""
    found: list[Query] = []
    own = typer.Typer()

    @own.command(cls=options.QuestionCommand)
    @options.takes(*options.OF_THE_FASTEST, refused="this is a test")
    def show(*, query: Query, last: bool = False) -> None:
        found.append(query)

    result = CliRunner().invoke(own, ["gpt3-xl", "1xdgx-h100", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ((), {}),
        (("--tp", "4"), {"tp": "4"}),
        (("--tp", "4|8", "--seq-len", "4k"), {"seq_len": 4096, "tp": "4|8"}),
        (("--schedule", "zb-v"), {"schedule": ("zb-v",)}),
        (("--sequence-parallel",), {"sequence_parallel": True}),
        (("--no-sequence-parallel",), {"sequence_parallel": False}),
        (("--set", "traits.a.b=1", "--last"), {"settings": ("traits.a.b=1",)}),
    ],
)
def test_a_query_holds_what_was_said(arguments: tuple[str, ...], given: dict[str, Any]) -> None:
    query = asked(*arguments)
    assert (query.model, query.cluster) == ("gpt3-xl", "1xdgx-h100")
    assert query.given == given


def test_its_words_state_it_again() -> None:
    words = ("--seq-len", "4096", "--tp", "4|8", "--no-sequence-parallel", "--fix", "pp=2")
    assert asked(*words).words() == ("gpt3-xl", "1xdgx-h100", *words)
    assert asked(*asked(*words).words()[2:]) == asked(*words)


def test_options_of_other_groups_are_refused_in_one_line() -> None:
    with pytest.raises(Exception, match=r"--deadline: not taken here: this is a test"):
        asked("--deadline", "30d")


def test_every_decision_of_a_layout_has_its_option() -> None:
    for name in SEARCHED_FIELDS:
        assert all(word in OPTIONS[name].help for word in STRATEGY_FIELDS[name].words) or name in (
            "placement",
            "schedule",
        )


def test_help_shows_the_usual_options_and_help_all_every_one() -> None:
    usual = CliRunner().invoke(app, ["plan", "--help"]).output
    every = CliRunner().invoke(app, ["plan", "--help-all"]).output
    for option in OPTIONS.values():
        assert f"{option.flag} " in every, option.name
        assert (f"{option.flag} " in usual) is option.usual, option.name
    assert 12 <= sum(option.usual for option in OPTIONS.values()) <= 18
    assert f"{OPTIONS['pareto'].flag} " not in CliRunner().invoke(app, ["why", "--help-all"]).output

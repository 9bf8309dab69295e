"""The best of results by hand: what is cheapest changes along the length."""

from dataclasses import replace
from typing import Any

import pytest

from planner.errors import InputError, NothingFitsError
from planner.sweep.run import Results
from planner.sweep.winners import winners

AXES = {"model": ("m",), "cluster": ("small", "large"), "seq_len": (1, 2, 4)}
USD = {("small", 1): 5.0, ("small", 2): 9.0, ("small", 4): 20.0}
USD |= {("large", 1): 10.0, ("large", 2): 6.0, ("large", 4): 5.0}
PLANS: tuple[dict[str, Any], ...] = tuple(
    {
        "model": "m",
        "cluster": cluster,
        "seq_len": length,
        "status": "plan",
        "gpus": 8 if cluster == "small" else 16,
        "days": usd * (4 if cluster == "small" else 1),
        "tokens_per_s": 1000.0 / usd,
        "cost_usd_per_billion_tokens": usd,
    }
    for (cluster, length), usd in USD.items()
)
NONE = {**dict.fromkeys(PLANS[0]), "status": "nothing", "cluster": "large", "seq_len": 4}
RESULTS = Results(path="x.jsonl", axes=AXES, rows=(*PLANS, NONE))


def ask(best: str = "cost", *where: str, per: str | None = None) -> Any:
    return winners(RESULTS, best=best, where=where, per=per)


def test_the_best_are_of_every_length_for_lengths_do_not_compete() -> None:
    found = ask()
    won = {rows[0]["seq_len"]: rows[0]["cluster"] for rows in found.best}
    assert won == {1: "small", 2: "large", 4: "large"}
    assert found.choices == ("cluster",)
    assert ask(per="none").best[0][0]["gpus"] == 8  # of equals the one on fewer GPUs


def test_conditions_keep_rows_and_are_named_where_none_is_left() -> None:
    assert ask("cost", "days<=10", "cluster=large").num_plans == 3
    with pytest.raises(NothingFitsError, match=r"no plan of 6 in x\.jsonl"):
        ask("cost", "days<1")


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as error:
        winners(RESULTS, best="x", where=["dys<3", "days<x", "days"], per="mdel")
    keys = [problem.key for problem in error.value.problems]
    assert keys == ["--best", "--where", "--where", "--where", "--per"]
    assert "did you mean days" in str(error.value)


def test_a_figure_that_no_plan_has_cannot_be_best() -> None:
    rows = tuple({**row, "days": None} for row in PLANS)
    bare = replace(RESULTS, rows=rows)
    with pytest.raises(InputError, match="no plan has days"):
        winners(bare, best="days")

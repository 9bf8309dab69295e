"""The best cells of a result and where they change, of a table made by hand."""

from pathlib import Path
from typing import Any

import pytest
from sweep_results import write_results

from planner.errors import InputError
from planner.sweep.results import Results, read_results
from planner.sweep.winners import Asked, best_of, changes_of, plans_of

pl = pytest.importorskip("polars")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    path = tmp_path / "r.parquet"
    write_results(path)
    return read_results(path)


def named(rows: list[dict[str, Any]]) -> list[str]:
    return [row["cluster"] for row in rows]


def test_what_is_trained_does_not_compete_and_the_cheapest_comes_first(results: Results) -> None:
    asked = Asked(best="cost", top=1)
    best = best_of(results, asked, plans_of(results, asked))
    assert (best.per, best.choices) == (("seq_len",), ("cluster",))
    assert {g: named(rows) for g, rows in best.groups.items()} == {
        (1,): ["small"],
        (2,): ["large"],
        (4,): ["large"],
    }


def test_under_a_number_of_days_the_dearer_one_is_the_cheapest(results: Results) -> None:
    asked = Asked(best="cost", under=(("days", 15.0),), per=("seq_len",), top=2)
    best = best_of(results, asked, plans_of(results, asked))
    assert {g: named(rows) for g, rows in best.groups.items()} == {
        (1,): ["large"],
        (2,): ["large"],
        (4,): ["large"],
    }
    assert best.num_plans == 3


def test_the_winner_changes_where_another_choice_becomes_the_best(results: Results) -> None:
    asked = Asked(best="cost")
    changes = changes_of(results, asked, plans_of(results, asked), "seq_len")
    (steps,) = changes.groups.values()
    assert [(step.value, step.winner, step.is_change) for step in steps] == [
        (1, ("small",), False),
        (2, ("large",), True),
        (4, ("large",), False),
    ]
    assert [step.lead for step in steps] == pytest.approx([1.0, 0.5, 3.0])


def test_a_condition_is_sql_on_columns(results: Results) -> None:
    asked = Asked(where="cluster = 'small' and seq_len >= 2")
    assert [row["seq_len"] for row in plans_of(results, asked)] == [2, 4]
    with pytest.raises(InputError, match="--where: is no condition"):
        plans_of(results, Asked(where="nosuch > 3"))


def test_no_figure_at_all_is_said_and_not_shown_as_nothing(results: Results) -> None:
    lacking = Results(
        path="r", axes=results.axes, frame=results.frame.with_columns(days=pl.lit(None, pl.Float64))
    )
    with pytest.raises(InputError, match="days is not known of any plan"):
        plans_of(lacking, Asked(under=(("days", 30.0),)))
    with pytest.raises(InputError, match="--best: no plan has such a figure"):
        plans_of(lacking, Asked(best="days"))

"""Lines below the rows: what a vendor ships, and which plans lie inside the margin."""

import io
from dataclasses import replace

import pytest
from contexts import context_of
from rich.console import Console

from planner.answers.base import Answer
from planner.answers.plan import answer, beside_document, beside_screen
from planner.answers.recipe import placed
from planner.answers.row import row_from
from planner.answers.rows import MemoryRow
from planner.catalog.recipes import find_recipe
from planner.report.plan import placed_line, plan_document, print_answer, recipe_row, tight_line
from planner.search.space.narrow import read_narrowing
from planner.units import GIB

NARROWED = read_narrowing(fix=["tp=1", "pp=1", "ep=1", "zero_stage=1"])


def printed(found: Answer) -> str:
    text = io.StringIO()
    told = beside_screen(found, verbose=True)
    print_answer(found, told, Console(file=text, width=500), verbose=True)
    return text.getvalue()


@pytest.fixture(scope="module")
def shipped() -> Answer:
    """A question for which a recipe is shipped."""
    context = context_of(model="llama3-8b", profile="bridge", global_batch=128, seq_len=8192)
    return answer([context], top=2, narrowing=NARROWED)


def test_the_recipe_stands_below_the_rows(shipped: Answer) -> None:
    found = placed(shipped)
    assert found.recipe == find_recipe("llama3_8b_pretrain_8gpu_h100_bf16")
    lines = printed(shipped).splitlines()
    rows = next(n for n, text in enumerate(lines) if text.startswith("Best layouts on 8 GPUs"))
    line = lines.index(placed_line(found))
    assert rows < line < next(n for n, text in enumerate(lines) if text.startswith("Plan 1 spends"))


def test_json_has_the_recipe(shipped: Answer) -> None:
    document, found = plan_document(shipped, beside_document(shipped)), placed(shipped)
    assert document.recipe == recipe_row(found)
    assert document.recipe.slower_fraction == pytest.approx(
        document.recipe.iter_time_s / document.plans[0].iter_time_s - 1.0
    )


def test_without_a_recipe_nothing_is_said() -> None:
    found = answer([context_of()], top=1, narrowing=NARROWED)
    assert " ships " not in printed(found)
    assert beside_document(found).recipe is None


def test_tight_plans_are_named() -> None:
    found = answer([context_of()], top=2, narrowing=NARROWED)
    roomy = found.plans[0]
    assert tight_line(found.plans) == ""
    memory = roomy.estimate.memory
    assert row_from(MemoryRow, memory).verdict == "fits"
    hbm = memory.peak_bytes + GIB
    margin = replace(memory, hbm_bytes=hbm, uncertainty_bytes=2.0 * GIB)
    tight = replace(roomy, estimate=replace(roomy.estimate, memory=margin))
    assert tight.estimate.memory.verdict == "tight"
    assert row_from(MemoryRow, tight.estimate.memory).verdict == "tight"
    line = tight_line([roomy, tight])
    assert line == (
        "Plan 2 is tight: 1.00 GiB of HBM free, "
        "and published peaks exceeded the model by up to 2.00 GiB."
    )
    line = tight_line([tight, roomy, tight])
    assert line.startswith("Plans 1, 3 are tight: 1.00 GiB of HBM free (plan 1), ")
    assert line in " ".join(printed(replace(found, plans=(tight, roomy, tight))).split("\n"))


def test_a_lone_plan_that_is_not_proved_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(answer([context_of()], top=1, narrowing=NARROWED), ladder=())
    for is_proved in (True, False):
        monkeypatch.setattr(Answer, "proved_optimal", property(lambda _, said=is_proved: said))
        text = io.StringIO()
        print_answer(found, beside_screen(found), Console(file=text, width=500))
        assert ("optimality NOT proved: " in text.getvalue()) is not is_proved

"""The page: one file that loads nothing, says the plan's numbers, and runs nothing it was told."""

import re
from dataclasses import replace
from typing import Any

import pytest
from contexts import context_of, plan_of
from page_text import Page, read_page

from planner.answers.base import Answer, Plan, search_context
from planner.answers.execution import MAX_PASSES, iteration
from planner.answers.plan import answer
from planner.formats.format import OutputFile
from planner.notes import Note, NoteKind
from planner.query.objectives import Aim
from planner.report import charts
from planner.report.document import rendered
from planner.report.page import describe
from planner.units import GIB, format_seconds

HOSTILE = '<script>alert("1")</script><img src=http://x.test/a onerror=alert(1)>&amp;\x1b[2J'


@pytest.fixture
def plan() -> Plan:
    return planned(tp=2, pp=4)


def planned(global_batch: int = 16, **layout: object) -> Plan:
    question = {"model": "llama3-8b", "cluster": "2xdgx-h100", "seq_len": 2048}
    context = context_of(**question, global_batch=global_batch)
    return plan_of(context, global_batch=global_batch, **layout)


def html(plan: Plan, **changes: Any) -> str:
    file = OutputFile(name="launch.sh", text="echo '<b>' && torchrun x\n")
    fields = {"origin": "planner export", "files": (file,), "refused": "", "answer": None}
    return rendered("page.html.j2", page=describe(plan, **{**fields, **changes}))


def page(plan: Plan, **changes: Any) -> Page:
    return read_page(html(plan, **changes))


def test_elements_nest_and_ids_are_given_once(plan: Plan) -> None:
    found = page(plan)
    assert found.tags.count("html") == found.tags.count("main") == found.tags.count("h1") == 1
    num_stages = 4
    assert found.tags.count("svg") == 2 * num_stages + 1, "bars of time and memory, schedule"
    assert len(found.ids) == len(set(found.ids))


def with_note(plan: Plan) -> Answer:
    note = Note(kind=NoteKind.given, text=HOSTILE)
    return replace(answer([search_context(plan)], top=1, aim=Aim()), notes=(note,))


def test_nothing_runs_and_nothing_is_loaded(plan: Plan) -> None:
    text = html(plan)
    found = read_page(text)
    assert not {"script", "iframe", "object", "embed", "link", "img", "base"} & set(found.tags)
    assert not [name for name in found.attributes if name.startswith("on")]
    assert all(address.startswith("#") for address in found.addresses)
    assert "@import" not in found.styles
    assert all(place.startswith("#") for place in re.findall(r"url\(([^)]*)\)", text))
    assert "http" not in text


def test_the_same_plan_gives_the_same_page(plan: Plan) -> None:
    assert html(plan) == html(plan)


def test_what_files_say_is_text(plan: Plan) -> None:
    model = replace(plan.context.model, name=HOSTILE)
    cluster = replace(plan.context.cluster, name=HOSTILE)
    hostile = replace(plan, context=replace(plan.context, model=model, cluster=cluster))
    file = OutputFile(name=HOSTILE, text=HOSTILE)
    found = page(hostile, files=(file,), origin=HOSTILE, answer=with_note(hostile))
    assert not {"script", "img"} & set(found.tags)
    assert "onerror" not in found.attributes
    assert "\x1b" not in found.text
    assert found.text.count('<script>alert("1")</script>') >= 6
    refused = page(hostile, files=(), refused=HOSTILE)
    assert "script" not in refused.tags


def test_the_page_says_the_numbers_of_the_plan(plan: Plan) -> None:
    found, estimate, memory = page(plan), plan.estimate, plan.estimate.memory
    assert format_seconds(estimate.iter_time_s) in found.text
    assert f"{estimate.mfu:.1%}" in found.text
    assert f"{memory.peak_bytes / GIB:,.1f} of {memory.hbm_bytes / GIB:,.1f} GiB" in found.text
    assert "DP 2 · TP 2 · PP 4" in found.text
    for stage, peak in enumerate(memory.stage_peak_bytes):
        free = f"{(memory.hbm_bytes - peak) / GIB:,.2f}"
        verdict = memory.verdict_at(peak)
        assert [str(stage), "8", f"{peak / GIB:,.2f}", free, verdict] in found.rows
    for name, item in estimate.time.items():
        row = next(row for row in found.rows if row[1:2] == [f"time.{name}"])
        assert row[2] == format_seconds(item.exposed_s)
        assert row[3] == f"{item.exposed_s / estimate.iter_time_s:.1%}"


def test_bars_of_time_sum_to_the_iteration_and_of_memory_to_the_peak(plan: Plan) -> None:
    found = iteration(plan)
    for stage, peak in enumerate(plan.estimate.memory.stage_peak_bytes):
        seconds = charts.stage_seconds(found, stage)
        assert sum(seconds.values()) == pytest.approx(plan.estimate.iter_time_s)
        assert sum(charts.peak_groups(found.curves[stage]).values()) == pytest.approx(peak / GIB)


def test_long_iterations_are_drawn_at_both_ends(plan: Plan) -> None:
    assert len(charts.windows(iteration(plan), plan.strategy)) == 1
    long = planned(global_batch=512, tp=2, pp=4)
    (start, _), (_, end) = charts.windows(iteration(long), long.strategy)
    assert (start, end) == pytest.approx((0.0, long.estimate.iter_time_s))


def test_iterations_of_too_many_passes_are_not_drawn(plan: Plan) -> None:
    long = replace(plan, strategy=replace(plan.strategy, num_micro_batches=MAX_PASSES))
    assert "Not drawn" in page(long).text


def test_other_layouts_and_the_frontier_follow_a_search(plan: Plan) -> None:
    found = answer([search_context(plan)], top=3, aim=Aim(pareto=("iteration_s", "gpus")))
    read = page(plan, answer=found)
    shown_s = [each.estimate.iter_time_s for each in (plan, *found.plans)]
    for seconds in shown_s:
        slower = seconds / min(shown_s) - 1.0
        changes = {f"{mark}{slower:+.1%}" for mark in ("", "≈ ")} if slower else {""}
        assert any(format_seconds(seconds) in row and changes & set(row) for row in read.rows)
    assert read.tags.count("svg") == 2 * 4 + 1
    assert all(any(f"{each.num_gpus}" in row for row in read.rows) for each in found.frontier)
    assert len(read.ids) == len(set(read.ids))


def test_every_colour_of_a_chart_is_the_style_sheets_in_both_themes(plan: Plan) -> None:
    text = html(plan)
    assert not re.search(r"(fill|stroke): ?#", text), "a colour that no theme changes"
    used = set(re.findall(r"var\(--([a-z]+)\)", text))
    style, _, _ = text.partition("</style>")
    themed = re.findall(r"--([a-z]+): light-dark\(#[0-9a-f]{6}, #[0-9a-f]{6}\)", style)
    assert used <= set(themed)
    assert set(charts.TIME_TITLES) | set(charts.MEMORY_TITLES) <= set(themed)


def test_legends_name_what_is_drawn(plan: Plan) -> None:
    drawn = charts.time_bars(iteration(plan))
    for _, _, parts in drawn.bars:
        assert {colour for colour, length in parts.items() if length} <= set(drawn.legend)

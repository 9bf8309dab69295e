"""The page: one HTML file that loads nothing."""

from importlib import resources

from planner import __version__
from planner.cost.ledger import stage_ledger
from planner.cost.priced import subject_of
from planner.plans.iteration import Iteration, iteration, too_long
from planner.report.page.bars import frontier_chart, memory_bars, time_bars, waiting_text
from planner.report.page.charts import style
from planner.report.page.html import Html, element, escaped, folded, joined, section
from planner.report.page.schedule import schedule_chart
from planner.report.page.sections import (
    bracket_text,
    fewer_table,
    files_section,
    formulas_folded,
    ledger_table,
    memory_table,
    others_section,
    plan_section,
    time_table,
    trust_section,
)
from planner.report.page.sheet import Sheet
from planner.report.page.words import headline, tiles


def _tiles(sheet: Sheet) -> Html:
    made = [
        element(
            "div", element("b", value), element("span", name), element("span", note), kind="tile"
        )
        for value, name, note in tiles(sheet.plan)
    ]
    return element("div", *made, kind="tiles")


def _time_section(sheet: Sheet, found: Iteration | None) -> Html:
    estimate = sheet.plan.estimate
    drawn = [] if found is None else [element("p", waiting_text(found)), time_bars(found)]
    words = element("p", bracket_text(estimate), kind="quiet")
    body = joined([*drawn, time_table(estimate), words, formulas_folded(estimate)])
    return section("Where the time goes", body)


def _iteration_section(sheet: Sheet, found: Iteration | None) -> Html:
    memory = sheet.plan.estimate.memory
    if found is None:
        body = element("p", f"Not drawn: {too_long(sheet.plan.strategy)}.")
    else:
        body = schedule_chart(found, sheet.plan.strategy, memory.hbm_bytes, memory.peak_stage)
    return section("One iteration", body)


def _memory_section(sheet: Sheet, found: Iteration | None) -> Html:
    plan = sheet.plan
    memory = plan.estimate.memory
    ledger = stage_ledger(subject_of(plan.context, plan.strategy), memory.peak_stage)
    title = f"The largest items of stage {memory.peak_stage}, the fullest, at its fullest moment"
    parts = [
        Html() if found is None else memory_bars(found, memory.hbm_bytes),
        memory_table(plan),
        folded(title, ledger_table(ledger)),
    ]
    return section("Memory", joined(parts))


def _around(sheet: Sheet) -> Html:
    """Other layouts, and other numbers of GPUs."""
    answer = sheet.answer
    if answer is None:
        return Html()
    points = answer.frontier or answer.ladder
    parts = [others_section(sheet)]
    if len(points) > 1:
        chart = frontier_chart(points, sheet.plan)
        body = joined([chart, folded("The points", fewer_table(sheet.plan, answer))])
        parts.append(section("Time over GPUs", body))
    return joined(parts)


def _main(sheet: Sheet) -> Html:
    found = None if too_long(sheet.plan.strategy) else iteration(sheet.plan)
    parts = [
        element("h1", headline(sheet.plan)),
        _tiles(sheet),
        plan_section(sheet.plan),
        _time_section(sheet, found),
        _iteration_section(sheet, found),
        _memory_section(sheet, found),
        _around(sheet),
        trust_section(sheet),
        files_section(sheet),
    ]
    made = f"Modelled by planner {__version__}, not measured. Made by: {sheet.origin}"
    return joined([element("main", joined(parts)), element("footer", element("p", made))])


def render_page(sheet: Sheet) -> str:
    """The whole page; raises InputError where the plotting library is missing."""
    with style():
        body = _main(sheet)
    model, cluster = sheet.plan.context.model.name, sheet.plan.context.cluster.name
    return whole(f"{model} on {cluster}: plan", body)


def whole(title: str, body: Html) -> str:
    """A page of its own, with the style sheet in it."""
    rules = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{rules}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )

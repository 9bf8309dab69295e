"""Prints why a layout is not chosen."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.table import Table

from planner import __version__
from planner.plans.differences import short_layout
from planner.plans.plan import Plan
from planner.plans.shortfall import Shortfall
from planner.plans.why import ROUNDING, ItemDifference, WhyAnswer
from planner.plans.whynot import NothingFits, explanation
from planner.report.json import SCHEMA_VERSION, plan_dict
from planner.report.text import item_title
from planner.units import format_bytes, format_seconds

SMALL_FRACTION = 0.0005
"""Items that differ by less of an iteration are summed up."""


def print_why(answer: WhyAnswer, console: Console) -> None:
    """The verdict first, then what it rests on."""
    if answer.nothing is not None:
        _print_nothing(answer.nothing, answer.best, console)
        return
    assert answer.asked is not None
    for line in _verdict(answer):
        _print(line, console, style="bold")
    for title, plan in (("asked", answer.asked), ("best", answer.best)):
        if plan is not None:
            _print(f"{title + ':':<6} {_described(plan, answer)}", console)
    if answer.best is None or answer.verdict == "is the best plan":
        return
    _print_items(answer, console)
    _print_layouts(answer, console)
    _print(_headroom(answer), console)
    if not answer.is_complete:
        console.print("a time limit struck: either plan may have a faster one")


def _verdict(answer: WhyAnswer) -> Iterator[str]:
    asked, best = answer.asked, answer.best
    assert asked is not None
    options = " ".join(answer.options)
    if best is None:
        yield f"{options}: fits, where nothing does that is searched without it"
        return
    share = f"{abs(answer.slower_by):.2%}"
    words = {
        "is the best plan": "the best plan of all keeps this; nothing else is chosen",
        "ties": f"as fast as the best plan, within rounding ({ROUNDING:.0e} of the time)",
        "slower": f"{share} slower than the best plan",
        "faster": f"{share} faster than the best plan of what is searched without it; a rule that "
        "only keeps the search small leaves it out",
    }
    yield f"{options}: {words.get(answer.verdict, answer.verdict)}"
    used, available = asked.strategy.num_gpus, best.strategy.num_gpus
    if used != available:
        yield f"it leaves layouts of {used:,} GPUs at most; the best plan uses {available:,}"


def _described(plan: Plan, answer: WhyAnswer) -> str:
    framework = f"{plan.framework} " if len(answer.contexts) > 1 else ""
    seconds = format_seconds(plan.estimate.iter_time_s)
    return f"{seconds} an iteration, {framework}{short_layout(plan.strategy)}"


def _shown(answer: WhyAnswer) -> tuple[list[ItemDifference], list[ItemDifference]]:
    """Items worth a row, and those that are summed up."""
    assert answer.asked is not None
    least_s = SMALL_FRACTION * answer.asked.estimate.iter_time_s
    items = answer.items()
    large = [item for item in items if abs(item.difference_s) >= least_s]
    return large, [item for item in items if abs(item.difference_s) < least_s]


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds))}"


def _table(*titles: str) -> Table:
    table = Table(*titles, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    return table


def _print_items(answer: WhyAnswer, console: Console) -> None:
    """Times of both, largest difference first; they add up to the total."""
    large, small = _shown(answer)
    rest = [("the rest", sum(i.asked_s for i in small), sum(i.best_s for i in small))]
    rows = [(_title(i.name), i.asked_s, i.best_s) for i in large] + rest * bool(small)
    total = (sum(row[1] for row in rows), sum(row[2] for row in rows))
    table = _table("time of", "asked", "best", "difference")
    for name, asked_s, best_s in (*rows, ("iteration", *total)):
        style = "bold" if name == "iteration" else None
        cells = (name, format_seconds(asked_s), format_seconds(best_s), _signed(asked_s - best_s))
        table.add_row(*cells, style=style)
    console.print()
    console.print(table)


def _title(name: str) -> str:
    title = item_title(name)
    head, _, rest = name.partition(".")
    return f"{title} ({rest})" if head == "recompute" else title


def _print_layouts(answer: WhyAnswer, console: Console) -> None:
    table = Table("layout", "asked", "best", box=None, pad_edge=False)
    for name, (asked, best) in answer.differences().items():
        table.add_row(name, asked, best)
    console.print()
    console.print(table)
    console.print()


def _headroom(answer: WhyAnswer) -> str:
    parts = [
        f"{title} {format_bytes(plan.headroom_bytes)} of "
        f"{format_bytes(plan.estimate.memory.usable_bytes)}"
        for title, plan in (("asked", answer.asked), ("best", answer.best))
        if plan is not None
    ]
    return f"memory left free: {', '.join(parts)}"


def _print_nothing(nothing: NothingFits, best: Plan | None, console: Console) -> None:
    head, *lines = explanation(nothing)
    _print(head, console, style="bold")
    for line in lines:
        _print(line, console)
    if best is not None and len(nothing.narrowing.texts) > 1:
        seconds = format_seconds(best.estimate.iter_time_s)
        _print(f"best plan without these options: {seconds} an iteration", console)
        _print(f"  {short_layout(best.strategy)}", console)


def _print(line: str, console: Console, *, style: str | None = None) -> None:
    """One line, or what does not fit into it indented below."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    for part in wrap(
        line,
        console.width,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    ):
        console.print(part, style=style, markup=False)


def why_dict(answer: WhyAnswer) -> dict[str, Any]:
    """The whole answer as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "planner_version": __version__,
        "options": list(answer.narrowing.texts),
        "verdict": answer.verdict,
        "asked": plan_dict(answer.asked) if answer.asked else None,
        "best": plan_dict(answer.best) if answer.best else None,
        "slower_by": answer.slower_by if answer.asked and answer.best else None,
        "time": [asdict(item) | {"difference_s": item.difference_s} for item in answer.items()],
        "layout": {
            name: {"asked": asked, "best": best}
            for name, (asked, best) in answer.differences().items()
        },
        "nothing_fits": nothing_dict(answer.nothing) if answer.nothing else None,
        "complete": answer.is_complete,
        "notes": list(answer.notes),
    }


def nothing_dict(nothing: NothingFits) -> dict[str, Any]:
    """Why nothing fits, as plain data."""
    found, short, ideal = nothing.forbidding, nothing.shortfall, nothing.ideal
    rules = [
        {
            "name": rule.name,
            "message": rule.message,
            "allowed": rule.allowed(nothing.context) if rule.allowed else None,
        }
        for rule in (found.rules if found else ())
    ]
    return {
        "framework": nothing.context.traits.name,
        "rules": rules,
        "each_rule_alone": found.each_alone if found else None,
        "conflict": list(nothing.conflict),
        "limits": list(nothing.limits),
        "nearest": _nearest_dict(short) if short else None,
        "ideal_iter_time_s": ideal.iteration_s if ideal else None,
        "changes": [
            {
                "change": one.words,
                "gpus": one.strategy.num_gpus,
                "framework": one.context.traits.name,
                "iter_time_s": one.iteration_s,
                "time_factor": one.time_factor,
                "proved_optimal": one.is_optimal,
                "strategy": asdict(one.strategy),
            }
            for one in nothing.relaxations
        ],
    }


def _nearest_dict(short: Shortfall) -> dict[str, Any]:
    ledger = short.ledger
    return {
        "strategy": asdict(short.strategy),
        "limit": short.limit,
        "stage": short.stage,
        "missing_bytes": short.missing_bytes,
        "is_least": short.is_least,
        "peak_bytes": ledger.peak_bytes,
        "ledger": [asdict(item) for item in ledger.items],
    }


def render_why_json(answer: WhyAnswer) -> str:
    """The answer as indented JSON."""
    return json.dumps(why_dict(answer), indent=2)

"""What replicas could exchange, in words and as JSON."""

from typing import Any

from rich.console import Console
from rich.table import Table

from planner.plans.exchange import Exchanges, Way
from planner.report.documents import render
from planner.report.headline import layout_words
from planner.units import GIB, format_bytes, format_seconds

WHOLE = 1e17
"""Gradients: more than a bucket can have, so all of them."""
WORTH_IT = 0.01
"""Of an iteration's time."""


def verdict_line(found: Exchanges) -> str:
    """Which way that some framework starts is the fastest, and what it gains."""
    own, *others = found.ways
    if own.iter_time_s is None:
        return f"Nothing to price: {own.why_not}."
    timed = [way for way in others if way.iter_time_s is not None and way.starts]
    best = min(timed, key=lambda way: way.iter_time_s or 0.0, default=None)
    if best is None:
        return (
            f"No other exchange for this layout: {next(iter(_left(found)), 'none was asked for')}."
        )
    gain = (best.iter_time_s or 0.0) / own.iter_time_s - 1.0
    if gain > -WORTH_IT:
        shown = format_seconds(own.exposed_s or 0.0)
        return f"{own.exchange.text} stays: no other exchange gains 1% (exposed: {shown})."
    return (
        f"{best.exchange.text} takes {gain:+.1%} time an iteration, and changes training: "
        f"{best.exchange.method.changes}."
    )


def print_exchanges(found: Exchanges, console: Console, *, verbose: bool = False) -> None:
    """The verdict, the ways, and exposed time by size of a bucket."""
    context = found.plan.context
    console.print(
        f"{context.model.name} on {context.cluster.name}, {found.plan.framework} "
        f"{context.traits.profile}: {layout_words(found.plan)}",
        style="dim",
        markup=False,
    )
    console.print(verdict_line(found), style="bold green", markup=False)
    console.print(_ways_table(found))
    for reason, names in _left(found).items():
        console.print(f"not here: {', '.join(names)}: {reason}", markup=False)
    timed = [way for way in found.ways if way.iter_time_s is not None]
    unstarted = [way.exchange.text for way in timed if not way.starts and not way.exchange.is_plain]
    if unstarted:
        console.print(
            f"no framework here starts it for this layout: {', '.join(unstarted)}", markup=False
        )
    if found.buckets:
        console.print("Plain all-reduces by size of a bucket, exposed", style="bold")
        console.print(_buckets_table(found))
    if verbose:
        for way in found.ways:
            if not way.exchange.is_plain:
                console.print(_told(way), markup=False)
    else:
        console.print("-v adds what each changes in training, and its source.", style="dim")


def _left(found: Exchanges) -> dict[str, list[str]]:
    """Ways that the layout cannot have, by the reason without their names."""
    left: dict[str, list[str]] = {}
    for way in found.ways:
        if way.why_not:
            reason = way.why_not.replace(f"{way.exchange.text} under", "under")
            left.setdefault(reason, []).append(way.exchange.text)
    return left


def _ways_table(found: Exchanges) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("exchange", no_wrap=True)
    for title in ("iteration", "vs 1", "sent per GPU", "GiB"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("started by")
    first = found.ways[0].iter_time_s
    for way in found.ways:
        if way.iter_time_s is None or first is None:
            continue
        table.add_row(
            way.exchange.text,
            format_seconds(way.iter_time_s),
            f"{way.iter_time_s / first - 1.0:+.1%}",
            format_bytes(way.sent_bytes or 0.0) if found.num_replicas > 1 else "-",
            f"{(way.peak_bytes or 0.0) / GIB:.1f}",
            _starts(way),
        )
    return table


def _told(way: Way) -> str:
    """What a way changes, where that is said, and which profiles have it."""
    method, profiles = way.exchange.method, ", ".join(f"{a}/{b}" for a, b in way.starts)
    by = f" Started by {profiles}." if profiles else ""
    return f"{way.exchange.text}: {method.title}; {method.changes}. {method.source}.{by}"


def _starts(way: Way) -> str:
    """Frameworks that have it."""
    names = dict.fromkeys(name for name, _ in way.starts)
    return "all" if way.exchange.is_plain else ", ".join(names) or "none"


def _buckets_table(found: Exchanges) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("gradients", no_wrap=True)
    for title in ("messages", "busy", "in order", "by priority", "3 groups"):
        table.add_column(title, justify="right", no_wrap=True)
    for point in found.buckets:
        size = "one bucket" if point.elements > WHOLE else f"{point.elements / 1e6:,.0f} million"
        others = (point.prioritised_s, point.by_turns_s)
        table.add_row(
            size,
            f"{point.messages:,.0f}",
            format_seconds(point.busy_s),
            format_seconds(point.exposed_s),
            *("-" if seconds is None else format_seconds(seconds) for seconds in others),
        )
    return table


def render_exchanges_json(found: Exchanges) -> str:
    """The answer as JSON, base units."""
    context = found.plan.context
    body: dict[str, Any] = {
        "inputs": {
            "model": context.model.name,
            "cluster": context.cluster.name,
            "framework": found.plan.framework,
            "profile": context.traits.profile,
        },
        "replicas": found.num_replicas,
        "ways": [
            {
                "gradient_exchange": way.exchange.text,
                "iter_time_s": way.iter_time_s,
                "exposed_s": way.exposed_s,
                "sent_bytes": way.sent_bytes,
                "peak_bytes": way.peak_bytes,
                "changes_training": "" if way.exchange.is_plain else way.exchange.method.changes,
                "source": "" if way.exchange.is_plain else way.exchange.method.source,
                "started_by": [f"{name}/{profile}" for name, profile in way.starts],
                "why_not": way.why_not,
            }
            for way in found.ways
        ],
        "buckets": [
            {
                "elements": None if point.elements > WHOLE else point.elements,
                "messages": point.messages,
                "busy_s": point.busy_s,
                "exposed_s": point.exposed_s,
                "prioritised_exposed_s": point.prioritised_s,
                "round_robin_exposed_s": point.by_turns_s,
            }
            for point in found.buckets
        ],
    }
    return render("exchange", body)

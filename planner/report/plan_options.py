"""The answers of ``plan --space``, ``--versus`` and ``--maximize``: screens and documents."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from planner.answers.base import Plan
from planner.answers.conflict import HBM, HOST
from planner.answers.largest import (
    BATCH,
    MICRO_BATCH,
    Largest,
    LargestAnswer,
    LargestDocument,
    LargestRow,
)
from planner.answers.row import row_from
from planner.answers.rows import (
    InputsRow,
    OtherRow,
    PlanRow,
    SideRow,
    SpaceDocument,
    SpaceRow,
    VersusDocument,
)
from planner.answers.why import Side, relative_speed, usd_per_token
from planner.notes import Note
from planner.query.resolve import Case
from planner.report.table import Part, show, text_table, whole
from planner.report.tables import plans_table
from planner.report.words import (
    figure_lines,
    inputs_line,
    layout_words,
    note_lines,
    question_lines,
    software_lines,
)
from planner.search.space.count import SpaceCount
from planner.search.space.expressions import DIMENSIONS
from planner.spec.strategy import gpus_of_replica
from planner.units import plural


def _space_row(space: SpaceCount) -> SpaceRow:
    sets: list[list[str]] = []
    if any("selective" in policy.kinds for policy in space.policies):
        selected = space.context.traits.recompute.selected
        sets = [list(chosen) for chosen in space.context.module_sets or (selected,) if chosen]
    return SpaceRow(
        framework=space.context.traits.name,
        profile=space.context.traits.profile,
        dimensions={
            name: [DIMENSIONS[name].shown(value) for value in values]
            if DIMENSIONS[name].words
            else list(values)
            for name, values in space.values.items()
        },
        layer_policies=[policy.in_words for policy in space.policies],
        module_sets=sets,
        shapes=space.num_shapes,
        strategies=space.num_strategies,
        splits=str(space.num_splits),
        dropped=space.dropped,
    )


def print_spaces(spaces: Sequence[SpaceCount], notes: Sequence[Note], console: Console) -> None:
    """Print the space of every framework."""
    for space in spaces:
        row, context = _space_row(space), space.context
        title = f"Search space of {inputs_line([context], notes)}"
        titles, number = ("dimension", "values of legal strategies"), len(row.layer_policies)
        modules = ", ".join(sorted({name for chosen in row.module_sets for name in chosen}))
        several = f"{len(row.module_sets)} sets of " if len(row.module_sets) > 1 else ""
        shown = {name: map(str, values) for name, values in row.dimensions.items()}
        rows = [
            *((name, ", ".join(values)) for name, values in shown.items()),
            ("activations", "; ".join(row.layer_policies) or "none"),
            ("selective: modules", f"{several}{modules or 'none'}"),
        ]
        policies = f"under {number} {'policy' if number == 1 else 'policies'}"
        digits = len(row.splits)
        splits = f"{int(row.splits):,}" if digits <= 7 else f"about 10^{digits - 1}"
        cut = [f"{name} {count:,}" for name, count in row.dropped.items()][:6]
        show(
            console,
            *question_lines(title, notes, space.narrowing.texts),
            *note_lines(notes, assumed=True),
            text_table(titles, rows, left=titles),
            f"{row.shapes:,} legal shapes (degrees, schedule, chunks); "
            f"{row.strategies:,} legal strategies (micro-batch, ZeRO, offload, placement).",
            f"Every split of {context.model.num_blocks} layers into stages, {policies} for their "
            f"activations: {splits} in all (fewer where chunks interleave), none of them listed.",
            Text(f"Branches cut most by: {', '.join(cut)}.", "dim") if cut else "",
        )


def space_document(spaces: Sequence[SpaceCount], notes: Sequence[Note]) -> SpaceDocument:
    """The spaces; the number of splits is text, as it may have many digits."""
    contexts = tuple(space.context for space in spaces)
    case = Case(contexts=contexts, narrowing=spaces[0].narrowing, notes=tuple(notes))
    return SpaceDocument(
        inputs=InputsRow.of(case),
        spaces=[_space_row(space) for space in spaces],
    )


AS_ASKED = "as asked"
SMALL = 0.005  # ratios closer to 1 are told without a direction


def _versus_line(side: Side, other: Side) -> str:
    """How much faster the other side is, whether that is sure, and what a token costs there."""
    ratio, asked, plan = relative_speed(side, other), side.plan, other.plan
    if ratio is None or asked is None or plan is None:
        lacking = "nothing fits" if plan is None else f"fits, and {AS_ASKED} nothing does"
        return f"{other.label}: {lacking}."
    value, lower, upper = ratio.value, ratio.lower, ratio.upper
    verb, how = "is", "times as fast"
    if value < 1.0:
        value, lower, upper = 1.0 / value, 1.0 / upper, 1.0 / lower
        verb, how = "takes", "times as long"
    inside = ", inside the error" if ratio.within_error else ""
    words = f"{verb} {value:.2f} ({lower:.2f} to {upper:.2f}) {how}{inside}"
    words = "is as fast" if abs(ratio.value - 1.0) < SMALL else words
    return f"{other.label} {words}{_cost_words(asked, plan)}."


def _cost_words(asked: Plan, plan: Plan) -> str:
    """Return the other side's cost, or GPU time, per token where the machines differ."""
    if asked.context.cluster == plan.context.cluster:
        return ""
    prices = (usd_per_token(asked), usd_per_token(plan))
    if prices[0] and prices[1]:
        factor = prices[1] / prices[0]
        much = "as much" if abs(factor - 1.0) < SMALL else f"{factor:.2f} times as much"
        return f"; a token costs {much}"
    gpus = plan.strategy.num_gpus / asked.strategy.num_gpus
    tokens_per_s = plan.estimate.tokens_per_s / asked.estimate.tokens_per_s
    return f"; a token takes {gpus / tokens_per_s:.2f} times the GPU time"


def print_versus(sides: Sequence[Side], console: Console) -> None:
    """Print a verdict for every other side, the plans of all, and how sure the verdicts are."""
    asked, *others = sides
    first = next(side.answer for side in sides if side.answer)
    named = {side.label or AS_ASKED: side for side in sides}
    plans = {label: side.plan for label, side in named.items() if side.plan}
    ratios = [ratio for other in others if (ratio := relative_speed(asked, other))]
    bases = dict.fromkeys(ratio.basis for ratio in ratios)
    show(
        console,
        *(Text(_versus_line(asked, other), "bold green") for other in others),
        *question_lines(inputs_line(first.contexts, first.notes), ()),
        plans_table(list(plans.values()), names=list(plans)),
        *(f"{label}: {layout_words(plan)}" for label, plan in plans.items()),
        *(
            f"{label}: {' '.join(side.why_none.splitlines()[:2])}"
            for label, side in named.items()
            if side.plan is None
        ),
        *(Text(f"Ranges of ratios hold eight of ten: {basis}.", "dim") for basis in bases),
    )


def _side(side: Side) -> dict[str, Any]:
    return {
        "otherwise": side.label,
        "plan": PlanRow.of(side.plan) if side.plan else None,
        "usd_per_token": usd_per_token(side.plan) if side.plan else None,
        "why_none": side.why_none,
        "assumed": [str(note) for note in side.answer.notes] if side.answer else [],
    }


def versus_document(sides: Sequence[Side]) -> VersusDocument:
    """The comparison as a document, every side with its plan."""
    asked, *others = sides
    return VersusDocument(
        asked=SideRow(**_side(asked)),
        others=[
            OtherRow(
                **_side(other),
                speed=relative_speed(asked, other),
                verdict=_versus_line(asked, other),
            )
            for other in others
        ],
    )


MEMORIES = {HBM: "device memory", HOST: "host memory"}


def _extent(one: Largest) -> str:
    needed = " or ".join(MEMORIES[name] for name in one.binds if name in MEMORIES)
    if not one.value:
        return f"none fits, which needs more {needed}." if one.binds else "none fits."
    if BATCH in one.binds:
        return f"{one.value:,}; with another global batch {one.beyond:,}."
    if one.beyond is None:
        return f"at least {one.value:,}" + ("; the time was over." if one.is_cut else ".")
    if not one.binds:
        return f"{one.value:,}; no layout of {one.beyond:,} is legal."
    return f"{one.value:,}; {one.beyond:,} needs more {needed}."


def print_largest(
    answer: LargestAnswer, console: Console, *, verbose: bool = False, following: str = ""
) -> None:
    """Print each largest value with what binds it; ``verbose``: what was assumed."""
    case = answer.case
    tight = "Tight: nothing leaves the margin free by which published peaks exceeded the model."
    more = "Larger is not always faster: `plan` ranks by time. -v adds what was assumed."
    found = [one.plan for one in answer.found if one.plan]
    lines: list[Part] = []
    longest, model = 0, case.context.model
    for one in answer.found:
        title = f"Largest micro-batch at {one.fixed:,} tokens"
        if one.quantity != MICRO_BATCH:
            title = f"Longest sequence at micro-batch {one.fixed:,}"
            longest = max(longest, one.value)
        lines.append(Text(f"{title}: {_extent(one)}", "bold green" if one.value else "bold"))
        if plan := one.plan:
            gpus = plural(int(gpus_of_replica(asdict(plan.strategy))), "GPU")
            lines.append(f"  With a replica on {gpus}: {layout_words(plan)}.")
            lines += [f"  {line}" for line in figure_lines(plan)]
        if one.resident:
            lines.append(f"  With nothing offloaded: {_extent(one.resident)}")
    beyond = f"{model.name} was made for sequences of {model.max_seq_len:,} tokens."
    show(
        console,
        *question_lines(inputs_line(case.contexts, batch=""), case.notes, case.narrowing.texts),
        *lines,
        Text(tight, "yellow") if answer.is_tight else "",
        beyond if longest > model.max_seq_len else "",
        *(note_lines(case.notes, assumed=True) if verbose else ()),
        *(software_lines(case.contexts, found) if verbose else ()),
        whole(f"Next: {following}", "dim") if following else "",
        "" if verbose else Text(more, "dim"),
    )


def _largest(one: Largest) -> LargestRow:
    is_size = one.quantity == MICRO_BATCH
    return row_from(
        LargestRow,
        one,
        micro_batch=one.value if is_size else one.fixed,
        seq_len=one.fixed if is_size else one.value,
        binds=[MEMORIES.get(name, name) for name in one.binds],
        complete=not one.is_cut,
        plan=PlanRow.of(one.plan) if one.plan else None,
        resident=_largest(one.resident) if one.resident else None,
    )


def largest_document(answer: LargestAnswer) -> LargestDocument:
    """Every value with the plan there."""
    return LargestDocument(
        inputs=InputsRow.of(answer.case),
        tight=answer.is_tight,
        largest=list(map(_largest, answer.found)),
    )

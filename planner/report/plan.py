"""The answer of ``plan``: its screen, and its document."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from planner.answers.base import Answer, Plan
from planner.answers.layout import differences, short_layout
from planner.answers.plan import Beside
from planner.answers.recipe import Placed, RecipeRow
from planner.answers.row import Row, row_from
from planner.cost.flops import FLOPS_CONVENTION
from planner.layers.parameters import describe_size
from planner.query.like import recipe_gpus
from planner.query.objectives import OBJECTIVES
from planner.report.sizing_words import limits_text, missed_options
from planner.report.table import Part, show, whole
from planner.report.tables import frontier_table, plans_table, shown_frontier
from planner.report.words import (
    figure_lines,
    ground_lines,
    inputs_line,
    note_lines,
    question_lines,
    run_line,
    software_lines,
)
from planner.search.ranking.penalties import TIE_FRACTION
from planner.units import GIB, format_bytes, plural


def _standing(found: Placed) -> str:
    if found.problem:
        return f"not possible here: {found.problem}"
    assert found.estimate is not None
    software = f"{found.recipe.source.framework} {found.recipe.source.profile}"
    if found.missing_bytes:
        tail = f", but fits under {software}, its own software" if found.fits_its_own else ""
        return f"does not fit here: needs {format_bytes(found.missing_bytes)} more{tail}"
    memory, tail = found.estimate.memory, ""
    if memory.peak_bytes > memory.usable_bytes:
        free = found.context.cluster.accelerator.hbm_bytes - memory.peak_bytes
        tail = f", with {free / GIB:.1f} GiB free, less than the margin"
    slower = found.slower_fraction
    change = "" if slower is None else f", {100.0 * slower:+.1f} %"
    row = f"row {found.row}" if found.row else "not among the rows"
    own = found.own_slower_fraction
    # A recipe that is slower than the first row by more is shown under its own software, too.
    if slower is not None and own is not None and slower > 0.05 and found.fits_its_own:
        tail += f" ({100.0 * own:+.1f} % under {software} and its runtime)"
    return f"{row}{change}{tail}"


def placed_line(found: Placed) -> str:
    """Return what a vendor ships for the model and accelerator, and how the model ranks it here."""
    recipe, job = found.recipe, found.context.job
    gpus = f"{recipe_gpus(recipe)} {recipe.accelerator.upper()}"
    other = (
        "" if recipe.task == "pretrain" else recipe.task,
        "" if recipe.precision == job.precision else recipe.precision,
        "" if recipe.global_batch == job.global_batch else f"batch {recipe.global_batch}",
    )
    terms = f" ({', '.join(filter(None, other))})" if any(other) else ""
    return f"{recipe.source.vendor} ships {recipe.summary} for {gpus}{terms}: {_standing(found)}."


def recipe_row(found: Placed) -> RecipeRow:
    """The recipe as a row of the document."""
    made = found.estimate
    return row_from(
        RecipeRow,
        found,
        recipe=found.recipe.recipe,
        source=found.recipe.source.title,
        layout=found.recipe.layout,
        iter_time_s=made.iter_time_s if made else None,
        peak_bytes=made.memory.peak_bytes if made else None,
        fits_its_own_software=found.fits_its_own,
        problem=found.problem or None,
        own_iter_time_s=found.own.iter_time_s if found.own else None,
    )


def _proof(answer: Answer, proved: str) -> str:
    return proved if answer.proved_optimal else f"optimality NOT proved: {gap_text(answer)}"


def gap_text(answer: Answer) -> str:
    """Return the largest gain another plan may have, rounded up, where nothing is proved."""
    if not answer.plans:
        return "better plans may exist"
    if answer.aim.objective == "iteration_s" and not answer.gap:
        return "plan 1 is the fastest, the others may be beaten"
    gap = f"{math.ceil(answer.gap * 1e4) / 1e4:.2%}"
    return OBJECTIVES[answer.aim.objective].beaten.format(gap=gap)


def tight_line(plans: Sequence[Plan]) -> str:
    """Return which plans lie inside their framework's margin, and what the first one leaves."""
    ranked = enumerate(plans, start=1)
    tight = {str(rank): plan for rank, plan in ranked if plan.estimate.memory.verdict == "tight"}
    if not tight:
        return ""
    rank, first = next(iter(tight.items()))
    named = f"Plans {', '.join(tight)} are" if len(tight) > 1 else f"Plan {rank} is"
    of_plan = f" (plan {rank})" if len(tight) > 1 else ""
    memory = first.estimate.memory
    return (
        f"{named} tight: {format_bytes(memory.free_bytes)} of HBM free{of_plan}, and published "
        f"peaks exceeded the model by up to {format_bytes(memory.uncertainty_bytes)}."
    )


def _best(answer: Answer) -> Iterator[Part]:
    """Yield the plan to run, and the table of other layouts and of fewer GPUs."""
    best = answer.plans[0]
    available = answer.contexts[0].cluster.num_accelerators
    aim, gpus, several = answer.aim, best.strategy.num_gpus, len(answer.contexts) > 1
    yield Text(run_line(best, of_gpus=available, names_framework=several), "bold green")
    yield from (f"  {text}" for text in figure_lines(best))
    if gpus < available and aim.objective == "iteration_s":
        what = "is faster" if aim.limits.is_empty else "that keeps the limits is faster"
        yield f"  No layout on more GPUs {what}."
    if len(answer.plans) + len(answer.ladder) == 1 and answer.proved_optimal:
        return
    title = OBJECTIVES[aim.objective].plans.format(
        gpus=f"{gpus:,} GPU{'s' * (gpus > 1)}", headroom_gib=answer.headroom_gib
    )
    kept = "" if aim.limits.is_empty else f" within the limits: {limits_text(aim.limits)}"
    fewer = ", then on fewer" if answer.ladder else ""
    yield Text(f"{title}{kept}{fewer} ({_proof(answer, 'proved under the model')})", "bold")
    yield plans_table(answer.plans, answer.ladder, fastest=answer.fastest)


def _mechanisms(plan: Plan) -> str:
    return ", ".join(plan.penalties()).replace("_", " ")


def _tie_line(answer: Answer) -> str:
    """Return why the first row is first, where another layout is faster under the model."""
    first, fastest = answer.plans[0], answer.fastest
    own_s = first.estimate.iter_time_s
    leading_s = (fastest or first).estimate.iter_time_s
    said = []
    row, plan = min(enumerate(answer.plans, start=1), key=lambda one: one[1].estimate.iter_time_s)
    if plan.estimate.iter_time_s < leading_s and plan.penalties():
        change = plan.estimate.iter_time_s / own_s - 1.0
        said.append(
            f"Row {row} is faster ({change:+.1%}) by the model alone: "
            f"hardly a published run has its {_mechanisms(plan)}."
        )
    if fastest is not None:
        layout = short_layout(fastest.strategy)
        if layout == short_layout(first.strategy):
            others = differences(first.strategy, fastest.strategy)
            layout = f"row 1 with {', '.join(f'{name} {now}' for name, (_, now) in others.items())}"
        faster = f"{leading_s / own_s - 1.0:+.1%}".replace("-0.0%", "by less than 0.1%")
        kind = "without that" if said else "under the model"
        said.append(f"Fastest {kind}: {layout} ({faster}).")
        tie = f"Row 1 is the simplest within {TIE_FRACTION:.1%} of it (≈): a tie."
        if own_s > (1.0 + TIE_FRACTION) * leading_s:
            tie = f"Hardly a published run has its {_mechanisms(fastest)}."
        said.append(tie)
    return " ".join(said)


def _proof_line(answer: Answer) -> Text:
    """Return what CP-SAT found, asked for anything faster in the layouts shown."""
    proof = answer.proof
    assert proof is not None
    decided = f"{proof.num_programs:,} integer programs in {proof.seconds:.1f} s"
    if proof.faster:
        text = f"CP-SAT finds a faster plan with {proof.faster[0]}; please report it ({decided})."
        return Text(text, "red")
    if proof.num_undecided:
        decided += f", {proof.num_undecided} of them undecided"
    return Text(f"CP-SAT finds nothing faster in the {proof.num_layouts} layouts shown: {decided}.")


def _frontier(answer: Answer) -> Iterator[Part]:
    """What is traded off, thinned; the output formats for programs have all of it."""
    if not answer.pareto:
        return
    traded = answer.aim.pareto
    title = "Fastest plan for each useful number of GPUs"
    if set(traded) != {"iteration_s", "gpus"}:
        *first, last = (OBJECTIVES[name].title for name in traded)
        title = f"Plans that none beats in {', '.join(first)} and {last}"
    points, num = shown_frontier(answer.pareto), len(answer.pareto)
    shown = f", {len(points)} of {num} points" if len(points) < num else ""
    extent = "complete" if answer.proved_optimal else "as far as the search got"
    yield Text(f"{title} ({extent}{shown})", "bold")
    yield frontier_table(points, answer.aim.limits, traded=traded)
    if shown:
        yield "--format json or csv has all points."


def _grounds(answer: Answer, beside: Beside) -> Iterator[Part]:
    """Yield the answer's basis: variants, costs, rank order, ranges, evidence, software, search."""
    context = answer.contexts[0]
    machines = f"{context.cluster.num_accelerators:,} x {context.cluster.accelerator.name}"
    yield Text()
    if answer.plans:
        yield from _variants(answer, beside)
        yield from ground_lines(answer.plans[0])
    model = f"{context.model.name}: {describe_size(context.model)}"
    yield Text(f"{model}; {context.cluster.name}: {machines}", "dim")
    yield from note_lines(answer.notes, assumed=True)
    yield from software_lines(answer.contexts, (*answer.plans, *answer.pareto))
    searches, dropped = answer.searches, list(answer.dropped().items())
    listed = [f"{name} {count:,}" for name, count in dropped[:6]]
    if others := dropped[6:]:
        rest = sum(count for _, count in others)
        listed.append(f"{len(others)} other rules {rest:,}")
    is_before = ", remembered" if all(result.is_remembered for result in searches) else ""
    line = (
        f"Searched {sum(r.num_configurations for r in searches):,} configurations in "
        f"{answer.seconds:.2f} s{is_before}; dropped: {', '.join(listed) or 'none'}; "
        f"{sum(r.num_priced for r in searches):,} strategies priced; "
        f"{_proof(answer, 'proved optimal under the model')}."
    )
    yield Text(line, "dim")


def _variants(answer: Answer, beside: Beside) -> Iterator[str]:
    """Yield what changing one thing would gain of plan 1."""
    if answer.aim.objective != "iteration_s" or not beside.variants:
        return
    simplest = sorted(beside.variants[0], key=lambda one: (one.num_changed, one.time_change))
    gaining = [f"{one.words} {one.time_change:+.1%}" for one in simplest if one.time_change < 0]
    if gaining:
        yield f"Variants of plan 1: {'; '.join(gaining[:3])}."


def print_answer(
    answer: Answer,
    beside: Beside,
    console: Console,
    *,
    verbose: bool = False,
    show_all: bool = False,
    following: str = "",
) -> None:
    """Print what to run, other layouts, fewer GPUs, and the ``following`` command."""
    num = sum(note.is_assumed for note in answer.notes)
    counted = f"{num} assumption{'s' * (num > 1)}, " if num else ""
    more = f"-v adds {counted}evidence, search; --all the variants of every layout."
    show(
        console,
        *question_lines(
            inputs_line(answer.contexts, answer.notes), answer.notes, answer.narrowing.texts
        ),
    )
    if answer.plans:
        tight, resident = tight_line(answer.plans), ""
        if (one := beside.resident) is not None:
            free = format_bytes(one.plan.estimate.memory.free_bytes)
            on = f"Nothing offloaded on {plural(one.plan.num_gpus, 'GPU')}"
            resident = f"{on} with {one.words}: {one.time_change:+.1%}, {free} free."
        show(
            console,
            *_best(answer),
            Text(tight, "yellow") if tight else "",
            _tie_line(answer),
            resident,
            _proof_line(answer) if answer.proof else "",
            placed_line(beside.recipe) if beside.recipe else "",
        )
    else:
        from planner.answers.size import unmet

        title = f"No plan keeps the limits: {limits_text(answer.aim.limits)}. The nearest:"
        show(console, Text(title, "bold"), plans_table(unmet(answer).nearest))
    for rank, found in enumerate(beside.variants if show_all else (), start=1):
        variants = (f"  {one.time_change:+6.1%}  {one.words}" for one in found)
        show(console, Text(f"Variants of plan {rank}", "bold"), *variants)
    show(
        console,
        *_frontier(answer),
        *(_grounds(answer, beside) if verbose else ()),
        whole(f"Next: {following}") if following else "",
        "" if verbose else Text(more, "dim"),
    )


def plan_document(answer: Answer, beside: Beside) -> Row:
    """The answer as a document, whose rows the screen does without."""
    from planner.answers.rows import (
        AimRow,
        InputsRow,
        NearestRow,
        PlanDocument,
        PlanRow,
        ProofRow,
        RankedRow,
        SearchRow,
        SoftwareRow,
        VariantRow,
    )
    from planner.answers.size import unmet

    aim, searches = answer.aim, answer.searches
    limits = aim.limits
    nearest = () if answer.plans or limits.is_empty else unmet(answer).nearest
    return PlanDocument(
        flops_convention=FLOPS_CONVENTION,
        inputs=InputsRow.of(answer),
        aim=AimRow(
            objective=OBJECTIVES[aim.objective].word,
            limits=None if limits.is_empty else limits,
            pareto=[OBJECTIVES[name].word for name in aim.pareto],
            headroom_gib=answer.headroom_gib,
        ),
        assumptions=[SoftwareRow.of(context.traits) for context in answer.contexts],
        plans=[
            RankedRow.of(
                plan,
                weighed_s=plan.weighed_s,
                penalties=plan.penalties(),
                variants=[
                    VariantRow.of(one.plan, turned=one.words, time_change=one.time_change)
                    for one in variants
                ],
            )
            for plan, variants in zip(answer.plans, beside.variants, strict=True)
        ],
        fastest=None if answer.fastest is None else PlanRow.of(answer.fastest),
        ladder=[PlanRow.of(plan) for plan in answer.ladder],
        recipe=recipe_row(beside.recipe) if beside.recipe else None,
        nearest=[NearestRow.of(plan, **missed_options(plan, limits)) for plan in nearest],
        pareto=[PlanRow.of(plan) for plan in answer.pareto],
        search=row_from(
            SearchRow,
            answer,
            configurations=sum(result.num_configurations for result in searches),
            shapes=sum(result.num_shapes for result in searches),
            priced=sum(result.num_priced for result in searches),
            dropped=answer.dropped(),
            stage_problems_solved=sum(result.num_solved for result in searches),
            proof=row_from(ProofRow, answer.proof) if answer.proof else None,
        ),
    )

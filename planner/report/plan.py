"""The answer of ``plan`` as a document."""

from planner.answers.beside import Beside
from planner.answers.rows import (
    AimRow,
    InputsRow,
    NearestRow,
    PlanDocument,
    PlanRow,
    RankedRow,
    SearchRow,
    SoftwareRow,
    VariantRow,
)
from planner.cost.flops import FLOPS_CONVENTION
from planner.plans.plan import Answer
from planner.query.objectives import OBJECTIVES
from planner.report.recipes import recipe_row
from planner.report.sizing_words import option_text


def plan_document(answer: Answer, beside: Beside) -> PlanDocument:
    """All of an answer."""
    return PlanDocument(
        flops_convention=FLOPS_CONVENTION,
        inputs=InputsRow.of(answer.contexts, answer.narrowing, answer.notes),
        aim=_aim_row(answer),
        assumptions=[SoftwareRow.of(context.traits) for context in answer.contexts],
        plans=_ranked_rows(answer, beside),
        fastest=None if answer.fastest is None else PlanRow.of(answer.fastest),
        ladder=[PlanRow.of(plan) for plan in answer.ladder],
        recipe=recipe_row(beside.recipe) if beside.recipe else None,
        nearest=_nearest_rows(answer),
        pareto=[PlanRow.of(plan) for plan in answer.pareto],
        search=_search_row(answer),
    )


def _aim_row(answer: Answer) -> AimRow:
    aim = answer.aim
    return AimRow(
        objective=OBJECTIVES[aim.objective].word,
        limits=None if aim.limits.is_empty else aim.limits,
        pareto=[OBJECTIVES[name].word for name in aim.pareto],
        headroom_gib=answer.headroom_gib,
    )


def _ranked_rows(answer: Answer, beside: Beside) -> list[RankedRow]:
    """The plans, each with the variants of its layout."""
    return [
        RankedRow.of(
            plan,
            weighed_s=plan.weighed_s,
            handicaps=plan.penalties(),
            variants=[
                VariantRow.of(one.plan, turned=one.words, time_change=one.time_change)
                for one in variants
            ],
        )
        for plan, variants in zip(answer.plans, beside.variants, strict=True)
    ]


def _nearest_rows(answer: Answer) -> list[NearestRow]:
    """Where no plan keeps the limits: the nearest, what they miss, and options they would keep."""
    limits = answer.aim.limits
    if answer.plans or limits.is_empty:
        return []
    from planner.answers.size import unmet

    return [
        NearestRow.of(
            plan,
            misses=list(limits.missed_by(plan)),
            options=[option_text(plan, limit) for limit in limits.missed_by(plan)],
        )
        for plan in unmet(answer).nearest
    ]


def _search_row(answer: Answer) -> SearchRow:
    searches = answer.searches
    return SearchRow(
        configurations=sum(result.num_configurations for result in searches),
        shapes=sum(result.num_shapes for result in searches),
        priced=sum(result.num_priced for result in searches),
        fitting=sum(result.num_fitting for result in searches),
        dropped=answer.dropped(),
        stage_problems_solved=sum(result.num_solved for result in searches),
        seconds=answer.seconds,
        is_complete=answer.is_complete,
        proved_optimal=answer.proved_optimal,
        gap=answer.gap,
    )

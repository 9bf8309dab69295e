"""The JSON form of an answer."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.answers.beside import Beside
from planner.answers.variants import Variant
from planner.cost.estimate import Estimate
from planner.cost.flops import FLOPS_CONVENTION
from planner.plans.evidence import evidence
from planner.plans.plan import Answer, Plan
from planner.query.objectives import OBJECTIVES
from planner.report.assumptions import assumptions_dict
from planner.report.document import document, serialise
from planner.report.evidence import evidence_dict
from planner.report.recipes import placed_dict
from planner.report.sizing_words import option_text


def time_figures(estimate: Estimate) -> dict[str, Any]:
    """An iteration's time: its range and regime, overlapped fully and not at all."""
    return {
        "iter_time_s": estimate.iter_time_s,
        "iter_time_s_lower": estimate.iter_time_s_lower,
        "iter_time_s_upper": estimate.iter_time_s_upper,
        "regime": estimate.regime,
        "iter_time_s_overlapped": estimate.iter_time_s_overlapped,
        "iter_time_s_serial": estimate.iter_time_s_serial,
    }


def plan_dict(plan: Plan) -> dict[str, Any]:
    """One plan as plain data, base units throughout."""
    estimate = plan.estimate
    strategy = asdict(plan.strategy)
    strategy["recompute"] = plan.strategy.recompute
    memory = estimate.memory
    return {
        "gpus": plan.strategy.num_gpus,
        "framework": plan.framework,
        "strategy": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in strategy.items()
        },
        **time_figures(estimate),
        "tokens_per_s": estimate.tokens_per_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "mfu": estimate.mfu,
        "mfu_lower": estimate.mfu_lower,
        "mfu_upper": estimate.mfu_upper,
        "mfu_full_square": estimate.mfu_full_square,
        "model_flops": estimate.model_flops,
        "model_flops_per_s_per_gpu": estimate.model_flops_per_s_per_gpu,
        "memory": {
            "peak_bytes": memory.peak_bytes,
            "usable_bytes": memory.usable_bytes,
            "headroom_bytes": plan.headroom_bytes,
            "free_bytes": plan.free_bytes,
            "verdict": memory.verdict,
            "allocated_bytes": memory.allocated_bytes,
            "host_bytes": memory.host_bytes,
            "stage": memory.peak_stage,
            "moment": memory.moment,
            "stage_peak_bytes": list(memory.stage_peak_bytes),
            "items": memory.items,
        },
        "time": {
            name: {"busy_s": item.busy_s, "exposed_s": item.exposed_s}
            for name, item in estimate.time.items()
        },
        "gpu_hours": plan.gpu_hours(),
        "gpu_hours_span": "job" if plan.context.job.total_tokens else "1000 iterations",
        "days": None if plan.total_s() is None else (plan.total_s() or 0.0) / 86400.0,
        **plan.amounts(),
        "proved_optimal": plan.is_optimal,
        "evidence": evidence_dict(evidence(plan.context, plan.strategy)),
    }


def _layout_dict(plan: Plan, variants: Sequence[Variant]) -> dict[str, Any]:
    """A plan with what ranked it, and the variants of its layout."""
    return {
        **plan_dict(plan),
        "weighed_s": plan.weighed_s,
        "handicaps": plan.penalties(),
        "variants": [
            {"turned": one.words, "time_change": one.time_change, **plan_dict(one.plan)}
            for one in variants
        ],
    }


def _aim_dict(answer: Answer) -> dict[str, Any]:
    aim = answer.aim
    return {
        "objective": OBJECTIVES[aim.objective].word,
        "limits": None if aim.limits.is_empty else asdict(aim.limits),
        "pareto": [OBJECTIVES[name].word for name in aim.pareto],
        "headroom_gib": answer.headroom_gib,
    }


def _nearest(answer: Answer) -> list[dict[str, Any]]:
    """Where no plan keeps the limits: the nearest, what they miss, and options they would keep."""
    if answer.plans or answer.aim.limits.is_empty:
        return []
    from planner.answers.size import unmet

    limits = answer.aim.limits
    return [
        {
            **plan_dict(plan),
            "misses": list(limits.missed_by(plan)),
            "options": [option_text(plan, limit) for limit in limits.missed_by(plan)],
        }
        for plan in unmet(answer).nearest
    ]


def answer_dict(answer: Answer, beside: Beside) -> dict[str, Any]:
    """The whole answer as a document."""
    return document("plan", _answer_body(answer, beside))


def _answer_body(answer: Answer, beside: Beside) -> dict[str, Any]:
    context = answer.contexts[0]
    searches = answer.searches
    return {
        "flops_convention": FLOPS_CONVENTION,
        "inputs": {
            "model": context.model.name,
            "cluster": context.cluster.name,
            "accelerator": context.cluster.accelerator.name,
            "gpus": context.cluster.num_accelerators,
            "frameworks": [c.traits.name for c in answer.contexts],
            "profiles": [c.traits.profile for c in answer.contexts],
            "global_batch": context.job.global_batch,
            "seq_len": context.job.seq_len,
            "tokens_per_iteration": context.job.tokens_per_iteration,
            "precision": context.job.precision,
            **context.traits.training.inputs,
            "total_tokens": context.job.total_tokens,
            "margin_fraction": context.margin_fraction,
            "imbalance_fraction": context.job.imbalance_fraction,
            "documents": context.job.documents.text if context.job.documents else None,
            "mtp_layers": context.job.mtp_layers,
            "narrowing": list(answer.narrowing.texts),
            "assumed": [str(note) for note in answer.notes],
        },
        "aim": _aim_dict(answer),
        "assumptions": [assumptions_dict(context.traits) for context in answer.contexts],
        "plans": [_layout_dict(*each) for each in zip(answer.plans, beside.variants, strict=True)],
        "fastest": None if answer.fastest is None else plan_dict(answer.fastest),
        "ladder": [plan_dict(plan) for plan in answer.ladder],
        "recipe": placed_dict(beside.recipe),
        "nearest": _nearest(answer),
        "pareto": [plan_dict(plan) for plan in answer.pareto],
        "search": {
            "configurations": sum(result.num_configurations for result in searches),
            "shapes": sum(result.num_shapes for result in searches),
            "priced": sum(result.num_priced for result in searches),
            "fitting": sum(result.num_fitting for result in searches),
            "dropped": answer.dropped(),
            "stage_problems_solved": sum(result.num_solved for result in searches),
            "seconds": answer.seconds,
            "is_complete": answer.is_complete,
            "proved_optimal": answer.proved_optimal,
            "gap": answer.gap,
        },
    }


def render_json(answer: Answer, beside: Beside) -> str:
    """The answer as indented JSON."""
    return serialise("plan", _answer_body(answer, beside))

"""What ``planner explain`` says as plain data: items with their formulas, base units."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from planner.answers.rows import EvidenceRow, SoftwareRow, layout_row, time_figures
from planner.cost.context import Context
from planner.cost.estimate import Estimate
from planner.cost.passes import simulated_makespan_s
from planner.cost.priced import price
from planner.frameworks.registry import trait_figures
from planner.plans.plan_file import PlanFile
from planner.report.explain import item_leaves, pipeline_s
from planner.report.formulas import (
    formula_of,
    functions_for,
    input_value,
    item_of,
    summary_of,
    trait_source,
)
from planner.spec.strategy import Strategy


def explain_body(
    context: Context, strategy: Strategy, file: PlanFile, estimate: Estimate, what: str
) -> dict[str, Any]:
    """Memory and time of a plan, one of them, or one item; InputError where there is none."""
    is_item = what not in ("", "memory", "time")
    return {
        "model": context.model.name,
        "cluster": context.cluster.name,
        "framework": context.traits.name,
        "profile": context.traits.profile,
        "strategy": layout_row(strategy),
        "memory": _memory(estimate) if what in ("", "memory") else None,
        "time": _time(context, strategy, estimate) if what in ("", "time") else None,
        "item": _item(what, context, strategy, estimate) if is_item else None,
        "evidence": EvidenceRow.of(context, strategy),
        "assumptions": SoftwareRow.of(context.traits),
        "saved": {
            "planner_version": file.planner_version,
            "iter_time_s": file.estimate.iter_time_s,
            "time_change": estimate.iter_time_s / file.estimate.iter_time_s - 1.0,
        },
    }


def _about(name: str) -> str:
    item = item_of(name)
    return summary_of(item) if item else ""


def _memory(estimate: Estimate) -> dict[str, Any]:
    memory = estimate.memory
    return {
        "verdict": memory.verdict,
        "stage": memory.peak_stage,
        "moment": memory.moment,
        "peak_bytes": memory.peak_bytes,
        "hbm_bytes": memory.hbm_bytes,
        "uncertainty_bytes": memory.uncertainty_bytes,
        "host_bytes": memory.host_bytes,
        "host_missing_bytes": memory.host_missing_bytes,
        "stage_peak_bytes": list(memory.stage_peak_bytes),
        "items": [
            {"name": name, "num_bytes": value, "about": _about(f"memory.{name}")}
            for name, value in memory.items.items()
        ],
    }


def _time(context: Context, strategy: Strategy, estimate: Estimate) -> dict[str, Any]:
    pipeline = None
    if strategy.pp > 1:
        simulated_s = simulated_makespan_s(price(context, strategy))
        pipeline = {"formula_s": pipeline_s(estimate), "simulated_s": simulated_s}
    return {
        "slowest_stage": estimate.slowest_stage,
        **time_figures(estimate),
        "pipeline": pipeline,
        "items": [
            {"name": name, **asdict(item), "about": _about(f"time.{name}")}
            for name, item in estimate.time.items()
        ],
    }


def _item(name: str, context: Context, strategy: Strategy, estimate: Estimate) -> dict[str, Any]:
    full, leaves = item_leaves(name, estimate)
    in_memory = full.startswith("memory")
    item = item_of(full)
    traits = context.traits
    figures = trait_figures(traits.name, traits.profile, traits.settings)
    return {
        "name": full,
        "unit": "bytes" if in_memory else "s",
        "total": estimate.memory.peak_bytes if in_memory else estimate.iter_time_s,
        "values": leaves,
        "text": item.text if item else "",
        "inputs": [
            {
                "path": path,
                "value": _plain(input_value(path, context, strategy)),
                "source": trait_source(path, figures),
            }
            for path in (item.inputs if item else ())
        ],
        "formulas": [
            {"function": f"{each.__module__}.{each.__name__}", "text": formula_of(each)}
            for each in (functions_for(item, strategy) if item else ())
        ],
    }


def _plain(value: object) -> object:
    """A number, text, list or mapping that JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    return [_plain(inner) for inner in value]

"""A plan file of a pipeline through pools under check: its rules, and memory in every pool."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.check.plan import key_lines, placed
from planner.check.result import Figures, finding_of
from planner.documents.yaml_text import load_yaml
from planner.errors import InputError
from planner.formats.finding import Finding
from planner.formats.format import SourceText
from planner.pools.answer import MixedPlan, Part
from planner.pools.saved import load_mixed_plan
from planner.units import format_bytes, format_stage


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """A plan through pools, and how its file names model and cluster."""

    plan: MixedPlan
    model: str
    cluster: str


def has_pools(source: SourceText) -> bool:
    """Whether a plan file says which pools hold its stages; raises InputError where no YAML."""
    return bool(load_yaml(Path(source.path)).get("pools"))


def check_pools(source: SourceText) -> "tuple[Pooled | None, tuple[Finding, ...]]":
    """The plan of a file with pools, and what is wrong with it."""
    lines = key_lines(source)
    try:
        mixed, plan, file = load_mixed_plan(Path(source.path))
    except InputError as error:
        found = [finding_of(problem, source.path, rule="plan.valid") for problem in error.problems]
        return None, tuple(placed(one, lines) for one in found)
    pooled = Pooled(plan=plan, model=file.inputs.model, cluster=mixed.name)
    return pooled, tuple(placed(one, lines) for one in _memory(plan, source.path))


def _memory(plan: MixedPlan, path: str) -> Iterator[Finding]:
    """An error for every pool whose fullest GPU does not hold its stage."""
    for part in plan.parts:
        if part.peak_bytes > part.usable_bytes:
            gpus = format_stage(part.peak_stage, plan.strategy.pp)
            text = (
                f"{gpus}, in {part.pool.name}, needs {format_bytes(part.peak_bytes)} of "
                f"{format_bytes(part.usable_bytes)} that are usable"
            )
            key = "strategy.layers_per_stage"
            yield Finding(rule="memory.fits", severity="error", message=text, path=path, key=key)


def figures_of(plan: MixedPlan) -> Figures:
    """Time, and memory where it is scarcest."""

    def free_bytes(part: Part) -> float:
        return part.usable_bytes - part.peak_bytes

    fullest = min(plan.parts, key=free_bytes)
    return Figures(
        iter_time_s=plan.iteration_s,
        tokens_per_s=plan.tokens_per_s,
        peak_bytes=fullest.peak_bytes,
        usable_bytes=fullest.usable_bytes,
        peak_stage=fullest.peak_stage,
        num_stages=plan.strategy.pp,
    )

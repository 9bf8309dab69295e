"""What `planner size` says of sizes and of a scaling curve, as data."""

from dataclasses import dataclass
from typing import Any, Literal

from planner.answers.base import Plan
from planner.answers.rows import InputsRow, LayoutRow, PlanRow, Row, layout_row
from planner.answers.scale import Point, Scaling, shares
from planner.query.objectives import JobLimits, Limit


@dataclass(frozen=True, kw_only=True)
class SizeRow(Row):
    """The fastest plan on a number of GPUs."""

    gpus: int
    nodes: int
    framework: str
    strategy: LayoutRow
    iter_time_s: float
    """One optimizer step."""
    tokens_per_s: float
    total_s: float
    """Of the job, or of 1000 iterations where its tokens are not known."""
    gpu_hours: float
    """Of the same span (h)."""
    cost_usd: float | None
    """Null where hwdb has no price."""
    energy_kwh: float | None
    """Accelerators at their rated power; null where hwdb has no power figure."""
    misses: list[Limit]
    """Limits that it does not keep."""
    proved_optimal: bool

    @classmethod
    def of(cls, size: Plan, limits: JobLimits, **more: Any) -> Any:  # noqa: ANN401 - of the class
        """The row of a size; ``more``: the fields that a class derived from this one adds."""
        return cls(
            gpus=size.num_gpus,
            nodes=size.num_nodes,
            framework=size.framework,
            strategy=layout_row(size.strategy),
            iter_time_s=size.estimate.iter_time_s,
            tokens_per_s=size.estimate.tokens_per_s,
            total_s=size.span_s(),
            gpu_hours=size.gpu_hours(),
            **size.amounts(),
            misses=list(limits.missed_by(size)),
            proved_optimal=size.is_optimal,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class ChosenSizeRow(SizeRow):
    """The fewest GPUs that keep the limits."""

    plan: PlanRow


@dataclass(frozen=True, kw_only=True)
class NearestSizeRow(SizeRow):
    """Where none keeps the limits, one of the nearest."""

    options: list[str]
    """Limits that it would keep."""


@dataclass(frozen=True, kw_only=True)
class SizeDocument(Row):
    """The fewest GPUs that do a job within limits, or just hold it, and the sizes around them."""

    inputs: InputsRow
    """On the largest cluster looked at."""
    limits: JobLimits
    includes: dict[str, str]
    """What cost and energy count."""
    usd_per_node_hour: float | None
    """In USD/h."""
    price_source: str
    power_w_per_gpu: float | None
    """In W."""
    chosen: ChosenSizeRow | None
    sizes: list[SizeRow]
    """Those looked at around it."""
    nearest: list[NearestSizeRow]
    enough: SizeRow | None
    """The fewest that would keep them, beyond the largest cluster."""
    resident: SizeRow | None
    """Where the chosen one offloads, the fewest that offload nothing."""
    seconds: float
    """Of the search (s)."""
    proved_optimal: bool
    """No time limit struck."""


@dataclass(frozen=True, kw_only=True)
class ScaleRow(Row):
    """One size of a scaling curve; without a plan only its batch and why there is none."""

    gpus: int
    global_batch: int
    why: str | None = None
    speed_up: float | None = None
    """Against the base."""
    efficiency: float | None = None
    """Against the base."""
    shares: dict[str, float] | None = None
    """Of the iteration, by limit; their sum is 1."""
    losses: dict[str, float] | None = None
    """What each limit takes from the efficiency; their sum is 1 less the efficiency."""
    limit: str | None = None
    """The largest of them."""
    batch_exhausted: bool = False
    """Every replica runs one micro-batch."""
    plan: PlanRow | None = None

    @classmethod
    def of(cls, result: Scaling, point: Point) -> "ScaleRow":
        """The row of a point of the curve."""
        plan = point.plan
        if plan is None:
            return cls(gpus=point.num_gpus, global_batch=point.global_batch, why=point.why_none)
        return cls(
            gpus=point.num_gpus,
            global_batch=point.global_batch,
            speed_up=result.speed_up(plan),
            efficiency=result.efficiency(plan),
            shares=shares(plan.estimate),
            losses=result.losses(plan),
            limit=result.limit(plan),
            batch_exhausted=point.is_exhausted,
            plan=PlanRow.of(plan),
        )


@dataclass(frozen=True, kw_only=True)
class ScaleDocument(Row):
    """The best plan at every size, and what limits it."""

    scaling: Literal["strong", "weak"]
    inputs: InputsRow
    """At the largest size."""
    base_gpus: int
    """The smallest size at which anything fits."""
    sizes: list[ScaleRow]
    limit_struck_at_gpus: list[int]
    """Sizes at which a time limit, or one of the solver, struck."""
    batch_exhausted_from_gpus: int | None
    """From there on at every size."""
    seconds: float
    """Of the search (s)."""

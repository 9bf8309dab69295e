"""Rows of plans in answers: one shape for JSON, CSV, tables and data frames.

Rows hold plain values in base units. Where an answer prints or is serialised, nothing is computed
any more. Docstrings of fields are their descriptions in JSON Schemas.
"""

from dataclasses import asdict
from typing import Any, Literal, Self

from planner.answers.base import Answer, Plan
from planner.answers.evidence import Evidence, evidence
from planner.answers.recipe import RecipeRow
from planner.answers.row import Row, field_values, property_row, row_from, row_of
from planner.answers.software import phrases
from planner.cost.estimate import Estimate, MemoryEstimate, TimeItem
from planner.frameworks.registry import Profile, profile_title
from planner.query.objectives import JobLimits, Limit
from planner.query.resolve import Case
from planner.query.traits import settings_mapping
from planner.spec.job import JobSpec
from planner.spec.strategy import Strategy
from planner.spec.traits import FrameworkTraits
from planner.units import DAY_S


@row_of({"recompute": str})
class LayoutRow(Strategy):
    """The decisions of a layout."""


@row_of(
    derived=("verdict", "moment"),
    # Infinite where nothing is offloaded, for which JSON has no word.
    leave_out=("host_limit_bytes",),
    about={
        "peak_bytes": "Everything included.",
        "hbm_bytes": "What the device has.",
        "usable_bytes": "What the driver offers less the margin.",
        "uncertainty_bytes": "Error on published runs of the framework, or --margin.",
        "stage": "The fullest, from 0.",
        "host_bytes": "Offloaded per rank, largest stage.",
    },
)
class MemoryFigures(MemoryEstimate, Row):
    """Memory of the fullest stage."""


@property_row(MemoryEstimate, leave_out=("ledger", "ranks_per_node", "verdict", "moment"))
class MemoryRow(MemoryFigures):
    """The same, item by item."""


@row_of(
    derived=(
        "iter_time_s_overlapped",
        "iter_time_s_serial",
        "mfu_lower",
        "mfu_upper",
        "model_flops_per_s_per_gpu",
    ),
    leave_out=("machine_ends_s", "memory"),
    about={
        "iter_time_s": "One optimizer step.",
        "iter_time_s_lower": "Of 80 % of the published runs of its regime, to the next.",
        "regime": "Those runs in words.",
        "mfu": "As flops_convention says.",
        "mfu_full_square": "The same with the attention square counted whole.",
        "model_flops": "Per iteration, the numerator of mfu (FLOPs).",
    },
)
class EstimateRow(Estimate, Row):
    """Time of an iteration and its ranges."""


@row_of(
    derived=("tokens_per_iteration",),
    leave_out=("documents",),
    about={
        "imbalance_fraction": "Tokens beyond the mean that the busiest rank of experts gets; 0 "
        "for dense models.",
        "mtp_layers": "Trained to predict further tokens, of the first framework.",
    },
)
class JobRow(JobSpec, Row):
    """Batch, length and precision."""


def layout_row(strategy: Strategy) -> LayoutRow:
    """The decisions of a strategy."""
    return LayoutRow(**asdict(strategy) | {"recompute": strategy.recompute})


class SoftwareRow(Row, Profile):
    """Assumptions about the software of a plan."""

    traits: dict[str, Any]
    """Traits set in place of the profile's."""
    software: dict[str, str]
    """Assumptions in words, by topic."""

    @classmethod
    def of(cls, traits: FrameworkTraits) -> "SoftwareRow":
        """Every topic included."""
        return cls(
            **asdict(profile_title(traits.name, traits.profile)),
            traits=settings_mapping(traits.settings),
            software=phrases(traits),
        )


class PlanRow(EstimateRow):
    """A plan, in any document."""

    gpus: int
    """Dp·tp·pp·cp."""
    framework: str
    strategy: LayoutRow
    memory: MemoryRow
    time: dict[str, TimeItem]
    """Time by dotted name, per iteration; busy is more than exposed where a part is overlapped."""
    gpu_hours: float
    gpu_hours_span: Literal["job", "1000 iterations"]
    """The job where its tokens are given."""
    days: float | None
    cost_usd: float | None
    """Null where hwdb has no price."""
    energy_kwh: float | None
    """Accelerators at their rated power; null where hwdb has no power figure."""
    proved_optimal: bool
    evidence: Evidence

    @classmethod
    def of(cls, plan: Plan, **more: Any) -> Self:  # noqa: ANN401
        """The row of a plan; ``more``: the fields that a class derived from this one adds."""
        estimate, total_s = plan.estimate, plan.total_s()
        return cls(
            gpus=plan.strategy.num_gpus,
            framework=plan.framework,
            strategy=layout_row(plan.strategy),
            **field_values(EstimateRow, estimate),
            memory=row_from(MemoryRow, estimate.memory),
            time=estimate.time,
            gpu_hours=plan.gpu_hours(),
            gpu_hours_span="job" if plan.context.job.total_tokens else "1000 iterations",
            days=None if total_s is None else total_s / DAY_S,
            cost_usd=plan.cost_usd(),
            energy_kwh=plan.amounts()["energy_kwh"],
            proved_optimal=plan.is_optimal,
            evidence=evidence(plan.context, plan.strategy),
            **more,
        )


class VariantRow(PlanRow):
    """Another plan of a layout."""

    turned: str
    time_change: float


class RankedRow(PlanRow):
    """A plan of a ranking: best first, no two of one layout, all within the limits."""

    weighed_s: float | None
    """Time it is ranked by: the time times the confidence penalties."""
    penalties: dict[str, float]
    """Confidence penalties: factors of what the plan relies on, by mechanism."""
    variants: list[VariantRow]


class NearestRow(PlanRow):
    """A plan beside the limits; where none keeps them, one of the nearest."""

    misses: list[Limit]
    options: list[str]
    """Limits in their place that it would keep."""


class InputsRow(JobRow):
    """Inputs of the question."""

    model: str
    cluster: str
    accelerator: str
    gpus: int
    """GPUs of the cluster."""
    frameworks: list[str]
    profiles: list[str]
    train: Literal["lora", "qlora"] | None
    """Null, like the next two, where all weights are trained."""
    lora_rank: int | None
    lora_targets: list[str] | None
    margin_fraction: float
    """Share of HBM left free."""
    # Their lengths in words, in place of what a job knows of them.
    documents: str | None  # type: ignore[assignment]
    """Their length and how they are batched, as --documents; null where every sequence is one."""
    narrowing: list[str]
    """Options that narrow the search, as given: --fix tp=8."""
    assumed: list[str]
    """Defaults taken and hardware figures assumed, in sentences."""

    @classmethod
    def of(cls, case: Case | Answer) -> "InputsRow":
        """The question as it was read."""
        context, job = case.contexts[0], case.contexts[0].job
        lora: dict[str, Any] = dict.fromkeys(("train", "lora_rank", "lora_targets"))
        return cls(
            model=context.model.name,
            cluster=context.cluster.name,
            accelerator=context.cluster.accelerator.name,
            gpus=context.cluster.num_accelerators,
            frameworks=[each.traits.name for each in case.contexts],
            profiles=[each.traits.profile for each in case.contexts],
            **field_values(JobRow, job),
            **lora | context.traits.training.inputs,
            margin_fraction=context.margin_fraction,
            documents=job.documents.text if job.documents else None,
            narrowing=list(case.narrowing.texts),
            assumed=[str(note) for note in case.notes],
        )


class AimRow(Row):
    """Objective plans are ranked by and limits they must meet."""

    objective: str
    limits: JobLimits | None
    pareto: list[str]
    headroom_gib: float | None
    """GiB that every plan leaves, with the objective headroom."""


class ProofRow(Row):
    """What CP-SAT, asked by --prove, found in the layouts shown."""

    num_layouts: int
    num_programs: int
    num_undecided: int
    """Programs that ran out of work."""
    faster: list[str]
    """Degrees of layouts with a plan faster than the fastest: none, unless the search is wrong."""
    seconds: float


class SearchRow(Row):
    """Size and outcome of the search."""

    configurations: int
    """Branches a rule cut, shapes, and the strategies of shapes that were opened."""
    shapes: int
    """Degrees, schedule and chunks that were bounded."""
    priced: int
    """Legal strategies whose time and memory were computed."""
    dropped: dict[str, int]
    """Branches cut, by rule; fits_in_memory is shapes that nothing can make fit."""
    stage_problems_solved: int
    seconds: float
    is_complete: bool
    """False where a time limit struck."""
    proved_optimal: bool
    """Every plan of both tables is proved."""
    gap: float
    """Bound on how far the best plan is off the optimum; 0 when proved."""
    proof: ProofRow | None


class PlanDocument(Row):
    """Ranked plans for a model on a cluster."""

    flops_convention: str
    inputs: InputsRow
    aim: AimRow
    assumptions: list[SoftwareRow]
    """One per framework."""
    plans: list[RankedRow]
    fastest: PlanRow | None
    """Under the model as it stands, where that is not the first."""
    ladder: list[PlanRow]
    """The best on at most 1/2, 1/4 and 1/8 of the first one's GPUs."""
    recipe: RecipeRow | None
    nearest: list[NearestRow]
    pareto: list[PlanRow]
    """Of --frontier or --pareto: plans that none beats in aim.pareto, fewest GPUs first."""
    search: SearchRow


class SideRow(Row):
    """One of the questions of --versus."""

    otherwise: str
    """Change to the question, such as precision=fp8; empty for the original one."""
    plan: PlanRow | None
    """The best; null where nothing fits."""
    usd_per_token: float | None
    """Null where the node has no price (USD)."""
    why_none: str
    """Reason why nothing fits; empty if something does."""
    assumed: list[str]
    """Defaults taken and hardware figures assumed, in sentences."""


class Ratio(Row):
    """Tokens per second over those as asked."""

    value: float
    lower: float
    """Between this and the next lie eight of ten such ratios."""
    upper: float
    basis: str
    within_error: bool
    """Either may be the faster one."""


class OtherRow(SideRow):
    """A question of --versus, in their order."""

    speed: Ratio | None
    """Null where either has no plan."""
    verdict: str


class VersusDocument(Row):
    """One question next to the same asked otherwise."""

    asked: SideRow
    others: list[OtherRow]


class SpaceRow(Row):
    """The search space of one framework."""

    framework: str
    profile: str
    dimensions: dict[str, list[Any]]
    """Values that legal strategies take, by name."""
    layer_policies: list[str]
    """Policies for the saved activations of all layers, in words."""
    module_sets: list[list[str]]
    """Sets of modules selective layers may recompute."""
    shapes: int
    strategies: int
    splits: str
    """Splits into stages with a policy per layer of all strategies, at most: a decimal number."""
    dropped: dict[str, int]
    """Branches cut, by rule or option, most first."""


class SpaceDocument(Row):
    """Spaces that would be searched."""

    inputs: InputsRow
    spaces: list[SpaceRow]

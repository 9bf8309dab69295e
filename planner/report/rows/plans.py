"""Documents of a search, and of why a layout is not the one chosen."""

from typing import Annotated, Any, Literal, NotRequired

from planner.answers.versus import Ratio
from planner.cost.ledger_item import LedgerItem
from planner.plans.ratio_error import RatioError
from planner.report.rows.base import FieldsOf, Row
from planner.report.rows.parts import AssumptionsRow, ItemDifferenceRow, LimitsRow, PlanRow, SideRow
from planner.spec.strategy import Strategy


class PlanInputs(Row):
    """What ``inputs`` holds."""

    model: str
    cluster: str
    accelerator: str
    gpus: int
    """Of the cluster."""
    frameworks: list[str]
    """Searched."""
    profiles: list[str]
    """Of each framework."""
    global_batch: int
    """Per iteration."""
    seq_len: int
    """Per sequence."""
    tokens_per_iteration: int
    """Product of the two."""
    precision: str
    train: NotRequired[Literal["lora", "qlora"]]
    """Where adapters are trained; else neither this nor the next two are there."""
    lora_rank: NotRequired[int]
    lora_targets: NotRequired[list[str]]
    """Projections that have an adapter."""
    total_tokens: float | None
    """Of the job."""
    margin_fraction: float
    """Of HBM kept free."""
    documents: str | None
    """How long documents are and how they are batched, as --documents says it.

    Null where every sequence is one.
    """
    imbalance_fraction: float
    """Tokens beyond the mean that the busiest rank of experts gets; 0 for dense models."""
    mtp_layers: int
    """Trained to predict further tokens, of the first framework."""
    narrowing: list[str]
    """Options that narrow the search, as given: --fix tp=8."""
    assumed: list[str]
    """Defaults taken and hardware figures assumed, in sentences."""


class PlanAim(Row):
    """What ``aim`` holds."""

    objective: str
    """What plans are ranked by, a word of --objective."""
    limits: LimitsRow | None
    pareto: list[str]
    """Objectives that pareto trades off."""
    headroom_gib: float | None
    """With the objective headroom, what every plan leaves."""


class PlanPlanVariant(PlanRow):
    """The fastest other plans of the layout."""

    turned: str
    """What is different."""
    time_change: float


class PlanPlan(PlanRow):
    """Best first, no two of one layout; all keep the limits."""

    weighed_s: float
    """What they are ranked by, the time times the handicaps."""
    handicaps: dict[str, float]
    """Factors of what the plan relies on, by mechanism."""
    variants: list[PlanPlanVariant]


class PlanRecipe(Row):
    """The nearest tuned recipe's layout, priced for this question."""

    recipe: str
    source: str
    layout: str
    iter_time_s: float | None
    peak_bytes: float | None
    missing_bytes: float
    fits_its_own_software: bool
    """Under the recipe's own runtime, as what begins with own_."""
    problem: str | None
    """Why it cannot run here."""
    row: int | None
    """Of its layout among plans, from 1."""
    slower_fraction: float | None
    """Than plan 1."""
    own_iter_time_s: float | None
    own_slower_fraction: float | None


class PlanNearest(PlanRow):
    """Where no plan keeps the limits, the nearest plans."""

    misses: list[Literal["deadline", "rate", "budget"]]
    options: list[str]
    """Limits that it would keep."""


class PlanSearch(Row):
    """What ``search`` holds."""

    configurations: int
    """Branches a rule cut, legal shapes, and the strategies of shapes that were opened."""
    shapes: int
    """Legal ones - degrees, schedule, micro-batch, sequence parallelism."""
    priced: int
    """Legal strategies whose time and memory were computed."""
    fitting: int
    """Of those, neither excluded by memory nor by a bound."""
    dropped: dict[str, int]
    """Branches cut, by rule; fits_in_memory is shapes that nothing can make fit."""
    stage_problems_solved: int
    seconds: float
    """In s."""
    is_complete: bool
    """False where a time limit struck."""
    proved_optimal: bool
    """Every plan of both tables is proved."""
    gap: float
    """By which the best plan may be off the optimum at most; 0 when proved."""


class PlanDocument(Row):
    """Ranked plans for a model on a cluster."""

    flops_convention: str
    """What mfu counts."""
    inputs: PlanInputs
    aim: PlanAim
    assumptions: list[AssumptionsRow]
    """One per framework."""
    plans: list[PlanPlan]
    fastest: PlanRow | None
    """Under the model as it stands, where that is not the first."""
    ladder: list[PlanRow]
    """The best on at most a half, a quarter, an eighth of the first one's GPUs, and on the
    fewest.
    """
    recipe: PlanRecipe | None
    nearest: list[PlanNearest]
    pareto: list[PlanRow]
    """Asked for with --frontier or --pareto, plans that none beats in aim.pareto, ascending in
    GPUs, then time.
    """
    search: PlanSearch


VersusOtherSpeed = Annotated[
    dict[str, Any],
    FieldsOf(
        "VersusOtherSpeed",
        Ratio,
        more={
            "within_error": bool,
        },
    ),
]
"""Tokens per second over those as asked; null where either has no plan."""


class VersusOther(SideRow):
    """In the order of --versus."""

    speed: VersusOtherSpeed | None
    verdict: str
    """In a sentence."""


class VersusDocument(Row):
    """One question beside the same asked otherwise."""

    asked: SideRow
    others: list[VersusOther]


class SpaceInputs(Row):
    """What ``inputs`` holds."""

    model: str
    cluster: str
    gpus: int
    global_batch: int
    seq_len: int
    narrowing: list[str]
    assumed: list[str]


class SpaceSpace(Row):
    """One per framework."""

    framework: str
    profile: str
    dimensions: dict[str, list[Any]]
    """Values that legal strategies take, by name."""
    layer_policies: list[str]
    """What may be said of the saved activations of all layers."""
    module_sets: list[Any]
    """Sets of modules selective layers may recompute."""
    shapes: int
    """Legal ones."""
    strategies: int
    """Legal ones."""
    splits: str
    """Over all strategies, cuts into stages with a policy per layer, at most.

    A decimal number.
    """
    dropped: dict[str, int]
    """Branches cut, by rule or option, most first."""


class SpaceDocument(Row):
    """What would be searched."""

    inputs: SpaceInputs
    spaces: list[SpaceSpace]


class WhyRankingWeights(Row):
    """What the times are multiplied by to rank them."""

    asked: float
    best: float


class WhyHandicap(Row):
    """By mechanism."""

    asked: float
    """Factor; 1 where unused."""
    best: float
    reason: str


class WhyStageLayers(Row):
    """What ``layers`` holds."""

    asked: int
    best: int


class WhyStage(Row):
    """The same stage of both, where both have as many."""

    stage: int
    layers: WhyStageLayers
    time: list[ItemDifferenceRow]
    """Its own work of an iteration."""


class WhyLayout(Row):
    """What differs."""

    asked: Any
    best: Any


class WhyNothingFitsRule(Row):
    """Rules that leave nothing."""

    name: str
    message: str
    violations: list[str]
    """What layouts do against it, with numbers."""
    allowed: str | None


class WhyNothingFitsNearest(Row):
    """The layout that lacks least memory."""

    strategy: Strategy
    limit: str
    stage: int
    missing_bytes: float
    is_least: bool
    """No other lacks less."""
    peak_bytes: float
    ledger: list[LedgerItem]


class WhyNothingFitsChange(Row):
    """Changes of the question after which something fits."""

    change: str
    options: list[str]
    cluster: str | None
    gpus: int
    framework: str
    iter_time_s: float
    time_factor: float | None
    proved_optimal: bool
    strategy: Strategy


class WhyNothingFits(Row):
    """What ``nothing_fits`` holds."""

    framework: str
    rules: list[WhyNothingFitsRule]
    each_rule_alone: bool | None
    """Any of them leaves nothing."""
    conflict: list[str]
    """Options that cannot hold together."""
    limits: list[str]
    nearest: WhyNothingFitsNearest | None
    ideal_iter_time_s: float | None
    """If memory were no limit."""
    changes: list[WhyNothingFitsChange]


class WhyDocument(Row):
    """Why a layout is not the one chosen.

    What compares two plans is there only where there are two.
    """

    options: list[str]
    """As given."""
    verdict: str
    """In a word."""
    asked: PlanRow | None
    """The best with these options; null where none fits."""
    best: PlanRow | None
    """Without them."""
    slower_by: float | None
    """Of the best plan's time; below 0 is faster."""
    gpu_time_factor: NotRequired[float]
    """GPU time of an iteration over the best plan's."""
    ratio_error: NotRequired[RatioError]
    within_error: NotRequired[bool]
    """The times are closer than the typical error."""
    ranking_weights: NotRequired[WhyRankingWeights]
    handicaps: NotRequired[dict[str, WhyHandicap]]
    stages: NotRequired[list[WhyStage]]
    time: list[ItemDifferenceRow]
    """Items of the whole pipeline, mean over its stages.

    They add up to that of the iterations.
    """
    layout: dict[str, WhyLayout]
    nothing_fits: WhyNothingFits | None
    complete: bool
    """No time limit struck."""
    notes: list[str]
    """Defaults that were assumed."""

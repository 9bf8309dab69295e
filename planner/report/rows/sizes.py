"""Documents of questions over sizes and figures."""

from typing import Literal, NotRequired

from planner.answers.rows import LayoutRow, PlanRow
from planner.query.objectives import JobLimits
from planner.report.rows.base import Row
from planner.report.rows.parts import SizeRow


class ScaleInputs(Row):
    """What ``inputs`` holds."""

    model: str
    node: str
    accelerator: str
    seq_len: int
    precision: str
    train: NotRequired[Literal["lora", "qlora"]]
    lora_rank: NotRequired[int]
    lora_targets: NotRequired[list[str]]
    total_tokens: float | None
    assumed: list[str]


class ScaleSize(Row):
    """One entry of ``sizes``."""

    gpus: int
    global_batch: int
    why: NotRequired[str]
    """Only where there is no plan; then the fields below are missing."""
    speed_up: NotRequired[float]
    """Against the base."""
    efficiency: NotRequired[float]
    """Against the base."""
    shares: NotRequired[dict[str, float]]
    """Of the iteration, by limit; their sum is 1."""
    losses: NotRequired[dict[str, float]]
    """What each limit takes from the efficiency; their sum is 1 less the efficiency."""
    limit: NotRequired[str | None]
    """The largest of them."""
    batch_exhausted: NotRequired[bool]
    """Every replica runs one micro-batch."""
    plan: NotRequired[PlanRow]


class ScaleDocument(Row):
    """The best plan at every size, and what limits it."""

    scaling: Literal["strong", "weak"]
    inputs: ScaleInputs
    base_gpus: int
    """The smallest size at which anything fits."""
    sizes: list[ScaleSize]
    limit_struck_at_gpus: list[int]
    """Sizes at which a time limit, or one of the solver, struck."""
    batch_exhausted_from_gpus: int | None
    """From there on at every size."""
    seconds: float
    """Of the search (s)."""


class SizeInputs(Row):
    """What ``inputs`` holds."""

    model: str
    node: str
    accelerator: str
    max_gpus: int
    """Largest cluster looked at."""
    frameworks: list[str]
    profiles: list[str]
    global_batch: int
    seq_len: int
    precision: str
    train: NotRequired[Literal["lora", "qlora"]]
    lora_rank: NotRequired[int]
    lora_targets: NotRequired[list[str]]
    total_tokens: float | None
    narrowing: list[str]
    assumed: list[str]


class SizeChosen(SizeRow):
    """The fewest GPUs that keep the limits."""

    plan: PlanRow


class SizeNearest(SizeRow):
    """Where none keeps the limits, the nearest."""

    options: list[str]
    """Limits that it would keep."""


class SizeDocument(Row):
    """The fewest GPUs that do a job within limits, or just hold it, and the sizes around them."""

    inputs: SizeInputs
    limits: JobLimits
    includes: dict[str, str]
    """What cost and energy count."""
    usd_per_node_hour: float | None
    """In USD/h."""
    price_source: str
    power_w_per_gpu: float | None
    """In W."""
    chosen: SizeChosen | None
    sizes: list[SizeRow]
    """Those looked at around it."""
    nearest: list[SizeNearest]
    enough: SizeRow | None
    """The fewest that would keep them, beyond the largest cluster."""
    resident: SizeRow | None
    """Where the chosen one offloads, the fewest that offload nothing."""
    seconds: float
    """Of the search (s)."""
    proved_optimal: bool
    """No time limit struck."""


class SensitivityInputs(Row):
    """What ``inputs`` holds."""

    model: str
    cluster: str
    global_batch: int
    seq_len: int
    precision: str
    assumed: list[str]
    """Defaults taken and hardware figures assumed, in sentences."""


class SensitivityFigurePoint(Row):
    """Ascending; planned again at each."""

    factor: float
    """Of the value now."""
    value: float
    """In the figure's unit."""
    time_per_token_change: float | None
    """Of the best plan there against the one now, as plans are ranked, by what is known of their
    mechanisms too; null where nothing fits.
    """
    best_iter_time_s: float | None
    plan_iter_time_s: float | None
    """Of the layout given, or of the best one now, kept.

    Null where it is illegal or does not fit.
    """
    same_layout: bool
    """As the best one now."""
    layout: str | None
    """Of the best plan there."""
    strategy: LayoutRow | None


class SensitivityFigureCrossing(Row):
    """The nearest on either side."""

    factor: float
    """From which on another layout wins, within 1 percent or a step of a count."""
    value: float
    """In the figure's unit."""
    layout: str | None
    """Of the winner; null where nothing fits."""
    strategy: LayoutRow | None


class SensitivityFigure(Row):
    """One entry of ``figures``."""

    figure: str
    """Key under overrides of a cluster file, or an option's name."""
    title: str
    value: float
    """Now, in its unit."""
    unit: str
    is_hardware: bool
    points: list[SensitivityFigurePoint]
    elasticity: float | None
    """Percent of time per token for a percent of the figure, about the value now."""
    crossings: list[SensitivityFigureCrossing]
    range: list[float] | None
    """Between which machines lie, in the figure's unit."""
    range_time_fraction: float
    """By which the plan's time differs between its ends."""
    range_decides_layout: bool
    """Another layout wins within it."""


class SensitivityDocument(Row):
    """What time and the best layout do when a figure of hardware or job is another one."""

    inputs: SensitivityInputs
    best: PlanRow
    """That a search finds."""
    given: PlanRow | None
    """Of the file that was asked about."""
    figures: list[SensitivityFigure]
    worth_measuring: list[str]
    """Figures by what their range moves, most first."""
    next_command: str | None
    """Of the shell, that measures them; null where nothing is or torch cannot."""
    searches: int
    proved_optimal: bool
    """Every plan was proved best under the model."""

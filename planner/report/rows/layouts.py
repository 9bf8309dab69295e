"""Documents about one plan."""

from typing import Any, Literal

from planner.answers.rows import EvidenceRow, LayoutRow, PlanRow, SoftwareRow
from planner.answers.savings import Saving
from planner.cost.ledger import LedgerItem
from planner.report.rows.base import Row
from planner.spec.strategy import Strategy


class MemoryStage(Row):
    """One entry of ``stages``."""

    stage: int
    moment: str
    """When it is fullest."""
    peak_bytes: float
    """Everything."""
    allocated_bytes: float
    """What tensors take."""
    verdict: Literal["fits", "tight", "does not fit"]
    ledger: list[LedgerItem]
    """Their sum is peak_bytes."""


class MemoryDocument(Row):
    """Where one configuration's memory goes, by stage, and what would save how much."""

    model: str
    cluster: str
    framework: str
    profile: str
    assumptions: SoftwareRow
    strategy: Strategy
    """What was asked, completed."""
    verdict: Literal["fits", "tight", "does not fit"]
    """Tight is inside the uncertainty."""
    peak_bytes: float
    """Fullest stage."""
    hbm_bytes: float
    """What the driver offers."""
    headroom_bytes: float
    """Difference."""
    uncertainty_bytes: float
    """Error on published runs of the framework, or --margin."""
    host_bytes: float
    """Offloaded per rank."""
    host_limit_bytes: float | None
    """Null where nothing is offloaded."""
    stages: list[MemoryStage]
    savings: list[Saving]
    notes: list[str]
    """Defaults that were assumed."""


class ExplainMemoryItem(Row):
    """One entry of ``items``."""

    name: str
    """Dotted."""
    num_bytes: float
    """Their sum is peak_bytes."""
    about: str
    """What it is, in a sentence."""


class ExplainMemory(Row):
    """Of the fullest stage; null where something else was asked for."""

    verdict: Literal["fits", "tight", "does not fit"]
    stage: int
    """The fullest, from 0."""
    moment: str
    """When its peak occurs."""
    peak_bytes: float
    hbm_bytes: float
    uncertainty_bytes: float
    host_bytes: float
    """Offloaded per rank."""
    host_missing_bytes: float
    """What the host lacks for it, per rank."""
    stage_peak_bytes: list[float]
    """Of every stage."""
    items: list[ExplainMemoryItem]


class ExplainTimePipeline(Row):
    """Until the last backward; null with one stage."""

    formula_s: float
    simulated_s: float
    """By event simulation."""


class ExplainTimeItem(Row):
    """One entry of ``items``."""

    name: str
    """Dotted."""
    busy_s: float
    """How long the resource works."""
    exposed_s: float
    """Their sum is iter_time_s."""
    about: str


class ExplainTime(Row):
    """Of an iteration; null where something else was asked for."""

    slowest_stage: int
    iter_time_s: float
    iter_time_s_lower: float
    iter_time_s_upper: float
    regime: str
    iter_time_s_overlapped: float
    """Communication hidden completely."""
    iter_time_s_serial: float
    """And not at all."""
    pipeline: ExplainTimePipeline | None
    items: list[ExplainTimeItem]


class ExplainItemInput(Row):
    """One entry of ``inputs``."""

    path: str
    """Such as strategy.tp."""
    value: Any
    source: str
    """Of a trait, where it comes from."""


class ExplainItemFormula(Row):
    """One entry of ``formulas``."""

    function: str
    text: str


class ExplainItem(Row):
    """The item or group asked for."""

    name: str
    """Dotted, in full."""
    unit: Literal["bytes", "s"]
    """Of the values."""
    total: float
    """Of the peak or the iteration."""
    values: dict[str, float]
    """Of the whole first, then of every part."""
    text: str
    """What it is, where no single formula says so."""
    inputs: list[ExplainItemInput]
    formulas: list[ExplainItemFormula]


class ExplainSaved(Row):
    """What the plan file says."""

    planner_version: str
    iter_time_s: float
    time_change: float
    """Of the estimate above over the saved one, minus one."""


class ExplainDocument(Row):
    """Where a saved plan's memory and time go, or one item with its formula."""

    model: str
    cluster: str
    framework: str
    profile: str
    strategy: LayoutRow
    memory: ExplainMemory | None
    time: ExplainTime | None
    item: ExplainItem | None
    evidence: EvidenceRow
    assumptions: SoftwareRow
    saved: ExplainSaved


class JobInputs(Row):
    """What ``inputs`` holds."""

    model: str
    cluster: str
    node: str
    accelerator: str
    nodes: int
    gpus: int
    """That work."""
    total_tokens: int
    """Of the job."""
    storage_bytes_per_s: float
    """Of the file system."""
    node_mtbf_s: float
    """Mean time between failures of a node, over all."""
    restart_s: float
    """From a failure to loading."""
    async_checkpoints: bool
    """Only the copy to host memory stops training."""
    assumed: list[str]
    """Defaults taken and hardware figures assumed, in sentences."""


class JobCheckpoint(Row):
    """What ``checkpoint`` holds."""

    bytes: float
    """Of one."""
    parameters: int
    """Saved."""
    weight_bytes_per_parameter: float
    """Beside the master copy."""
    master_bytes_per_parameter: float
    state_bytes_per_parameter: float
    """Of the optimizer."""
    write_s: float
    """And to read it."""
    stop_s: float
    """By which one stops training."""
    interval_s: float
    """Of work between two."""
    interval_iterations: int
    young_interval_s: float
    """Young's best."""
    daly_interval_s: float
    """Daly's best."""
    node_bytes_per_s: float
    """Most that a node writes."""


class JobFailures(Row):
    """What ``failures`` holds."""

    mtbf_s: float
    """Mean time between failures of the job."""
    expected: float
    """In the elapsed time."""
    restart_and_read_s: float
    """Lost by each beside work.

    With asynchronous checkpoints the work while one is written too.
    """


class JobInput(Row):
    """What ``input`` holds."""

    token_bytes: int
    """Of a stored token."""
    total_bytes: int
    """Of the data set."""
    bytes_per_s: float


class JobPeakLearningRate(Row):
    """Of AdamW at this batch; null of adapters, mixtures and other optimizers."""

    deepseek: float
    step_law: float


class JobDocument(Row):
    """What a whole job takes: failures, checkpoints, energy, input, a learning rate."""

    inputs: JobInputs
    iter_time_s: float
    mfu: float
    iterations: int
    useful_s: float
    """Of iterations."""
    elapsed_s: float
    """Checkpoints and failures within."""
    goodput: float
    """Useful over elapsed time, by Daly's complete cost function."""
    goodput_first_order: float
    gpu_hours: float
    """Of the elapsed time (GPU-hours)."""
    cost_usd: float | None
    """Of the elapsed time."""
    energy_kwh: float | None
    """Of the accelerators at rated power."""
    checkpoint: JobCheckpoint
    failures: JobFailures
    input: JobInput
    peak_learning_rate: JobPeakLearningRate | None
    plan: PlanRow

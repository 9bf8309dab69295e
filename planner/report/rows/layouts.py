"""The document of a whole job."""

from planner.answers.rows import PlanRow
from planner.report.rows.base import Row


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

"""Documents about sweeps and measurements."""

from typing import Literal

from planner.calibrate.fit import OwnErrors
from planner.compare.causes import Cause
from planner.compare.compare import Published
from planner.report.rows.base import Row


class CompareLogMeasured(Row):
    """Of the steps that count; null where rates need a batch that nothing says."""

    iter_time_s: float
    """Median."""
    iter_time_s_low: float
    """A tenth of the steps are faster."""
    iter_time_s_high: float
    """A tenth are slower."""
    mean_s: float
    num_steps: int
    """Printed."""
    num_left_out: int
    """First ones."""
    allocated_bytes: float | None
    """Largest peak of the ranks that print it."""
    reserved_bytes: float | None


class CompareLogPredicted(Row):
    """Null where the layout is not known, which unpriced says."""

    model: str
    cluster: str
    framework: str
    profile: str
    gpus: int
    layout: str
    """In a line."""
    global_batch: int
    seq_len: int
    iter_time_s: float
    iter_time_s_lower: float
    """Between this and the next lie 80 % of the published runs of its regime."""
    iter_time_s_upper: float
    regime: str
    """Those runs in words."""
    mfu: float
    allocated_bytes: float | None
    """As the allocator counts it on the fullest rank."""
    reserved_bytes: float | None
    assumed: list[str]
    """What nobody said."""
    unusual: list[str]
    """What the run does that plans would not."""


class CompareLog(Row):
    """One entry of ``logs``."""

    path: str
    framework: str
    """Whose lines the log has."""
    verdict: str
    """In a sentence."""
    time_error: float | None
    """Predicted over measured, minus one."""
    unit: Literal["ms", "s", "samples/s", "tokens/s/GPU", "it/s"]
    """Of printed."""
    printed: float
    """The median of the steps in the log's unit."""
    is_usual: bool | None
    """Measured between iter_time_s_lower and iter_time_s_upper."""
    measured: CompareLogMeasured | None
    predicted: CompareLogPredicted | None
    published: Published | None
    causes: list[Cause]
    steps: list[Cause]
    unpriced: list[str]
    """Why there is no price."""
    notes: list[str]


class CompareDocument(Row):
    """What training runs took, against what their layouts are priced at."""

    logs: list[CompareLog]


class CalibrateFigure(Row):
    """One entry of ``figures``."""

    key: str
    """Of overrides in a cluster file."""
    catalog: float | None
    """In the unit of the key; null where it has none."""
    basis: str
    """How the catalog knows it."""
    value: float
    """Fitted."""
    deviation: float
    """Standard deviation of value."""
    num_points: int
    """That depend on it."""


class CalibrateDocument(Row):
    """A machine's own figures, fitted to measurements and held to the catalog's."""

    cluster: str
    accelerator: str
    figures: list[CalibrateFigure]
    own: list[OwnErrors]
    cluster_file: str
    """As --out writes it."""

"""Documents of questions over sizes and figures."""

from planner.answers.rows import LayoutRow, PlanRow
from planner.report.rows.base import Row


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

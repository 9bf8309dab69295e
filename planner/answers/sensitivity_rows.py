"""What `planner sensitivity` says of figures, as data."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.answers.rows import InputsRow, LayoutRow, PlanRow, Row, layout_row
from planner.answers.sensitivity import Crossing, Point, Response, Sensitivity, layout_of
from planner.notes import Note


@dataclass(frozen=True, kw_only=True)
class PointRow(Row):
    """A figure at another value, planned again."""

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
    """Of the layout given, or of the best one now, kept; null where it is illegal or does not fit.
    """
    same_layout: bool
    """As the best one now."""
    strategy: LayoutRow | None
    """Of the best plan there."""

    @classmethod
    def of(cls, one: Response, point: Point) -> "PointRow":
        """The row of a point of a figure."""
        best = point.best
        return cls(
            factor=point.factor,
            value=point.factor * one.figure.value,
            time_per_token_change=one.change(point),
            best_iter_time_s=best.estimate.iter_time_s if best else None,
            plan_iter_time_s=point.kept_s,
            same_layout=best is not None and layout_of(best) == layout_of(one.base),
            strategy=layout_row(best.strategy) if best else None,
        )


@dataclass(frozen=True, kw_only=True)
class CrossingRow(Row):
    """Where another layout begins to win, nearest on either side."""

    factor: float
    """From which on another layout wins, within 1 percent or a step of a count."""
    value: float
    """In the figure's unit."""
    strategy: LayoutRow | None
    """Of the winner; null where nothing fits."""

    @classmethod
    def of(cls, one: Response, crossing: Crossing) -> "CrossingRow":
        """The row of a crossing of a figure."""
        plan = crossing.plan
        return cls(
            factor=crossing.factor,
            value=crossing.factor * one.figure.value,
            strategy=layout_row(plan.strategy) if plan else None,
        )


@dataclass(frozen=True, kw_only=True)
class FigureRow(Row):
    """What one figure does."""

    figure: str
    """Key under overrides of a cluster file, or an option's name."""
    title: str
    value: float
    """Now, in its unit."""
    unit: str
    is_hardware: bool
    points: list[PointRow]
    """Ascending."""
    elasticity: float | None
    """Percent of time per token for a percent of the figure, about the value now."""
    crossings: list[CrossingRow]
    range: list[float] | None
    """Between which machines lie, in the figure's unit."""
    range_time_fraction: float
    """By which the plan's time differs between its ends."""
    range_decides_layout: bool
    """Another layout wins within it."""

    @classmethod
    def of(cls, one: Response) -> "FigureRow":
        """The row of a figure."""
        figure = one.figure
        return cls(
            figure=figure.key,
            title=figure.title,
            value=figure.value,
            unit=figure.unit,
            is_hardware=figure.is_hardware,
            points=[PointRow.of(one, point) for point in one.points],
            elasticity=one.elasticity,
            crossings=[CrossingRow.of(one, crossing) for crossing in one.crossings],
            range=[end * figure.value for end in figure.ends] if figure.ends else None,
            range_time_fraction=one.span,
            range_decides_layout=one.decides,
        )


@dataclass(frozen=True, kw_only=True)
class SensitivityDocument(Row):
    """What time and the best layout do when a figure of hardware or job is another one."""

    inputs: InputsRow
    best: PlanRow
    """That a search finds."""
    given: PlanRow | None
    """Of the file that was asked about."""
    figures: list[FigureRow]
    worth_measuring: list[str]
    """Figures by what their range moves, most first."""
    next_command: str | None
    """Of the shell, that measures them; null where nothing is or torch cannot."""
    searches: int
    proved_optimal: bool
    """Every plan was proved best under the model."""

    @classmethod
    def of(
        cls, result: Sensitivity, notes: Sequence[Note], following: str
    ) -> "SensitivityDocument":
        """The whole answer; ``following`` is the next command."""
        return cls(
            inputs=InputsRow.of(result.case.contexts, result.case.narrowing, tuple(notes)),
            best=PlanRow.of(result.best),
            given=None if result.plan is result.best else PlanRow.of(result.plan),
            figures=[FigureRow.of(one) for one in result.responses],
            worth_measuring=[one.figure.key for one in result.worth_measuring],
            next_command=following or None,
            searches=result.num_searches,
            proved_optimal=result.is_proved,
        )

"""From a table of measurements to a machine stated whole, its file and its errors."""

from dataclasses import dataclass, replace
from pathlib import Path

from planner.calibrate.document import whole_document
from planner.calibrate.figures import Base
from planner.calibrate.fit import Own, own_errors
from planner.calibrate.measured import Table
from planner.calibrate.stated import Stated
from planner.calibrate.table_points import table_points
from planner.calibrate.whole import whole_machine
from planner.catalog.clusters import cluster_of_data
from planner.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A machine stated whole: its figures, and how far the model is from what they come from."""

    path: str
    table: Table
    base: Base
    figures: tuple[Stated, ...]
    own: tuple[Own, ...]


def state(path: str, table: Table, out: Path) -> Whole:
    """The machine of a table; ``out``: the cluster file, which names it.

    Raises InputError where rows are missing, or cannot be, or make a figure that no machine has.
    """
    figures = whole_machine(path, table)
    document = whole_document(table, figures)
    try:
        base = Base(cluster=cluster_of_data(document, out), raw=document)
    except InputError as error:
        hint = "measure again with nothing else on the machine"
        raise InputError(
            replace(each, where=path, message=f"{each.message}; {hint}") for each in error.problems
        ) from None
    points = list(table_points(path, table, base.cluster))
    return Whole(
        path=path, table=table, base=base, figures=figures, own=own_errors(base, points, {})
    )

"""How published runs on the same accelerator are priced before and after a calibration."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.calibrate.figures import with_factors
from planner.calibrate.fit import Calibration
from planner.cost.estimate import estimate
from planner.errors import InputError
from planner.validation.hardware import CannotEstimateError
from planner.validation.mapping import to_run
from planner.validation.records import read_records


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Mean of the absolute errors of published runs, before and after."""

    num_runs: int
    before: float
    after: float


def published_errors(made: Calibration, path: Path) -> Moved | None:
    """Of runs in a file that are scored and ran on this accelerator; None without any."""
    errors: list[tuple[float, float]] = []
    for record in read_records(path):
        measured_s = record.iter_time_s
        if not (record.is_scored and record.has_direct_time and measured_s):
            continue
        try:
            run = to_run(record)
        except (CannotEstimateError, InputError):
            continue
        own = run.context.cluster
        if own.accelerator.name != made.base.cluster.accelerator.name:
            continue
        context = replace(run.context, cluster=with_factors(own, made.factors))
        before, after = (
            abs(estimate(each, run.strategy).iter_time_s / measured_s - 1.0)
            for each in (run.context, context)
        )
        errors.append((before, after))
    if not errors:
        return None
    mean = np.mean(np.array(errors), axis=0)
    return Moved(num_runs=len(errors), before=float(mean[0]), after=float(mean[1]))

"""Section of docs/accuracy.md about ratios of layouts."""

import math
from collections.abc import Sequence

from planner.validation.compare import Comparison
from planner.validation.markdown import percent, table
from planner.validation.ratios import drifts, layout_groups, ratio_errors, ratio_pairs

_NOTE = """\
Two plans for one question share most of what the model gets wrong, so which is faster is better
known than how fast either is. Pairs of runs of one source with the same model, GPUs, batch and
precision, by what they differ in: error of the predicted over the measured ratio of their times.
Median is of its absolute value; signed, the middle 80 % lie from low to high, of the layout with
more (the first field that differs, in the order tp, pp, cp, dp, vpp, micro-batch, recomputation,
...) over the one with less: below 0 the model flatters more. Groups count the same however many
pairs they hold. Combinations in fewer than three groups are together in the last line."""
_DRIFT_NOTE = """\
Drift: how measured over predicted time moves with a degree inside these groups, all degrees
fitted together; above 0, runs with more of it are slower than the model says. ± is the standard
error over groups; what to count on is b·b²/(b² + s²). Larger micro-batches gain more
than the model says; probably because the host's launches are not counted for dense models.
[Handicaps](search.md#handicaps) of the ranking are taken from both tables."""


def ratio_section(rows: Sequence[Comparison]) -> list[str]:
    """Both tables with what they mean."""
    groups = layout_groups(rows)
    pairs = (
        [
            error.kind,
            str(error.num_pairs),
            str(error.num_groups),
            str(error.num_runs),
            percent(math.expm1(error.median)),
            percent(math.expm1(error.covered)),
            *(
                percent(math.expm1(value), signed=True)
                for value in (error.low, error.high, error.bias)
            ),
        ]
        for error in ratio_errors(ratio_pairs(groups))
    )
    slopes = (
        [
            drift.degree,
            str(drift.num_groups),
            str(drift.num_runs),
            percent(math.expm1(drift.per_doubling), signed=True),
            percent(math.expm1(drift.standard_error)),
            percent(math.expm1(drift.shrunk), signed=True),
        ]
        for drift in drifts(groups)
    )
    titles = [
        "differ in",
        "pairs",
        "groups",
        "runs",
        "median %",
        "80 % below",
        "low %",
        "high %",
        "bias %",
    ]
    return [
        "## Ratios of layouts",
        "",
        _NOTE,
        "",
        *table(titles, pairs),
        _DRIFT_NOTE,
        "",
        *table(["per doubling of", "groups", "runs", "drift %", "± %", "count on %"], slopes),
    ]

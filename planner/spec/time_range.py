"""TimeRange: how far iteration times were off on published runs."""

from dataclasses import dataclass

UNSEEN_LOW, UNSEEN_HIGH = 0.9, 1.5
"""Factors on the ends of a range for an accelerator without published runs.

Its sustained rates are derived from one measured product or assumed. Assumed: training on MI250X
is published at 0.32-0.36 of peak (Frontier), two thirds of what the best product suggests.
"""


@dataclass(frozen=True, kw_only=True)
class TimeRange:
    """Where 80 % of the published runs of a regime lay: measured over predicted time."""

    low: float = 1.0
    high: float = 1.0
    regime: str = "no published run"
    """The runs it is taken from, in words."""
    accelerators: tuple[str, ...] = ()
    """Those the runs used."""

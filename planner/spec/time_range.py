"""TimeRange: how far iteration times were off on published runs."""

from collections.abc import Mapping
from dataclasses import dataclass

UNSEEN_LOW, UNSEEN_HIGH = 0.9, 1.5
"""Factors on the ends of a range for an accelerator without published runs.

Its sustained rates are derived from one measured product or assumed. Assumed: training on MI250X
is published at 0.32-0.36 of peak (Frontier), two thirds of what the best product suggests.
"""
RunClass = tuple[str, str]
"""Kind and place (``one node``, ``several nodes``) of runs that are alike; empty: all of them."""
KINDS: Mapping[str, str] = {
    "frozen": "adapters beside frozen weights",
    "offload": "states or parameters away from the device",
    "mixture": "mixtures of experts",
    "dense": "dense models",
    "": "all kinds",
}
"""In words; the first that a run is."""


@dataclass(frozen=True, kw_only=True)
class TimeRange:
    """Where 80 % of the published runs of a regime lay: measured over predicted time."""

    low: float = 1.0
    high: float = 1.0
    regime: str = "no published run"
    """The runs it is taken from, in words."""
    accelerators: tuple[str, ...] = ()
    """Those the runs used."""

    def on(self, accelerator: str) -> "TimeRange":
        """The range on an accelerator: wider where nobody published a run on it."""
        if accelerator in self.accelerators:
            return self
        return TimeRange(
            low=self.low * UNSEEN_LOW,
            high=self.high * UNSEEN_HIGH,
            regime=f"widened: no published run on {accelerator} among {self.regime}",
        )


def broader(key: RunClass) -> tuple[RunClass, RunClass, RunClass]:
    """A class of runs and those that hold it, the narrowest first."""
    kind, _ = key
    return key, (kind, ""), ("", "")


def narrowest(ranges: Mapping[RunClass, TimeRange], key: RunClass) -> TimeRange:
    """The range of the narrowest class with one that a class of runs is in."""
    return next((ranges[each] for each in broader(key) if each in ranges), TimeRange())


def class_words(key: RunClass) -> str:
    """A class of runs in words."""
    kind, place = key
    return KINDS[kind] + (f" on {place}" if place else "")

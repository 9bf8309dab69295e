"""How far iteration times were off on published runs, by regime: the range plans state."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.validation.compare import Comparison
from planner.validation.hardware import to_cluster
from planner.validation.profiles import software_of

COVERED = 0.8
"""Share of a regime's runs between the two ends; the rest is halved."""
MIN_RUNS = 20
"""Fewer runs make no regime of their own."""
HEADER = """\
# Where 80 % of published runs lay around the predicted iteration time, by regime: 10th and 90th
# percentile of measured over predicted, minus one, in %; the prediction itself always inside.
# Written by tools/accuracy.py; do not edit. Later lines go before earlier ones.
"""
Key = tuple[str, str, str]
"""Kind of model, framework, accelerator; empty where a regime holds all of them."""


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Runs that are alike in kind of model, framework and accelerator.

    The ends are percentiles of their ratios, taken outwards to the next run.
    """

    key: Key
    ratios: tuple[float, ...]
    """Measured over predicted time."""
    accelerators: tuple[str, ...]
    """Those of its runs."""

    @property
    def low(self) -> float:
        """Lower end of the range, at most 1."""
        share = (1.0 - COVERED) / 2.0
        return min(1.0, float(np.quantile(self.ratios, share, method="lower")))

    @property
    def high(self) -> float:
        """Upper end of the range, at least 1."""
        share = (1.0 + COVERED) / 2.0
        return max(1.0, float(np.quantile(self.ratios, share, method="higher")))

    def as_dict(self) -> dict[str, str]:
        """The names that are not empty."""
        names = ("kind", "framework", "accelerator")
        return {name: value for name, value in zip(names, self.key, strict=True) if value}


def key_of(row: Comparison) -> Key:
    """The narrowest regime of a run."""
    framework = software_of(row.record).framework
    accelerator = to_cluster(row.record.hardware).accelerator.name
    return ("mixture" if row.record.model.moe else "dense", framework, accelerator)


def _broader(key: Key) -> tuple[Key, Key, Key]:
    """A regime and those that hold it, the broadest first."""
    kind, framework, _ = key
    return (kind, "", ""), (kind, framework, ""), key


def regimes(rows: Sequence[Comparison]) -> dict[Key, Regime]:
    """Regimes of the headline's runs with enough of them, the broadest first.

    All runs of a kind are a regime whatever their number.
    """
    ratios: dict[Key, list[float]] = {}
    used: dict[Key, set[str]] = {}
    for row in rows:
        if row.in_headline and row.time_error is not None:
            own = key_of(row)
            for key in _broader(own):
                used.setdefault(key, set()).add(own[2])
                ratios.setdefault(key, []).append(1.0 / (1.0 + row.time_error))
    kept = {
        key: Regime(key=key, ratios=tuple(values), accelerators=tuple(sorted(used[key])))
        for key, values in ratios.items()
        if len(values) >= MIN_RUNS or not key[1]
    }
    return dict(sorted(kept.items(), key=lambda item: (sum(map(bool, item[0])), item[0])))


def regime_of(key: Key, found: dict[Key, Regime]) -> Regime:
    """The narrowest regime there is for a plan of this kind, framework and accelerator."""
    return next(found[broader] for broader in reversed(_broader(key)) if broader in found)


def coverage(rows: Sequence[Comparison], found: dict[Key, Regime]) -> dict[Key, tuple[int, float]]:
    """Per regime: the runs whose plans get its range, and the share of them inside it."""
    inside: dict[Key, list[bool]] = {}
    for row in rows:
        if row.in_headline and row.time_error is not None:
            regime = regime_of(key_of(row), found)
            ratio = 1.0 / (1.0 + row.time_error)
            inside.setdefault(regime.key, []).append(regime.low <= ratio <= regime.high)
    return {key: (len(values), sum(values) / len(values)) for key, values in inside.items()}


def _line(regime: Regime) -> str:
    names = "".join(f"{name}: {value}, " for name, value in regime.as_dict().items())
    low = math.floor(1000.0 * (regime.low - 1.0)) / 10.0
    high = math.ceil(1000.0 * (regime.high - 1.0)) / 10.0
    runs = f"runs: {len(regime.ratios)}"
    ends = f"low_percent: {low:.1f}, high_percent: {high:.1f}"
    on = "" if regime.key[2] else f", accelerators: [{', '.join(regime.accelerators)}]"
    return f"- {{{names}{runs}, {ends}{on}}}\n"


def time_uncertainty_text(rows: Sequence[Comparison]) -> str:
    """Return planner/frameworks/time_uncertainty.yaml."""
    return HEADER + "".join(_line(regime) for regime in regimes(rows).values())

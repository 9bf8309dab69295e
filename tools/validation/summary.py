"""Errors of all comparisons, by kind of run and of memory, and their JSON form."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from planner.units import Array
from tools.validation.compare import MEMORY_KINDS, Comparison, Figures
from tools.validation.records import Parallel, Unread

SIZES = ((8, "1-8 GPUs"), (64, "9-64 GPUs"), (256, "65-256 GPUs"), (1024, "257-1024 GPUs"))
LARGEST = "more than 1024 GPUs"
MIN_GROUP = 3
MEMORY_TITLES = {
    "allocated": "allocated by tensors, fullest rank",
    "reserved": "reserved by the caching allocator",
    "nvidia_smi": "whole device (nvidia-smi)",
}
_BESIDE = {
    *("dp_replicate", "global_batch", "recompute_step", "recompute_modules", "pp_layout"),
    *("offload", "offloaded_layers"),
}
"""Fields of a record's layout in which runs of one layout may differ."""
_LAYOUT = [name for name in Parallel.model_fields if name not in _BESIDE]


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Summary of relative errors, as fractions; None where there are none."""

    n: int
    mape: float | None
    """Mean of |error|."""
    median_ape: float | None
    p90_ape: float | None
    bias: float | None
    """Mean of error."""


def summarize(errors: Sequence[float]) -> Errors:
    """Return count, mean, median and 90th percentile of |error|, and the mean error."""
    if not errors:
        return Errors(n=0, mape=None, median_ape=None, p90_ape=None, bias=None)
    values = np.array(errors)
    sizes = np.abs(values)
    return Errors(
        n=len(errors),
        mape=float(sizes.mean()),
        median_ape=float(np.median(sizes)),
        p90_ape=float(np.quantile(sizes, 0.9)),
        bias=float(values.mean()),
    )


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Kendall's τ-b: (concordant - discordant) pairs over pairs untied on each side.

    ``Σ sign(Δp) sign(Δm) / sqrt(Σ sign(Δp)² · Σ sign(Δm)²)``; 0 where one side is all ties.
    """
    pairs = list(combinations(range(len(predicted)), 2))
    first = np.sign([predicted[i] - predicted[j] for i, j in pairs])
    second = np.sign([measured[i] - measured[j] for i, j in pairs])
    norm = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / norm if norm else 0.0


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Measured time of the predicted fastest over the measured fastest, minus one."""
    chosen = int(np.argmin(predicted))
    return measured[chosen] / min(measured) - 1.0


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """Least value whose weight, with all smaller ones, is at least ``share`` of the whole."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) >= share * weights.sum() * (1.0 - 1e-12)
    return float(values[order][np.argmax(reached)])


def percent(value: float | None, *, signed: bool = False) -> str:
    """Format a fraction as percent with one decimal; a dash when unknown."""
    if value is None:
        return "-"
    return f"{100.0 * value:+.1f}" if signed else f"{100.0 * value:.1f}"


def error_cells(errors: Errors) -> list[str]:
    """Count, mean, median, 90th percentile and bias as text."""
    return [
        str(errors.n),
        percent(errors.mape),
        percent(errors.median_ape),
        percent(errors.p90_ape),
        percent(errors.bias, signed=True),
    ]


@dataclass(frozen=True, kw_only=True)
class RankingGroup:
    """Layouts of one source that differ in nothing else."""

    source: str
    model: str
    gpus: int
    layouts: int
    tau: float
    regret: float
    predicted_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the comparison found."""

    time: Errors
    time_dense: Errors
    time_moe: Errors
    time_from_flops: Errors
    """Times derived from TFLOPs or MFU: shown, not in the headline."""
    timed: int
    timed_in_range: int
    """Headline runs whose time lies in the range that their prediction states."""
    memory: dict[str, Errors]
    out_of_memory: int
    out_of_memory_right: int
    ran: int
    ran_predicted_to_fit: int
    ranking: tuple[RankingGroup, ...]
    by_framework: dict[str, Errors]
    by_gpu: dict[str, Errors]
    by_framework_and_gpu: dict[tuple[str, str], Errors]
    by_size: dict[str, Errors]
    skipped: dict[str, tuple[str, ...]]
    """Names of records that could not be estimated, by reason, the most frequent first."""

    @property
    def mean_tau(self) -> float | None:
        """Mean Kendall's τ over the ranking groups."""
        taus = [group.tau for group in self.ranking]
        return sum(taus) / len(taus) if taus else None

    @property
    def mean_regret(self) -> float | None:
        """Mean regret over the ranking groups."""
        regrets = [group.regret for group in self.ranking]
        return sum(regrets) / len(regrets) if regrets else None


def size_name(num_gpus: int | None) -> str:
    """Bucket of a number of GPUs."""
    return next((name for limit, name in SIZES if (num_gpus or 0) <= limit), LARGEST)


def time_errors(rows: Iterable[Comparison]) -> list[float]:
    """Time errors that are known."""
    return [row.time_error for row in rows if row.time_error is not None]


def _by(rows: Sequence[Comparison], key: Callable[[Comparison], Any]) -> dict[Any, Errors]:
    groups: dict[Any, list[Comparison]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {name: summarize(time_errors(groups[name])) for name in sorted(groups)}


def _by_size(rows: Sequence[Comparison]) -> dict[str, Errors]:
    found = _by(rows, lambda row: size_name(row.record.hardware.gpus))
    names = [*(name for _, name in SIZES), LARGEST]
    return {name: found[name] for name in names if name in found}


def group_key(row: Comparison) -> tuple[Any, ...]:
    """What runs share that may differ in layout only."""
    record = row.record
    model, hardware = record.model, record.hardware
    return (
        record.source.title,
        model.name,
        hardware.gpu,
        hardware.gpus or 0,
        record.parallel.global_batch or 0,
        model.seq_len or 0,
        model.heads or 0,
        record.precision,
    )


def ranking_groups(rows: Sequence[Comparison]) -> tuple[RankingGroup, ...]:
    """Score the order of layouts in every group of at least three that differ in layout only.

    One source, model (with its heads and sequence length), GPU type and number, batch and
    precision. Runs of one layout are averaged.
    """
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Comparison]]] = {}
    for row in rows:
        layout = tuple(getattr(row.record.parallel, name) for name in _LAYOUT)
        groups.setdefault(group_key(row), {}).setdefault(layout, []).append(row)
    found = []
    for key, layouts in sorted(groups.items(), key=lambda item: item[0]):
        if len(layouts) < MIN_GROUP:
            continue
        predicted = [_mean(row.predicted for row in runs) for runs in layouts.values()]
        measured = [_mean(row.measured for row in runs) for runs in layouts.values()]
        found.append(
            RankingGroup(
                source=key[0],
                model=key[1],
                gpus=key[3],
                layouts=len(layouts),
                tau=kendall_tau(predicted, measured),
                regret=regret(predicted, measured),
                predicted_s=tuple(predicted),
            )
        )
    return tuple(found)


def _mean(figures: Iterable[Figures | None]) -> float:
    times = [item.iter_time_s for item in figures if item and item.iter_time_s]
    return sum(times) / len(times)


def _memory(rows: Sequence[Comparison]) -> dict[str, Errors]:
    return {
        kind: summarize([error for row in rows if (error := row.memory_error(kind)) is not None])
        for kind in MEMORY_KINDS
    }


def summary(comparisons: Sequence[Comparison]) -> Summary:
    """Summarise; headline figures use complete records of quality A or B with direct times."""
    headline = [row for row in comparisons if row.in_headline]
    scored = [row for row in comparisons if row.record.is_scored and row.predicted is not None]
    burst = [row for row in scored if row.measured.fits is False]
    ran = [row for row in scored if row.measured.fits]
    ranged = [row.is_in_range for row in headline if row.is_in_range is not None]
    indirect = [row for row in scored if not row.record.has_direct_time]
    return Summary(
        time=summarize(time_errors(headline)),
        time_dense=summarize(time_errors(r for r in headline if r.record.model.moe is None)),
        time_moe=summarize(time_errors(r for r in headline if r.record.model.moe is not None)),
        time_from_flops=summarize(time_errors(indirect)),
        timed=len(ranged),
        timed_in_range=sum(ranged),
        memory=_memory(scored),
        out_of_memory=len(burst),
        out_of_memory_right=sum(_fits(row) is False for row in burst),
        ran=len(ran),
        ran_predicted_to_fit=sum(_fits(row) is True for row in ran),
        ranking=ranking_groups(headline),
        by_framework=_by(headline, lambda row: row.record.framework),
        by_gpu=_by(headline, lambda row: row.record.hardware.gpu),
        by_framework_and_gpu=_by(
            headline, lambda row: (row.record.framework, row.record.hardware.gpu)
        ),
        by_size=_by_size(headline),
        skipped=_skipped(comparisons),
    )


def _skipped(comparisons: Iterable[Comparison]) -> dict[str, tuple[str, ...]]:
    names: dict[str, list[str]] = defaultdict(list)
    for row in comparisons:
        if row.skipped:
            names[row.skipped].append(row.record.id)
    ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
    return {reason: tuple(found) for reason, found in ordered}


def _fits(row: Comparison) -> bool | None:
    return row.predicted.fits if row.predicted else None


def worst_rows(comparisons: Sequence[Comparison], number: int) -> list[Comparison]:
    """Headline rows with the largest time errors, largest first."""
    rows = [row for row in comparisons if row.in_headline and row.time_error is not None]
    return sorted(rows, key=lambda row: -abs(row.time_error or 0.0))[:number]


def _run_json(row: Comparison) -> dict[str, Any]:
    return {
        "id": row.record.id,
        "predicted": asdict(row.predicted or Figures()),
        "measured": asdict(row.measured),
        "error": {"time": row.time_error, "memory": row.first_memory_error},
        "in_range": row.is_in_range,
        "skipped": row.skipped,
    }


def _short(errors: Errors) -> dict[str, Any]:
    return {name: value for name, value in asdict(errors).items() if name != "p90_ape"}


def to_json(comparisons: Sequence[Comparison], unread: Sequence[Unread] = ()) -> dict[str, Any]:
    """Return everything as plain data: fractions, seconds, GiB; null where unknown."""
    found = summary(comparisons)
    memory: dict[str, Any] = {kind: asdict(errors) for kind, errors in found.memory.items()}
    memory["out_of_memory"] = {"n": found.out_of_memory, "right": found.out_of_memory_right}
    memory["ran"] = {"n": found.ran, "predicted_to_fit": found.ran_predicted_to_fit}
    return {
        "runs": [_run_json(row) for row in comparisons],
        "unread": [
            {"id": line.name, "problems": [str(problem) for problem in line.problems]}
            for line in unread
        ],
        "summary": {
            "time": asdict(found.time),
            "time_dense": asdict(found.time_dense),
            "time_moe": asdict(found.time_moe),
            "time_range": {"n": found.timed, "inside": found.timed_in_range},
            "memory": memory,
            "ranking": {
                "groups": len(found.ranking),
                "mean_tau": found.mean_tau,
                "mean_regret": found.mean_regret,
            },
            "by_framework": {name: _short(e) for name, e in found.by_framework.items()},
            "by_gpu": {name: _short(e) for name, e in found.by_gpu.items()},
            "by_size": {name: _short(e) for name, e in found.by_size.items()},
            "skipped": {reason: len(names) for reason, names in found.skipped.items()},
        },
    }

"""Fit the kernel forms to the published tables in tests/validation/kernels, cross-validated.

Run: python -m tools.kernel_fits (two minutes; with ``--score`` seconds, and the fits are kept).
Writes tests/validation/kernels/fits.json: errors of each form on shapes left out of its fit, the
constants fitted on all shapes, and the errors of the constants that hwdb ships. ``python -m
tools.docs kernels`` shows that file.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.catalog.clusters import load_cluster
from planner.cost.kernels import (
    CAST_HBM_FRACTION,
    GEMM_HBM_FRACTION,
    OPERAND_BYTES,
    peak_flops_per_s,
    smooth_gemm_flops_s,
    tiled_gemm_flops_s,
)
from planner.layers.op import ATTENTION_BLOCK
from planner.spec.cluster import AcceleratorSpec, GemmEfficiency
from planner.spec.job import Precision
from planner.units import US, Array
from tools.kernel_tables import (
    ACCELERATORS,
    DTYPES,
    TABLE_CAST_BYTES,
    Rows,
    attention_rows,
    errors_of,
    gemm_rows,
    is_training_size,
    shipped_errors,
    take,
)

TABLES = Path(__file__).resolve().parents[1] / "tests" / "validation" / "kernels"
FOLDS = 5
STEPS = 25
NEARLY_ABSOLUTE = 0.02
"""Residuals of the logarithm beyond this count by their size, not its square."""
LONG_FLOPS = 2e12
"""Products from here on are long enough to show the rate of a device under load."""
MIN_ROWS = 60
"""Attention kernels with fewer rows are left out."""

Predict = Callable[[Rows, Array], Array]


def folds_of(*keys: Array) -> NDArray[np.int64]:
    """Fold of every row; rows that share the keys (a weight's shape) share the fold."""
    _, group = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    shuffled = np.random.default_rng(0).permutation(int(group.max()) + 1)
    return shuffled[group.ravel()] % FOLDS


def fitted(predict: Predict, rows: Rows, start: tuple[float, ...]) -> Array:
    """Constants with nearly the least absolute error of the logarithm.

    Levenberg-Marquardt on the constants' logarithms, with iterated weights.
    """
    measured = np.log(rows["seconds"])
    point, damping = np.log(np.array(start)), 1e-2

    def residual(at: Array) -> Array:
        away: Array = np.log(predict(rows, np.exp(at))) - measured
        return away

    now = residual(point)
    for _ in range(STEPS):
        weight = 1.0 / np.sqrt(np.maximum(np.abs(now), NEARLY_ABSOLUTE))
        moved = [residual(point + 1e-4 * step) - now for step in np.eye(len(point))]
        slope = np.stack(moved, axis=1) * (weight[:, None] / 1e-4)
        normal, pull = slope.T @ slope, slope.T @ (now * weight)
        damped = normal + damping * np.diag(np.diag(normal) + 1e-4 * np.trace(normal))
        trial = point - np.clip(np.linalg.solve(damped, pull), -0.5, 0.5)
        then = residual(trial)
        if np.abs(then).sum() < np.abs(now).sum():
            point, now, damping = trial, then, max(damping / 3.0, 1e-6)
        else:
            damping *= 4.0
    constants: Array = np.exp(point)
    return constants


def left_out_s(
    predict: Predict, rows: Rows, start: tuple[float, ...], fold: NDArray[np.int64]
) -> Array:
    """Predictions of every row by a fit that has not seen its fold."""
    predicted = np.empty_like(rows["seconds"])
    for index in range(FOLDS):
        values = fitted(predict, take(rows, fold != index), start)
        predicted[fold == index] = predict(take(rows, fold == index), values)
    return predicted


@dataclass(frozen=True, kw_only=True)
class GemmForm:
    """A form of a product's time; the last two constants of ``slows`` are d and tau.

    ``slows``: arithmetic grows by ``1 + d x / (x + tau)``. Kernels of milliseconds slow down in
    bursts that start on a cool device. It keeps the offsets from absorbing that; the planner
    leaves it out, because a training device is always loaded.
    """

    names: tuple[str, ...]
    start: tuple[float, ...]
    tiled: bool = False
    slows: bool = False

    def predictor(self, accelerator: AcceleratorSpec, precision: Precision) -> Predict:
        """Seconds of rows under constants."""
        peak = peak_flops_per_s(accelerator, precision)
        operand_bytes = OPERAND_BYTES.get(precision, 2.0)
        streamed = GEMM_HBM_FRACTION * accelerator.hbm_bytes_per_s
        cast_bandwidth = CAST_HBM_FRACTION * accelerator.hbm_bytes_per_s

        def predict(rows: Rows, values: Array) -> Array:
            given = {"m0": 0.0, "n0": 0.0, "k0": 0.0, "launch_us": 0.0}
            given |= dict(zip(self.names, map(float, values), strict=True))
            if "edge0" in given:
                given["m0"] = given["n0"] = given.pop("edge0")
            cast = given.pop("cast_bytes", TABLE_CAST_BYTES[precision]) / cast_bandwidth
            given["wave_weight"] = min(given.get("wave_weight", 0.0), 1.0)
            slowdown, tau_s = given.pop("slowdown", 0.0), given.pop("tau_us", 1.0) * US
            launch_s = given.pop("launch_us") * US
            rate = peak * given["sustained_fraction"]
            efficiency = GemmEfficiency(
                launch_s=launch_s,
                num_multiprocessors=accelerator.gemm.num_multiprocessors,
                **given,  # type: ignore[arg-type]
            )
            m, n, k = rows["m"], rows["n"], rows["k"]
            if self.tiled:
                x = tiled_gemm_flops_s(m, n, k, 1.0, efficiency, rate)
            else:
                x = smooth_gemm_flops_s(m, n, k, efficiency, rate)
            traffic_s = (operand_bytes * (m * k + k * n) + 2.0 * m * n) / streamed
            slow_s = x * (1.0 + slowdown * x / (x + tau_s))
            return launch_s + cast * m * k + np.maximum(slow_s, traffic_s)

        return predict


_SMOOTH = ("sustained_fraction", "m0", "n0", "k0", "launch_us")
_TILES = (
    "sustained_fraction",
    "tile_k0",
    "launch_us",
    "tile_128x128_fraction",
    "tile_128x64_fraction",
    "wave_weight",
)
_LONG = ("slowdown", "tau_us")
_CAST = ("sustained_fraction", "edge0", "k0", "launch_us", "cast_bytes", *_LONG)
FORMS = {
    "constant": GemmForm(names=("sustained_fraction",), start=(0.7,)),
    "smooth": GemmForm(names=_SMOOTH, start=(0.7, 100, 100, 130, 3)),
    "smooth, long": GemmForm(
        names=_SMOOTH + _LONG, start=(0.8, 100, 100, 130, 3, 0.2, 2000), slows=True
    ),
    "smooth, long, cast": GemmForm(names=_CAST, start=(0.8, 200, 300, 6, 3, 0.2, 2000), slows=True),
    "tiles, long": GemmForm(
        names=_TILES + _LONG, start=(0.8, 150, 3, 0.9, 0.85, 0.5, 0.2, 2000), tiled=True, slows=True
    ),
}


def _rounded(names: tuple[str, ...], values: Array) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in zip(names, values, strict=True)}


def unbiased_rate(form: GemmForm, values: Array, rows: Rows, predict: Predict) -> float:
    """Share of peak that makes the form without slow-down right on average on long products."""
    long = take(rows, 2.0 * rows["m"] * rows["n"] * rows["k"] >= LONG_FLOPS)
    plain = values.copy()
    plain[form.names.index("slowdown")] = 1e-9
    for _ in range(8):
        plain[0] *= float(np.mean(predict(long, plain) / long["seconds"]))
    return float(plain[0])


def gemm_fits() -> dict[str, dict[str, object]]:
    """Forms by table and precision: errors left out, constants, and the rate under load."""
    results: dict[str, dict[str, object]] = {}
    for table, name in ACCELERATORS.items():
        accelerator = load_cluster(f"1x{name}").accelerator
        for dtype, precision in DTYPES.items():
            rows = gemm_rows(TABLES, table, dtype)
            if not len(rows["m"]):
                continue
            fold, large = folds_of(rows["n"], rows["k"]), is_training_size(rows)
            entry: dict[str, object] = {}
            for label, form in FORMS.items():
                if ("tiles" if precision != "bf16" else "cast") in label:
                    continue
                predict = form.predictor(accelerator, precision)
                predicted = left_out_s(predict, rows, form.start, fold)
                values = fitted(predict, rows, form.start)
                entry[label] = {
                    "training_sizes": asdict(errors_of(predicted[large], rows["seconds"][large])),
                    "all": asdict(errors_of(predicted, rows["seconds"])),
                    "constants": _rounded(form.names, values),
                }
                if form.slows:
                    entry[label]["rate_under_load"] = round(  # type: ignore[index]
                        unbiased_rate(form, values, rows, predict), 3
                    )
            results.setdefault(table, {})[precision] = entry
            print(table, precision, flush=True)
    return results


_ATTENTION = ("fraction", "s0", "tiles0", "launch_us")


def attention_predictor(accelerator: AcceleratorSpec) -> Predict:
    """Causal forward attention: launch + flops (1 + s0/s)(1 + u0/u) / (peak e)."""
    peak = peak_flops_per_s(accelerator, "bf16")

    def predict(rows: Rows, values: Array) -> Array:
        fraction, seq_len0, tiles0, launch_us = (float(value) for value in values)
        heads = rows["batch_size"] * rows["num_heads"]
        flops = 2.0 * heads * rows["seq_len"] ** 2 * rows["head_dim"]
        tiles = heads * np.ceil(rows["seq_len"] / ATTENTION_BLOCK)
        ramp = (1.0 + seq_len0 / rows["seq_len"]) * (1.0 + tiles0 / tiles)
        return launch_us * US + flops * ramp / (peak * fraction)

    return predict


def attention_fits() -> dict[str, dict[str, dict[str, object]]]:
    """Forward kernels by table, kernel and head size."""
    results: dict[str, dict[str, dict[str, object]]] = {}
    start = (0.6, 300.0, 100.0, 8.0)
    for table, name in ACCELERATORS.items():
        predict = attention_predictor(load_cluster(f"1x{name}").accelerator)
        for (kernel, head_dim), rows in attention_rows(TABLES, table).items():
            if len(rows["seconds"]) < MIN_ROWS:
                continue
            fold = folds_of(rows["batch_size"], rows["num_heads"], rows["kv_heads"])
            predicted = left_out_s(predict, rows, start, fold)
            values = fitted(predict, rows, start)
            results.setdefault(table, {}).setdefault(kernel, {})[str(head_dim)] = {
                "all": asdict(errors_of(predicted, rows["seconds"])),
                "constants": _rounded(_ATTENTION, values),
            }
    return results


def main() -> None:
    """Fit, or score anew, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--score", action="store_true", help="keep the fits, score hwdb anew")
    path = TABLES / "fits.json"
    if parser.parse_args().score:
        results = json.loads(path.read_text(encoding="utf-8"))
    else:
        results = {"gemm": gemm_fits(), "attention": attention_fits()}
    results["shipped"] = {
        part: {key: asdict(errors) for key, errors in scores.items()}
        for part, scores in shipped_errors(TABLES).items()
    }
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

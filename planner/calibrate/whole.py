"""A machine stated whole from what was measured on it: no catalog stands behind its figures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.calibrate.measured import Measured, Table, What
from planner.calibrate.ridge import ridge
from planner.calibrate.stated import Stated, Value, median_of
from planner.calibrate.table_points import work_of
from planner.calibrate.whole_links import between, disks, hosts
from planner.cost.attention_kernels import flash_attention_backward_s, flash_attention_forward_s
from planner.cost.kernels import product_s
from planner.errors import InputError
from planner.layers.op import Gemm
from planner.spec.cluster import AcceleratorSpec, AttentionEfficiency, Dtype, GemmEfficiency
from planner.units import GB, GIB, MIB, TERA, US, Array

OFFSET, OFFSET_DEVIATION = 30.0, 1.1
"""Of the sides of a product: known to a factor of three until products say more."""
FRACTION_DEVIATION = 0.5
"""Of a share of the peak."""
RAMP = 100.0
"""Length at which attention reaches half its rate, known as the offsets are."""
LAUNCHES = 2.0
"""Launches of a small kernel that a product's own overhead is taken to be at first."""
_RATE_KEYS: dict[str, str] = {
    "fp32": "fp32_tflops",
    "fp16": "fp16_dense_tflops",
    "bf16": "bf16_dense_tflops",
}


def whole_machine(path: str, table: Table) -> tuple[Stated, ...]:
    """Every figure of the accelerator and node; raises InputError where needed rows lack."""
    _check(path, table)
    dtype, peaks = _peaks(table)
    rate, share = _memory(table)
    launch = median_of(table.of("launch"))
    spec = _spec(dtype, peaks[dtype].value * TERA, rate.value * GB)
    return (
        *_sizes(table),
        *(peak.at("accelerator", _RATE_KEYS[name]) for name, peak in peaks.items()),
        rate.at("accelerator", "hbm_gb_per_s"),
        share.at("accelerator", "memory_bound_fraction"),
        *_gemm(table, spec, dtype, launch),
        *_attention(path, table, spec, dtype, LAUNCHES * launch),
        *between(table),
        *hosts(table, rate.value),
        *disks(table),
    )


def _check(path: str, table: Table) -> None:
    needed: tuple[What, ...] = ("product", "copy", "norm", "launch")
    needed += ("attention_forward", "attention_backward", "host_adam")
    missing = [what for what in needed if not table.of(what)]
    if missing:
        message = f"a machine cannot be stated without rows of {', '.join(missing)}"
        raise InputError.single(path, "rows", message)


def _sizes(table: Table) -> list[Stated]:
    machine = table.machine
    accelerator, node = ("accelerator",), ("node",)
    return [
        Stated(path=(*accelerator, "hbm_gib"), value=machine.memory_bytes / GIB),
        Stated(path=(*accelerator, "context_gib"), value=machine.context_bytes / GIB),
        Stated(path=(*node, "host_memory_gib"), value=machine.host_memory_bytes / GIB),
        Stated(path=(*node, "host_cores"), value=machine.host_cores),
    ]


def _rate(row: Measured) -> float:
    return 2.0 * row.m * row.n * row.k / row.time_s


def _peaks(table: Table) -> tuple[Dtype, dict[Dtype, Value]]:
    """The precision that was measured most, and the best product of each worth computing in.

    16 bits that are slower than 32 are emulated; nobody trains in them.
    """
    rows = table.of("product")
    by_dtype = {row.dtype: [each for each in rows if each.dtype == row.dtype] for row in rows}
    usual = max(by_dtype, key=lambda name: len(by_dtype[name]))
    best = {name: max(own, key=_rate) for name, own in by_dtype.items()}
    found: dict[Dtype, Value] = {}
    for name, row in best.items():
        if name != usual and name != "fp32" and _rate(row) < _rate(best[usual]):
            continue
        found[name] = Value(  # type: ignore[index]
            value=_rate(row) / TERA,
            deviation=row.spread_s / row.time_s,
            num_points=len(by_dtype[name]),
            note=f"best product: {row.m} x {row.n} x {row.k}",
        )
    return usual, found  # type: ignore[return-value]


def _memory(table: Table) -> tuple[Value, Value]:
    """The fastest copy, addition or norm, and what additions and norms reach of it on the mean."""
    rows, kernels = table.of("copy", "add", "norm"), table.of("add", "norm")

    def rate(row: Measured) -> float:
        return row.num_bytes / row.time_s

    best = max(rows, key=rate)
    logs = np.log([rate(row) / rate(best) for row in kernels])
    fastest = Value(
        value=rate(best) / GB,
        deviation=best.spread_s / best.time_s,
        num_points=len(rows),
        note=f"best: {best.what} of {best.num_bytes / MIB:.0f} MiB, all ranks at once",
    )
    share = Value(
        value=float(np.exp(np.mean(logs))),
        deviation=float(np.std(logs) / np.sqrt(len(logs))),
        num_points=len(kernels),
        note="additions and norms into new tensors, mean of all sizes",
    )
    return fastest, share


def _spec(dtype: Dtype, peak_flops_per_s: float, hbm_bytes_per_s: float) -> AcceleratorSpec:
    attention = AttentionEfficiency(
        forward_fraction=1.0, forward_s0=1.0, backward_fraction=1.0, backward_s0=1.0
    )
    return AcceleratorSpec(
        name="measured",
        vendor="measured",
        hbm_bytes=1.0,
        hbm_bytes_per_s=hbm_bytes_per_s,
        peak_flops_per_s={dtype: peak_flops_per_s},
        memory_bound_fraction=1.0,
        gemm=GemmEfficiency(sustained_fraction=1.0, m0=1.0, n0=1.0, k0=1.0, launch_s=0.0),
        attention=attention,
        attention_flash2=attention,
    )


def _gemm(table: Table, spec: AcceleratorSpec, dtype: Dtype, launch_s: float) -> list[Stated]:
    """Share of the peak, offsets and launch, by the model's own formula of a product."""
    rows = [row for row in table.of("product") if row.dtype == dtype]
    m, n, k = (np.array([getattr(row, side) for row in rows], dtype=float) for side in "mnk")
    names = ("sustained_fraction", "m0", "n0", "k0", "launch_us")

    def predict(values: Array) -> Array:
        fraction, m0, n0, k0, launch = values
        gemm = GemmEfficiency(
            sustained_fraction=min(fraction, 1.0), m0=m0, n0=n0, k0=k0, launch_s=launch * US
        )
        return product_s(Gemm(m=m, n=n, k=k), _with(spec, gemm=gemm), dtype)

    start = np.array([0.9, OFFSET, OFFSET, OFFSET, LAUNCHES * launch_s / US])
    open_ = np.array([FRACTION_DEVIATION, *[OFFSET_DEVIATION] * 4])
    fit = ridge(predict, _times(rows), start, open_)
    values = [min(fit.values[0], 1.0), *fit.values[1:]]
    return [
        Stated(
            path=("accelerator", "gemm", name),
            value=float(value),
            deviation=float(deviation),
            num_points=len(rows),
        )
        for name, value, deviation in zip(names, values, fit.deviations, strict=True)
    ]


def _with(
    spec: AcceleratorSpec,
    gemm: GemmEfficiency | None = None,
    attention: AttentionEfficiency | None = None,
) -> AcceleratorSpec:
    own = attention or spec.attention
    return replace(spec, gemm=gemm or spec.gemm, attention=own, attention_flash2=own)


def _times(rows: Sequence[Measured]) -> Array:
    return np.array([row.time_s for row in rows])


def _attention(
    path: str, table: Table, spec: AcceleratorSpec, dtype: Dtype, launch_s: float
) -> list[Stated]:
    """Share of the peak, ramp and factors of head sizes, forward and backward."""
    passes: tuple[tuple[What, Callable[..., Array]], ...] = (
        ("attention_forward", flash_attention_forward_s),
        ("attention_backward", flash_attention_backward_s),
    )
    dims = [sorted({row.head_dim for row in table.of(what)}) for what, _ in passes]
    shared = [float(dim) for dim in dims[0] if dim in dims[1]]
    if not shared:
        message = "attention was measured forward and backward at no common head_dim"
        raise InputError.single(path, "rows", message)
    found = []
    for what, seconds in passes:
        rows = [row for row in table.of(what) if row.head_dim in shared]
        started = _with(spec, attention=replace(spec.attention, launch_s=launch_s))
        found += _one_pass(what.removeprefix("attention_"), rows, shared, started, dtype, seconds)
    at = ("accelerator", "attention")
    note = f"{LAUNCHES:g} launches of a small kernel"
    sizes = Stated(path=(*at, "head_dims"), value=tuple(shared))
    return [*found, sizes, Stated(path=(*at, "launch_us"), value=launch_s / US, note=note)]


def _one_pass(
    name: str,
    rows: Sequence[Measured],
    dims: Sequence[float],
    spec: AcceleratorSpec,
    dtype: Dtype,
    seconds: Callable[..., Array],
) -> list[Stated]:
    work = [work_of(row) for row in rows]

    def predict(values: Array) -> Array:
        fraction, ramp, *factors = values
        own = {f"{name}_fraction": min(fraction, 1.0), f"{name}_s0": ramp}
        own |= {f"{name}_head_factors": (*factors, 1.0), "head_dims": tuple(dims)}
        machine = _with(spec, attention=replace(spec.attention, **own))
        return np.concatenate([np.ravel(seconds(each, machine, dtype)) for each in work])

    start = np.array([0.4, RAMP, *[0.8] * (len(dims) - 1)])
    open_ = np.array([1.0, OFFSET_DEVIATION, *[FRACTION_DEVIATION] * (len(dims) - 1)])
    fit = ridge(predict, _times(rows), start, open_)
    at = ("accelerator", "attention")
    plain = [
        Stated(
            path=(*at, f"{name}_{key}"),
            value=min(float(fit.values[place]), most),
            deviation=float(fit.deviations[place]),
            num_points=len(rows),
        )
        for place, (key, most) in enumerate((("fraction", 1.0), ("s0", math.inf)))
    ]
    factors = (*(float(value) for value in fit.values[2:]), 1.0)
    return [*plain, Stated(path=(*at, f"{name}_head_factors"), value=factors)]

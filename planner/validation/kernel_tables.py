"""Published kernel measurements against the planner's kernel times.

The tables lie in tests/validation/kernels, whose README names their sources.
"""

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.cost.kernels import (
    CAST_HBM_FRACTION,
    flash_attention_backward_s,
    flash_attention_forward_s,
    memory_bound_s,
    product_s,
)
from planner.layers.op import ATTENTION_BLOCK, FlashAttention, Gemm
from planner.spec.cluster import AcceleratorSpec
from planner.spec.job import Precision
from planner.units import US, Array

ACCELERATORS: Mapping[str, str] = {
    "a100_sxm": "a100-sxm-80",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
}
"""Name in the tables, name in hwdb."""
DTYPES: Mapping[str, Precision] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "fp4",
}
TABLE_CAST_BYTES: Mapping[Precision, float] = {
    "bf16": 0.0,
    "fp8": 5.4,
    "fp8_block": 2.65,
    "fp4": 2.85,
}
"""Per activation of the GEMM tables, at CAST_HBM_FRACTION: medians of the fits.

One read and one write are 3, 3.03 and 2.56; the per-tensor table casts in more than one kernel.
"""
TRAINING_EDGE = 1024.0
"""Products with every edge at least this are of the sizes that training has."""
ACTIVATION_BYTES = 6.0
"""Per element of a gated activation: two reads, one write."""

Rows = dict[str, Array]
"""Columns of a table; ``seconds`` is what was measured."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Absolute error in percent, and the mean with its sign."""

    count: int
    mean: float
    median: float
    p90: float
    bias: float


def errors_of(predicted_s: Array, measured_s: Array) -> Errors:
    """Predicted over measured, minus one; one decimal."""
    error = 100.0 * (predicted_s / measured_s - 1.0)
    size = np.abs(error)
    values = (size.mean(), np.median(size), np.quantile(size, 0.9), error.mean())
    mean, median, p90, bias = (round(float(value), 1) for value in values)
    return Errors(count=len(error), mean=mean, median=median, p90=p90, bias=bias)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a compressed table as text."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def columns(rows: list[dict[str, str]], *names: str) -> Rows:
    """Columns of numbers, and the latency as seconds."""
    table = {name: np.array([float(row[name]) for row in rows]) for name in names}
    return table | {"seconds": np.array([float(row["latency_us"]) for row in rows]) * US}


def take(rows: Rows, keep: Array) -> Rows:
    """Some of the rows."""
    return {name: values[keep] for name, values in rows.items()}


def gemm_rows(folder: Path, table: str, dtype: str) -> Rows:
    """Products of one accelerator and precision."""
    rows = read_rows(folder / f"gemm_{table}.csv.gz")
    return columns([row for row in rows if row["dtype"] == dtype], "m", "n", "k")


def is_training_size(rows: Rows) -> Array:
    """Products whose edges are all at least TRAINING_EDGE."""
    return np.minimum(np.minimum(rows["m"], rows["n"]), rows["k"]) >= TRAINING_EDGE


def shipped_gemm_s(rows: Rows, accelerator: AcceleratorSpec, precision: Precision) -> Array:
    """The planner's time of the tables' products, with the cast they include."""
    gemm = Gemm(m=rows["m"], n=rows["n"], k=rows["k"])
    bandwidth = CAST_HBM_FRACTION * accelerator.hbm_bytes_per_s
    cast_s = TABLE_CAST_BYTES[precision] * rows["m"] * rows["k"] / bandwidth
    return product_s(gemm, accelerator, precision) + cast_s


def attention_rows(folder: Path, table: str) -> dict[tuple[str, int], Rows]:
    """Causal forward attention by kernel and head size."""
    groups: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in read_rows(folder / f"attention_forward_{table}.csv.gz"):
        groups.setdefault((row["kernel"], int(row["head_dim"])), []).append(row)
    names = ("batch_size", "seq_len", "num_heads", "kv_heads", "head_dim")
    return {key: columns(rows, *names) for key, rows in sorted(groups.items())}


def training_attention_rows(folder: Path) -> list[dict[str, str]]:
    """Forward and backward attention of training kernels, as text."""
    return read_rows(folder / "attention_training.csv.gz")


def shipped_training_attention_s(row: Mapping[str, str], accelerator: AcceleratorSpec) -> float:
    """The planner's time of one row of the training table."""
    batch, seq_len, heads, size_qk, size_v, window = (
        float(row[name])
        for name in ("batch", "seq_len", "heads", "head_dim_qk", "head_dim_v", "window")
    )
    work = FlashAttention(
        kernel="fused",
        square_flops=np.array([2.0 * batch * heads * seq_len**2 * (size_qk + size_v)]),
        causal_fraction=0.5 if row["causal"] == "1" else 1.0,
        seq_len=seq_len,
        head_dim=(size_qk + size_v) / 2.0,
        num_tiles=batch * heads * seq_len / ATTENTION_BLOCK,
        windowed_share=1.0 if window else 0.0,
        window=window,
    )
    one_pass = flash_attention_forward_s if row["pass"] == "fwd" else flash_attention_backward_s
    return float(one_pass(work, accelerator)[0])


def expert_rows(folder: Path, table: str, dtype: str) -> dict[str, Rows]:
    """Forward of all experts of one device (no expert parallelism), by kernel."""
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size")
    groups: dict[str, list[dict[str, str]]] = {}
    for row in read_rows(folder / f"moe_forward_{table}.csv.gz"):
        gated = "nongated" not in row["kernel_source"]
        if row["moe_dtype"] == dtype and row["moe_ep_size"] == "1" and gated:
            groups.setdefault(row["kernel_source"], []).append(row)
    return {kernel: columns(rows, *names) for kernel, rows in sorted(groups.items())}


def fastest(groups: Mapping[str, Rows]) -> Rows:
    """For every shape that kernels share, the fastest of them."""
    best: dict[tuple[float, ...], float] = {}
    names = [name for name in next(iter(groups.values())) if name != "seconds"]
    for rows in groups.values():
        for *shape, seconds in zip(*(rows[name] for name in (*names, "seconds")), strict=True):
            key = tuple(float(size) for size in shape)
            best[key] = min(best.get(key, np.inf), float(seconds))
    shapes = np.array(list(best))
    return {name: shapes[:, i] for i, name in enumerate(names)} | {
        "seconds": np.array(list(best.values()))
    }


def shipped_experts_s(rows: Rows, accelerator: AcceleratorSpec, precision: Precision) -> Array:
    """The planner's time of gated experts: up and gate, activation, down."""
    pairs = rows["num_tokens"] * rows["topk"]
    experts = np.minimum(rows["num_experts"], pairs)
    width, hidden = rows["inter_size"] / rows["moe_tp_size"], rows["hidden_size"]
    up = Gemm(m=pairs / experts, n=2.0 * width, k=hidden, count=experts)
    down = Gemm(m=pairs / experts, n=hidden, k=width, count=experts)
    activation_s = memory_bound_s(ACTIVATION_BYTES * pairs * width, accelerator)
    products_s = product_s(up, accelerator, precision) + product_s(down, accelerator, precision)
    return products_s + activation_s


def shipped_errors(folder: Path) -> dict[str, dict[str, object]]:
    """Errors of the constants hwdb ships, by part, table and class of kernel."""
    return {}

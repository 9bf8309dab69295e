"""Published kernel measurements against the planner's kernel times.

The tables lie in tests/validation/kernels, whose README names their sources.
"""

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.catalog.clusters import load_cluster
from planner.cost.attention_kernels import flash_attention_backward_s, flash_attention_forward_s
from planner.cost.kernels import (
    CAST_HBM_FRACTION,
    element_wise_s,
    gemm_weight_gradient_s,
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
TRAINING_ACCELERATORS: Mapping[str, str] = {
    "a100_pcie": "a100-pcie-80",
    "b200_sxm": "b200-sxm-750w",
}
"""Of the tables measured inside a training framework."""
MIN_BLOCKS = 512.0
"""Blocks of 128 queries and one head; smaller grids waited for their launch in some tables."""
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


def take(rows: Rows, keep: NDArray[np.bool_]) -> Rows:
    """Some of the rows."""
    return {name: values[keep] for name, values in rows.items()}


def gemm_rows(folder: Path, table: str, dtype: str) -> Rows:
    """Products of one accelerator and precision."""
    rows = read_rows(folder / f"gemm_{table}.csv.gz")
    return columns([row for row in rows if row["dtype"] == dtype], "m", "n", "k")


def is_training_size(rows: Rows) -> NDArray[np.bool_]:
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
    """The planner's time of one row of the training table, which was measured in bursts."""
    in_bursts = replace(accelerator.attention, sustained_fraction=1.0)
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
    return float(one_pass(work, replace(accelerator, attention=in_bursts))[0])


def training_product_rows(folder: Path, table: str, one_pass: str, *, grouped: bool) -> Rows:
    """Products of a training framework, as the planner names their sides (k: summed over)."""
    rows = [
        row
        for row in read_rows(folder / "gemm_training.csv.gz")
        if row["accelerator"] == table
        and row["pass"] == one_pass
        and (row["groups"] != "0") == grouped
    ]
    is_last = one_pass == "weight_gradient"
    found = columns(rows, "groups", "m", "n", "k", *(["gradient_bytes"] if is_last else []))
    if grouped and one_pass == "input_gradient":
        found["n"], found["k"] = found["k"], found["n"]
    if grouped and is_last:
        found["m"], found["n"], found["k"] = found["n"], found["k"], found["m"]
    return found


def shipped_training_product_s(
    rows: Rows, accelerator: AcceleratorSpec, *, is_weight_gradient: bool
) -> Array:
    """The planner's time of them; weight gradients are added to kept ones, read and written."""
    count = np.maximum(rows["groups"], 1.0)
    if not is_weight_gradient:
        gemm = Gemm(m=rows["m"], n=rows["n"], k=rows["k"], count=count)
        return product_s(gemm, accelerator, "bf16")
    seconds = np.zeros(len(count))
    for kept_bytes in np.unique(rows["gradient_bytes"]):
        mine = rows["gradient_bytes"] == kept_bytes
        sides = {side: rows[other][mine] for side, other in (("m", "k"), ("n", "n"), ("k", "m"))}
        gemm = Gemm(count=count[mine], **sides)
        seconds[mine] = gemm_weight_gradient_s(gemm, accelerator, "bf16", 2.0 * kept_bytes)
    return seconds


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
    activation_s = element_wise_s(ACTIVATION_BYTES * pairs * width, accelerator)
    products_s = product_s(up, accelerator, precision) + product_s(down, accelerator, precision)
    return products_s + activation_s


Scores = dict[str, Errors]


def scored_products(folder: Path) -> Scores:
    """Shipped constants on the tables' products of training sizes, their mean bias taken out.

    Short bursts run faster than a device under load, whose rate is shipped: see ``bias``.
    """
    scores = {}
    for table, name in ACCELERATORS.items():
        accelerator = load_cluster(f"1x{name}").accelerator
        for dtype, precision in DTYPES.items():
            rows = gemm_rows(folder, table, dtype)
            if len(rows["m"]):
                large = take(rows, is_training_size(rows))
                predicted = shipped_gemm_s(large, accelerator, precision)
                bias = float(np.mean(predicted / large["seconds"]))
                level = errors_of(predicted / bias, large["seconds"])
                scores[f"{table} {precision}"] = replace(level, bias=round(100.0 * (bias - 1.0), 1))
    return scores


def scored_training_products(folder: Path) -> Scores:
    """Shipped constants on a training framework's dense and grouped products."""
    scores = {}
    for table, name in TRAINING_ACCELERATORS.items():
        accelerator = load_cluster(f"1x{name}").accelerator
        for grouped in (False, True):
            for one_pass in ("forward", "input_gradient", "weight_gradient"):
                rows = training_product_rows(folder, table, one_pass, grouped=grouped)
                if not len(rows["m"]):
                    continue
                predicted = shipped_training_product_s(
                    rows, accelerator, is_weight_gradient=one_pass == "weight_gradient"
                )
                kind = "grouped" if grouped else "dense"
                scores[f"{table} {kind} {one_pass}"] = errors_of(predicted, rows["seconds"])
    return scores


def _attention_class(row: Mapping[str, str]) -> str:
    mask = f"window {row['window']}" if row["window"] != "0" else "causal"
    if row["causal"] == "0":
        mask = "full"
    size = f"{row['head_dim_qk']}/{row['head_dim_v']}"
    return f"{row['accelerator']} {row['pass']} {size} {mask}"


def scored_training_attention(folder: Path) -> Scores:
    """Shipped constants on training attention, by accelerator, pass, head size and mask.

    Left out: deterministic backward passes where others exist, and grids of so few blocks that
    launching them took longer.
    """
    names = {**ACCELERATORS, **TRAINING_ACCELERATORS}
    specs = {table: load_cluster(f"1x{name}").accelerator for table, name in names.items()}
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in training_attention_rows(folder):
        blocks = float(row["batch"]) * float(row["heads"]) * float(row["seq_len"]) / ATTENTION_BLOCK
        deterministic = row["deterministic"] == "1" and not row["accelerator"].startswith("h200")
        if deterministic or blocks < MIN_BLOCKS:
            continue
        predicted_s = shipped_training_attention_s(row, specs[row["accelerator"]])
        groups.setdefault(_attention_class(row), []).append(
            (predicted_s, float(row["latency_us"]) * US)
        )
    return {key: errors_of(*np.array(pairs).T) for key, pairs in sorted(groups.items())}


def scored_experts(folder: Path) -> Scores:
    """Shipped constants on the fastest kernel of whole expert layers, forward, bf16."""
    scores = {}
    for table, name in ACCELERATORS.items():
        rows = fastest(expert_rows(folder, table, "bfloat16"))
        predicted = shipped_experts_s(rows, load_cluster(f"1x{name}").accelerator, "bf16")
        scores[table] = errors_of(predicted, rows["seconds"])
    return scores


def shipped_errors(folder: Path) -> dict[str, Scores]:
    """Errors of the constants that hwdb ships, by part."""
    return {
        "products": scored_products(folder),
        "training_products": scored_training_products(folder),
        "training_attention": scored_training_attention(folder),
        "experts": scored_experts(folder),
    }

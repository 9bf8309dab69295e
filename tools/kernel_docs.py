"""Tables of published and priced kernels, from the results file of tools/kernel_fits.py."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from planner.catalog.clusters import load_cluster
from planner.cost.kernels import HARD_WAVES, gemm_s, peak_flops_per_s
from planner.layers.op import Gemm
from tools.kernel_tables import ACCELERATORS

EDGES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
WIDE = 8192
SHOWN = ("a100-sxm-80", "h100-sxm", "gb200")
MIN_ATTENTION_ROWS = 200
"""Forward kernels with fewer rows are in the file only."""


def _results(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def _table(header: str, rows: Iterable[Iterable[object]]) -> str:
    lines = [header, "|---" * header.count(" | ") + "|---|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _errors(errors: Mapping[str, float]) -> str:
    return " / ".join(f"{errors[key]:.1f}" for key in ("mean", "median", "p90"))


def products_table(path: Path) -> str:
    """Errors left out by form, and of the shipped constants, by accelerator and precision."""
    results = _results(path)
    rows = []
    for table, precisions in results["gemm"].items():
        gemm = load_cluster(f"1x{ACCELERATORS[table]}").accelerator.gemm
        for precision, forms in precisions.items():
            tiled = precision == "bf16" and gemm.wave_weight >= HARD_WAVES
            label = "tiles, long" if tiled else "smooth, long"
            label = label if precision == "bf16" else "smooth, long, cast"
            form, shipped = forms[label], results["shipped"]["products"][f"{table} {precision}"]
            rows.append(
                (
                    ACCELERATORS[table],
                    precision,
                    label.split(",")[0],
                    f"{forms['constant']['training_sizes']['mean']:.1f}",
                    _errors(form["training_sizes"]),
                    _errors(form["all"]),
                    form["rate_under_load"],
                    f"{shipped['mean']:.1f}",
                    f"{shipped['bias']:+.1f}",
                )
            )
    header = (
        "| accelerator | precision | form | constant rate | left out, edges of 1024 and more | "
        "left out, all | rate of long products | shipped, level taken out | its level |"
    )
    return _table(header, rows)


def attention_table(path: Path) -> str:
    """Forward kernels: constants and errors left out."""
    rows = []
    for table, kernels in _results(path)["attention"].items():
        for kernel, sizes in kernels.items():
            for head_dim, fit in sizes.items():
                values = fit["constants"]
                if fit["all"]["count"] >= MIN_ATTENTION_ROWS:
                    rows.append(
                        (
                            ACCELERATORS[table],
                            f"`{kernel}`",
                            head_dim,
                            f"{values['fraction']:.2f}",
                            f"{values['s0']:.0f}",
                            f"{values['tiles0']:.0f}",
                            f"{values['launch_us']:.1f}",
                            _errors(fit["all"]),
                        )
                    )
    header = "| accelerator | kernel | head size | e | s0 | u0 | launch, µs | error left out |"
    return _table(header, rows)


def _shipped_table(path: Path, part: str, header: str) -> str:
    scores = _results(path)["shipped"][part]
    return _table(
        header,
        (
            (key.replace("_", " "), errors["count"], _errors(errors), f"{errors['bias']:+.1f}")
            for key, errors in scores.items()
        ),
    )


def training_products_table(path: Path) -> str:
    """Shipped constants on products inside a training framework."""
    header = "| products | rows | mean / median / p90 | bias |"
    return _shipped_table(path, "training_products", header)


def training_attention_table(path: Path) -> str:
    """Shipped constants on training attention."""
    header = "| attention | rows | mean / median / p90 | bias |"
    return _shipped_table(path, "training_attention", header)


def experts_table(path: Path) -> str:
    """Shipped constants on whole expert layers of inference libraries."""
    return _shipped_table(path, "experts", "| accelerator | rows | mean / median / p90 | bias |")


def efficiency_table() -> str:
    """Share of dense bf16 peak of square and of thin products, as priced."""
    rows = []
    for name in SHOWN:
        accelerator = load_cluster(f"1x{name}").accelerator
        peak = peak_flops_per_s(accelerator, "bf16")
        for label, thin in (("all edges", False), (f"m; n = k = {WIDE}", True)):
            edge = np.array(EDGES, dtype=float)
            wide = np.full_like(edge, WIDE) if thin else edge
            gemm = Gemm(m=edge, n=wide, k=wide)
            share = gemm.flops / (peak * gemm_s(gemm, accelerator, "bf16"))
            rows.append((name, label, *(f"{value:.2f}" for value in share)))
    header = "| accelerator | varied | " + " | ".join(map(str, EDGES)) + " |"
    return _table(header, rows)


def every_table(path: Path) -> str:
    """All of them, one below the other."""
    tables = (
        products_table,
        training_products_table,
        experts_table,
        training_attention_table,
        attention_table,
    )
    return "\n\n".join([efficiency_table(), *(made(path) for made in tables)])

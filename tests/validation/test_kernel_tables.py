"""Shipped kernel constants against published measurements: as stated, and within limits."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from planner.catalog.clusters import load_cluster
from planner.cost.kernels import element_wise_s, product_s
from planner.layers.op import Gemm
from planner.spec.job import Precision
from tools.kernel_tables import Errors, Scores, read_rows, shipped_errors

TABLES = Path(__file__).parent / "kernels"
LIMITS = {"products": 18.0, "training_products": 18.0, "training_attention": 10.0, "experts": 46.0}
"""Mean absolute error in percent, of the worst class of a part."""
MEAN_LIMITS = {
    "products": 9.0,
    "training_products": 10.0,
    "training_attention": 5.0,
    "experts": 31.0,
}
"""The same, mean over the classes."""
OPTIMISTIC = {"gb200 fwd 64/64 window 128", "gb300 fwd 64/64 window 128"}
"""Windows on Blackwell, which docs/how-it-works/kernels.md says are priced too fast."""
TOKENS = 15872.0
WEIGHTS = ((4096.0, 12288.0), (4096.0, 4096.0), (4096.0, 16384.0), (16384.0, 4096.0))
LAYER_MS: dict[Precision, float] = {"bf16": 13.102, "fp8": 6.812, "mxfp8": 7.161, "fp4": 3.764}
"""Products of one layer on B300, cast beforehand, forward and both backward products.

Source: Transformer Engine documentation, "GEMM profiling tutorial", 5B model on B300.
"""


@pytest.fixture(scope="module")
def scores() -> dict[str, Scores]:
    return shipped_errors(TABLES)


def test_the_results_file_states_the_errors_of_the_shipped_constants(
    scores: dict[str, Scores],
) -> None:
    stated = json.loads((TABLES / "fits.json").read_text(encoding="utf-8"))["shipped"]
    for part, classes in scores.items():
        assert set(stated[part]) == set(classes)
        for key, errors in classes.items():
            assert asdict(errors) == pytest.approx(stated[part][key], abs=0.11), (
                f"{key}: run `python -m tools.kernel_fits --score` and `python -m tools.docs`"
            )


@pytest.mark.parametrize("part", LIMITS)
def test_shipped_constants_stay_within_the_limits(part: str, scores: dict[str, Scores]) -> None:
    judged: dict[str, Errors] = {
        key: errors for key, errors in scores[part].items() if key not in OPTIMISTIC
    }
    assert judged
    worst = max(judged, key=lambda key: judged[key].mean)
    assert judged[worst].mean <= LIMITS[part], worst
    assert np.mean([errors.mean for errors in judged.values()]) <= MEAN_LIMITS[part]


@pytest.mark.parametrize("precision", LAYER_MS)
def test_products_of_a_layer_agree_with_transformer_engines_tutorial(precision: Precision) -> None:
    accelerator = load_cluster("1xb300-sxm").accelerator
    shapes = [
        sides for n, k in WEIGHTS for sides in ((TOKENS, n, k), (TOKENS, k, n), (k, n, TOKENS))
    ]
    m, n, k = (np.array(side) for side in zip(*shapes, strict=True))
    seconds = product_s(Gemm(m=m, n=n, k=k), accelerator, precision).sum()
    assert 1e3 * seconds == pytest.approx(LAYER_MS[precision], rel=0.07)


@pytest.mark.parametrize("name", ["h200-sxm", "gb200", "gb300"])
def test_fused_norms_are_launch_and_traffic(name: str) -> None:
    accelerator = load_cluster(f"1x{name}").accelerator
    table = name.replace("-", "_")
    rows = [
        row
        for row in read_rows(TABLES / "norms.csv.gz")
        if (row["accelerator"], row["kernel"], row["pass"]) == (table, "cudnn", "fwd")
    ]
    num_bytes = np.array([4.0 * float(row["rows"]) * float(row["width"]) for row in rows])
    measured_us = np.array([float(row["latency_us"]) for row in rows])
    error = 1e6 * element_wise_s(num_bytes, accelerator) / measured_us - 1.0
    assert np.abs(error).mean() < 0.2

"""A small result of a sweep, made by hand: what is best changes along the length."""

import json
from pathlib import Path
from typing import Any

from planner.sweep.results import MARK, polars

AXES = {
    "model": ["m"],
    "cluster": ["small", "large"],
    "seq_len": [1, 2, 4],
    "asked_framework": ["a"],
}
USD = {("small", 1): 5.0, ("small", 2): 9.0, ("small", 4): 20.0}
USD |= {("large", 1): 10.0, ("large", 2): 6.0, ("large", 4): 5.0}


def write_results(path: Path) -> None:
    """Six plans, and a cell without one."""
    rows: list[dict[str, Any]] = [
        {
            "status": "plan",
            "model": "m",
            "cluster": cluster,
            "seq_len": length,
            "asked_framework": "a",
            "framework": "a",
            "layout": "dp 8",
            "gpus": 8 if cluster == "small" else 16,
            "days": usd * (4 if cluster == "small" else 1),
            "tokens_per_s": 1000.0 / usd,
            "cost_usd_per_billion_tokens": usd,
        }
        for (cluster, length), usd in USD.items()
    ]
    rows.append(dict.fromkeys(rows[0]) | {"status": "nothing", "cluster": "large", "seq_len": 4})
    frame = polars("sweep").DataFrame(rows)
    frame.write_parquet(path, metadata={MARK: json.dumps(AXES)})

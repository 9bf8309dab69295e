"""Small GPTs trained for real under every layout, beside what the planner says of each.

``python benchmarks/reality.py`` measures this machine (``planner calibrate --measure`` under as
many processes as train), prices every layout of ``tests/oracles/reality_cases.py`` on it, trains,
and prints step times with their spread, bytes on the wire and bytes held, planned and measured,
and the order of the layouts. It needs what the oracle tests need (CONTRIBUTING.md).

``--cluster FILE``: the machine as measured before. ``--ranks 4``: on four. ``--only "NAME;NAME"``:
these layouts alone. ``--layers``, ``--hidden``, ``--seq-len``, ``--vocab``: a larger model, for
accelerators; what torch finds is used, a rank each.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "oracles"))

from reality_cases import (  # noqa: E402 - beside the tests that hold the same
    CASES,
    ONE_CORE,
    REPLICATED,
    SIZES,
    Case,
    Figures,
    calibrated,
    launch_settings,
    measured,
    model_text,
    plan_of,
    planned,
    train,
)

ON_FOUR = ("DDP", "FSDP2, ZeRO 3", "DeepSpeed ZeRO 2", "DeepSpeed ZeRO 3", "1F1B")
APART = 1.1
"""Planned times this far apart have an order."""
LIMIT_S = 3600.0


def error(ours: Figures, real: Figures) -> float:
    return ours.step_s / real.step_s - 1.0


def bytes_said(ours: Mapping[str, int], real: Mapping[str, int]) -> str:
    if ours == real:
        return ", ".join(f"{kind} {size / 1e6:.3f}" for kind, size in sorted(ours.items()))
    kinds = sorted({*ours, *real})
    return ", ".join(
        f"{kind} {real.get(kind, 0) / 1e6:.3f} (planned {ours.get(kind, 0) / 1e6:.3f})"
        for kind in kinds
    )


def print_times(found: Mapping[str, tuple[Figures, Figures]]) -> None:
    print("\n| layout | step ms, fastest | median | slowest | planned ms | error |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, (ours, real) in found.items():
        spread = (real.step_s, statistics.median(real.spread), max(real.spread))
        seen = " | ".join(f"{1e3 * each:.0f}" for each in spread)
        print(f"| {name} | {seen} | {1e3 * ours.step_s:.0f} | {error(ours, real):+.0%} |")
    errors = [abs(error(*pair)) for pair in found.values()]
    print(f"\nmean error {statistics.mean(errors):.0%}, largest {max(errors):.0%}")
    pairs = [
        (one, other)
        for one, other in combinations(found.values(), 2)
        if not 1 / APART < one[0].step_s / other[0].step_s < APART
    ]
    kept = sum(
        (one[0].step_s < other[0].step_s) == (one[1].step_s < other[1].step_s)
        for one, other in pairs
    )
    print(f"order: {kept} of {len(pairs)} pairs whose planned times are {APART - 1:.0%} apart")


def print_bytes(found: Mapping[str, tuple[Figures, Figures]]) -> None:
    print("\n| layout | MB on the wire | MB held between steps | MB behind a forward |")
    print("|---|---|---:|---:|")
    for name, (ours, real) in found.items():
        held = [
            f"{there / 1e6:.3f}" + ("" if here == there else f" (planned {here / 1e6:.3f})")
            for here, there in (
                (ours.lasting_bytes, real.lasting_bytes),
                (ours.forward_bytes, real.forward_bytes),
            )
        ]
        print(f"| {name} | {bytes_said(ours.sent_bytes, real.sent_bytes)} | {' | '.join(held)} |")


def check(
    cases: Mapping[str, Case], sizes: Mapping[str, int], cluster: Path, folder: Path, steps: int
) -> dict[str, tuple[Figures, Figures]]:
    """Planned and measured, by layout."""
    model, length = folder / "model.yaml", sizes["seq_len"]
    model.write_text(model_text(sizes))
    ranks = train(cases, folder, steps=steps, sizes=sizes, limit_s=LIMIT_S)
    settings = (*ONE_CORE, *launch_settings(cluster))
    whole = plan_of(REPLICATED, model, cluster, settings, length)
    return {
        name: (
            planned(case, plan_of(case, model, cluster, settings, length), whole),
            measured(case, ranks[name], sizes),
        )
        for name, case in cases.items()
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", type=Path)
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 4))
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=10)
    for name, key in (("layers", "num_layers"), ("hidden", "hidden_size"), ("vocab", "vocab_size")):
        parser.add_argument(f"--{name}", type=int, default=SIZES[key])
    parser.add_argument("--seq-len", type=int, default=SIZES["seq_len"])
    return parser.parse_args()


def chosen(given: argparse.Namespace) -> dict[str, Case]:
    names: Iterable[str] = filter(None, (name.strip() for name in given.only.split(";")))
    names = list(names) or (list(CASES) if given.ranks == 2 else list(ON_FOUR))
    return {name: replace(CASES[name], ranks=given.ranks) for name in names}


def main() -> None:
    """Measure, plan, train, print."""
    given = options()
    sizes = SIZES | {
        "num_layers": given.layers,
        "hidden_size": given.hidden,
        "ffn_size": 3 * given.hidden,
        "vocab_size": given.vocab,
        "seq_len": given.seq_len,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = given.cluster or calibrated(given.ranks, folder)
        found = check(chosen(given), sizes, cluster, folder, given.steps)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {given.ranks} ranks"
    )
    print(", ".join(f"{key} {value}" for key, value in sizes.items()))
    print_times(found)
    print_bytes(found)


if __name__ == "__main__":
    main()

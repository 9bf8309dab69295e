"""Whole-process times of the main job, start-up included, and growth with the cluster.

Run: python benchmarks/search.py
"""

import json
import subprocess
import sys
import time

RUNS = 3


def timed(*arguments: str) -> tuple[float, str]:
    """Median wall seconds over RUNS runs, and the last output."""
    walls = []
    for _ in range(RUNS):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "planner.cli.app", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        walls.append(time.perf_counter() - started)
    return sorted(walls)[RUNS // 2], done.stdout


def main() -> None:
    wall, _ = timed("--help")
    print(f"planner --help: {wall:.2f} s")
    searches = {}
    for nodes in (8, 128, 2048, 8192):
        cluster = f"{nodes}xdgx-a100-640"
        wall, output = timed("plan", "gpt3-175b", cluster, "--format", "json")
        search = json.loads(output)["search"]
        searches[nodes] = search["seconds"]
        print(
            f"plan gpt3-175b {cluster} ({nodes * 8:,} GPUs): {wall:.2f} s wall, search "
            f"{search['seconds']:.2f} s, {search['configurations']:,} configurations, "
            f"proved {search['proved_optimal']}"
        )
    print(f"search time, 65,536 over 64 GPUs: {searches[8192] / searches[8]:.1f} x")


if __name__ == "__main__":
    main()

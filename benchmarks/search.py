"""Whole-process times of searches, start-up included, with peak memory and proof.

Run: python benchmarks/search.py [--quick]
"""

import json
import platform
import subprocess
import sys
import time

RUNS = 3
QUESTIONS = (
    ("5,128-GPU question of the nearest peer (80 s there)",
     ("plan", "mt-nlg-530b", "641xdgx-a100-640", "--global-batch", "2520", "--seq-len", "2048")),
    ("1,024 GPUs", ("plan", "gpt3-175b", "128xdgx-a100-640", "--global-batch", "2048")),
    ("16,384 GPUs", ("plan", "llama3.1-405b", "2048xdgx-h100")),
    ("1,048,576 GPUs", ("plan", "llama3.1-405b", "131072xdgx-h100")),
)  # fmt: skip
MEASURED = """
import resource, runpy, sys
try:
    runpy.run_module("planner.cli.app", run_name="__main__")
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{peak:.0f} MiB", file=sys.stderr)
"""


def timed(*arguments: str) -> tuple[float, str, str]:
    """Median wall seconds over RUNS runs, the last output and its peak memory."""
    walls = []
    for _ in range(RUNS):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        walls.append(time.perf_counter() - started)
    return sorted(walls)[RUNS // 2], done.stdout, done.stderr.strip().splitlines()[-1]


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    wall, _, _ = timed("--help")
    print(f"planner --help: {wall:.2f} s")
    for title, arguments in QUESTIONS[: 2 if "--quick" in sys.argv else None]:
        wall, output, peak = timed(*arguments, "--format", "json")
        search = json.loads(output)["search"]
        print(
            f"{title}: planner {' '.join(arguments)}\n  {wall:.2f} s wall, search "
            f"{search['seconds']:.2f} s, {peak}, {search['configurations']:,} configurations, "
            f"{search['priced']:,} priced, {search['stage_problems_solved']:,} stage problems, "
            f"proved {search['proved_optimal']}"
        )


if __name__ == "__main__":
    main()

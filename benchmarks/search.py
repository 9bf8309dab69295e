"""Whole-process times of searches, start-up included, with peak memory and proof.

The search traces the frontier over every number of GPUs too; how long the best plans alone take, as
other planners answer, is measured beside it, in a process that has imported everything.

Run: python benchmarks/search.py [--quick]
"""

import json
import os
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


BEST_ALONE = """
import sys
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.search.search import search
model, cluster, *pairs = sys.argv[2:]
options = dict(zip(pairs[::2], pairs[1::2]))
contexts = resolve(Query.of(
    model, cluster, framework="megatron", precision="bf16",
    global_batch=options.get("--global-batch"), seq_len=options.get("--seq-len"),
)).contexts
for context in contexts:
    found = [search(context, with_frontier=False) for _ in range(3)]
    seconds = sorted(result.seconds for result in found)[1]
    print(f"{seconds:.2f} s, proved {found[0].proved_optimal}")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MEASURED, *arguments]
    environment = {**os.environ, "PLANNER_CACHE": "off"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


def timed(*arguments: str) -> tuple[float, str, str]:
    """Median wall seconds over RUNS runs, the last output and its peak memory."""
    walls = []
    for _ in range(RUNS):
        started = time.perf_counter()
        done = run(*arguments)
        walls.append(time.perf_counter() - started)
    return sorted(walls)[RUNS // 2], done.stdout, done.stderr.strip().splitlines()[-1]


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    wall, _, _ = timed("--help")
    print(f"planner --help: {wall:.2f} s")
    for title, arguments in QUESTIONS[: 2 if "--quick" in sys.argv else None]:
        wall, _, peak = timed(*arguments)
        search = json.loads(run(*arguments, "--format", "json").stdout)["search"]
        print(
            f"{title}: planner {' '.join(arguments)}\n  {wall:.2f} s wall, search "
            f"{search['seconds']:.2f} s, {peak}, {search['configurations']:,} configurations, "
            f"{search['priced']:,} priced, {search['stage_problems_solved']:,} stage problems, "
            f"proved {search['proved_optimal']}"
        )
        alone = [sys.executable, "-c", BEST_ALONE, *arguments]
        done = subprocess.run(alone, capture_output=True, text=True, check=True)
        print(f"  the five best plans alone: search {done.stdout.strip()}")


if __name__ == "__main__":
    main()

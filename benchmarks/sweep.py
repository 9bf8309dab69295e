"""Cells of a sweep per second, on 1 and 2 workers and on a local Ray of which a worker is killed.

All must write the same file. The cells are small: a layout is fixed but for its micro-batch.

Run: python benchmarks/sweep.py [--cells 1000] [--only 1|2|ray]...
"""

import argparse
import hashlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLUSTERS = ("1xa100-80", "1xdgx-a100-640", "1xdgx-h100", "2xdgx-h100", "1xrtx4090")
LENGTHS, FRAMEWORKS = ("1k", "2k"), ("megatron", "accelerate")
PER_BATCH = len(CLUSTERS) * len(LENGTHS) * len(FRAMEWORKS)
TEXT = """
model: gpt3-xl
cluster: [{clusters}]
framework: [{frameworks}]
seq-len: [{lengths}]
global-batch: [{batches}]
fix: [[tp=1, pp=1, cp=1, recompute=none]]
forbid: offload
tokens: 100B
"""
EXECUTORS = {
    "1": ("--workers", "1"),
    "2": ("--workers", "2"),
    "ray": ("--ray", "local"),
}


def sweep_of(cells: int) -> str:
    batches = (str(64 * number) for number in range(1, -(-cells // PER_BATCH) + 1))
    lists = zip(
        ("clusters", "frameworks", "lengths", "batches"),
        (CLUSTERS, FRAMEWORKS, LENGTHS, batches),
        strict=True,
    )
    return TEXT.format(**{name: ", ".join(values) for name, values in lists})


def kill_one(session: int) -> bool:
    """Kill a Ray worker at work, of those that this benchmark started."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = (path / "cmdline").read_text().startswith("ray::answer")
            if is_worker and os.getsid(int(path.name)) == session:
                os.kill(int(path.name), signal.SIGKILL)
                return True
        except OSError:
            continue
    return False


def run(name: str, folder: Path) -> tuple[float, str, int]:
    """Seconds, the hash of the results, and workers killed."""
    out = folder / f"{name}.jsonl"
    words = ("sweep", str(folder / "sweep.yaml"), "-o", str(out), *EXECUTORS[name])
    started, killed = time.monotonic(), 0
    environment = {**os.environ, "PLANNER_CACHE": "off", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "planner.cli.app", *words]
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        while process.poll() is None:
            time.sleep(0.2)
            partial = out.with_suffix(".partial")
            done = len(partial.read_text().splitlines()) if partial.exists() else 0
            if name == "ray" and not killed and done >= 20:
                killed += kill_one(process.pid)
    if process.returncode:
        raise SystemExit(f"{name}: exit code {process.returncode}")
    return time.monotonic() - started, hashlib.sha256(out.read_bytes()).hexdigest(), killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--only", action="append", choices=EXECUTORS)
    given = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    hashes = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sweep.yaml").write_text(sweep_of(given.cells))
        cells = PER_BATCH * -(-given.cells // PER_BATCH)
        for executor in given.only or EXECUTORS:
            seconds, found, killed = run(executor, folder)
            hashes.add(found)
            ended = f", {killed} worker killed" if killed else ""
            rate = f"{cells / seconds:.2f} cells/s"
            print(f"{executor}: {cells} cells in {seconds:.0f} s, {rate}{ended}")
    print("the files are the same" if len(hashes) == 1 else "THE FILES DIFFER")


if __name__ == "__main__":
    main()

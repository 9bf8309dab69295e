"""Time and memory of the largest questions that the limits let through, each a command of its own.

``python benchmarks/largest.py [--time-limit 20] [WORD...]``: questions whose line holds the words.
Ends with 1 where a question was not answered: what was measured then is an error message.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from planner.errors import NothingFitsError

ROOT = Path(__file__).resolve().parent.parent
TIMED = {"plan", "why", "size"}
"""Commands that search, and take a time limit."""
ANSWERED = {0, NothingFitsError.exit_code}
"""Exit codes of an answer; that nothing fits is one, found by the same search."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    print(f"{'seconds':>8} {'CPU s':>7} {'MiB':>7} {'exit':>4}  planner ...")
    num_unanswered = 0
    with tempfile.TemporaryDirectory() as folder:
        for line in questions(Path(folder)):
            if all(word in line for word in options.words):
                command, *_ = line.split()
                limit = f" --time-limit {options.time_limit:g}" if command in TIMED else ""
                measures, code, said = measured(f"{line}{limit}")
                print(*measures, line.replace(f"{folder}/", ""), flush=True)
                if code not in ANSWERED:
                    num_unanswered += 1
                    print(f"  not answered: {said.strip()[:400]}", flush=True)
    if num_unanswered:
        sys.exit(f"{num_unanswered} questions were not answered")


def questions(folder: Path) -> Iterator[str]:
    """Deep and wide models, large clusters, free policies, long lines of sizes.

    Two have more shapes than a search takes, without what is fixed in them.
    """
    deep = varied(folder / "deep.yaml", "llama3-8b", num_layers=1000)
    mixture = varied(folder / "deep-mixture.yaml", "deepseek-v3", num_layers=1000)
    small = varied(
        folder / "deep-small-mixture.yaml",
        "deepseek-v3",
        num_layers=1000,
        hidden_size=512,
        ffn_size=1024,
        vocab_size=32_000,
        moe={"num_experts": 8, "top_k": 2, "expert_ffn_size": 128, "shared_ffn_size": 128},
    )
    free = "--allow mixed-layers"
    for model in (deep, mixture, small):
        for cluster in ("1xdgx-h100", "64xdgx-h100", "2000xdgx-h100"):
            few = " --fix pp=1|2|4" if (model, cluster[:5]) == (small, "2000x") else ""
            yield f"plan {model} {cluster}{few}"
            yield f"plan {model} {cluster} {free}"
        yield f"size {model} 64xdgx-h100 --gpus 8..1024"
        yield f"size {model} dgx-h100 --max-gpus 1024"
    for cluster in ("1250000xdgx-h100", "2000xdgx-h100", "1xdgx-h100"):
        yield f"plan llama3.1-405b {cluster} --framework any"
        few = " --fix micro_batch=1|2|4" if cluster[:8] == "1250000x" else ""
        yield f"plan deepseek-v3 {cluster} --framework any --global-batch 1000000000{few}"
        yield f"plan kimi-k2 {cluster} {free} --seq-len 100000000"
    yield f"plan gpt3-175b 2000xdgx-h100 --framework any {free} --schedule all"
    yield "why deepseek-v3 512xdgx-h100 --where pp==61"
    yield "size deepseek-v3 2000xdgx-h100 --gpus 8..1024 --framework any"
    yield "size deepseek-v3 dgx-h100 --tokens 15T --deadline 30d --max-gpus 1000000"
    yield "collective all-to-all 1TB 100000xdgx-h100"
    sets = ",".join(["layernorm", "mlp", "core_attn"])
    yield f"plan deepseek-v3 256xdgx-h100 {free} --recompute-modules {sets}"


def varied(target: Path, name: str, **changes: object) -> Path:
    """A model of the catalog with other sizes, as a file."""
    model = yaml.safe_load((ROOT / "models" / f"{name}.yaml").read_text())
    for key in ("provenance", "params_expected", "params_published_b"):
        model.pop(key, None)
    for key, value in changes.items():
        model[key] = model[key] | value if isinstance(value, dict) else value
    target.write_text(yaml.safe_dump(model))
    return target


def measured(line: str) -> tuple[tuple[str, ...], int, str]:
    """Seconds, processor seconds, peak memory in MiB and exit code, which also follows; errors."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", "from planner.cli.app import main; main()", *line.split()],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, "PLANNER_CACHE": "off"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = code = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read()
    mib = usage.ru_maxrss / 1024
    return (f"{seconds:>8.1f}", f"{_cpu_s(usage):>7.1f}", f"{mib:>7.0f}", f"{code:>4} "), code, said


def _cpu_s(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()

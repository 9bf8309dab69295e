"""Summaries of what commands answer, without their words or the shape of their JSON.

After a deliberate change of the model ``PYTHONPATH=tests python tests/transcripts/transcripts.py
record`` writes `summaries.json` anew; read the difference before it is kept. The test beside it
compares.
"""

import json
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from in_process import planner

FOLDER = Path(__file__).parent
SUMMARIES = FOLDER / "summaries.json"
LAYOUT = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "zero_stage", "micro_batch", "dp_replicate")
SPLIT = ("offload", "recompute", "layers_per_stage", "recompute_layers_per_stage")
FIGURES = ("iter_time_s", "time_s", "peak_bytes", "allocated_bytes", "elapsed_s", "goodput")


def commands() -> dict[str, str]:
    """Name of each question and the command line that asks it."""
    lines = (FOLDER / "commands.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("|", 1) for line in lines if line and not line.startswith("#"))
    return {name.strip(): command.strip() for name, command in pairs}


def summary(command: str) -> dict[str, Any]:
    """Exit code, plans with their items, findings and other figures of one command."""
    run = planner(*shlex.split(command), "--format", "json")
    answer = json.loads(run.out) if run.out.lstrip().startswith("{") else {}
    nodes = list(objects(answer))
    plans = [node for node in nodes if "strategy" in node and "iter_time_s" in node]
    found = [node for node in nodes if "rule" in node and "severity" in node]
    figures = {
        key: value
        for key in FIGURES
        if not plans and (value := [node[key] for node in nodes if is_number(node.get(key))][:12])
    }
    return {
        "exit": run.code,
        "plans": [plan_summary(plan) for plan in plans[:6]],
        "items": items(plans[0]) if plans else [],
        "findings": [f"{node['rule']}:{node.get('line')}:{node['severity']}" for node in found],
        "figures": figures,
    }


def plan_summary(plan: dict[str, Any]) -> list[Any]:
    strategy = plan["strategy"]
    degrees = " ".join(f"{name}={strategy[name]}" for name in LAYOUT)
    split = " ".join(f"{name}={strategy.get(name)}" for name in SPLIT)
    memory = plan.get("memory") or {}
    return [
        f"{plan.get('framework')} {degrees} {split}",
        plan["iter_time_s"],
        memory.get("peak_bytes"),
    ]


def items(plan: dict[str, Any]) -> list[float]:
    """Exposed seconds and bytes of a plan's items, largest first."""
    times = (plan.get("time") or {}).values()
    exposed = [item["exposed_s"] for item in times if isinstance(item, dict)]
    bytes_of = (plan.get("memory") or {}).get("items") or {}
    held = [value for value in bytes_of.values() if is_number(value)]
    return sorted(filter(None, exposed + held), reverse=True)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in an answer, outer ones first."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            yield from objects(inner)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def differences(before: Any, now: Any, rel: float, path: str = "") -> Iterator[str]:
    """Where two summaries differ by more than a relative error."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before.keys() | now.keys():
            yield from differences(before.get(key), now.get(key), rel, f"{path}.{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, rel, f"{path}[{index}]")
    elif is_number(before) and is_number(now):
        if not math.isclose(before, now, rel_tol=rel):
            yield f"{path}: {before} is now {now}"
    elif before != now:
        yield f"{path}: {before} is now {now}"


def record() -> None:
    found = {name: summary(command) for name, command in commands().items()}
    lines = ",\n".join(f'"{name}": {json.dumps(value)}' for name, value in found.items())
    SUMMARIES.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def compare(names: list[str]) -> int:
    kept = json.loads(SUMMARIES.read_text(encoding="utf-8"))
    told = [
        f"{name}{line}"
        for name, command in commands().items()
        if not names or name in names
        for line in differences(kept[name], summary(command), 1e-9)
    ]
    sys.stdout.write("\n".join([*told, ""]) if told else "the same\n")
    return bool(told)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record()
    else:
        sys.exit(compare(sys.argv[2:]))

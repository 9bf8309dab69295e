"""Winners at other values of hardware figures against `planner plan` on an overridden cluster.

``python benchmarks/sensitivity.py 100`` draws so many questions, plans each twice, and prints what
disagrees and how long a question takes.
"""

import os
import random
import sys
import tempfile
import time
from pathlib import Path

from planner.answers.base import Deadline
from planner.answers.parameters import parameters
from planner.answers.plan import answer_or_raise
from planner.answers.whatif import first_plan
from planner.query.query import Query
from planner.query.resolve import Case, resolve

MODELS = ("gpt3-xl", "gpt3-6.7b", "llama3-8b", "llama2-13b", "mixtral-8x7b", "llama3.1-70b")
NODES = {"dgx-h100": 400.0, "dgx-a100-640": 200.0, "dgx-a100-320": 200.0}
"""And the rate of a port in Gbit/s."""
FACTORS = (0.25, 0.5, 0.7, 0.9, 1.1, 1.5, 2.0, 4.0)


def agrees(draw: random.Random, folder: Path) -> tuple[bool, str]:
    """Whether one drawn question has the same best plan both ways, and which it was."""
    model, node, count = draw.choice(MODELS), draw.choice(list(NODES)), draw.choice((1, 2, 4))
    asked = resolve(Query.of(model, f"{count}x{node}", global_batch=64))
    case = Case(contexts=asked.contexts, narrowing=asked.narrowing)
    hardware = [one for one in parameters(asked.contexts[0]) if one.is_hardware]
    figure, wanted = draw.choice(hardware), draw.choice(FACTORS)
    factor = figure.factor(wanted)
    value = NODES[node] * factor if figure.key == "nic_gbit_per_s" else figure.value * factor
    host = (asked.contexts[0].cluster.node.host_memory_bytes or 0.0) / 2**30
    overrides = {"host_memory_gib": host} | {figure.key: value}
    lines = "".join(f"  {key}: {each!r}\n" for key, each in overrides.items())
    path = folder / "machine.yaml"
    path.write_text(f"node: {node}\ncount: {count}\noverrides:\n{lines}", encoding="utf-8")
    stated = resolve(Query.of(model, str(path), global_batch=64))
    found = first_plan(case.with_each(lambda each: figure.scaled(each, factor)), Deadline())
    other = answer_or_raise(stated, 1).plans[0] if found else None
    same = (found and found.strategy) == (other and other.strategy)
    return same, f"{model} on {count}x{node}, {figure.key} x{factor:g}"


def main() -> None:
    os.environ["PLANNER_CACHE"] = "off"
    """Ask, and print."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    draw, started, agreed = random.Random(3), time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(number):
            same, question = agrees(draw, Path(folder))
            agreed += same
            if not same:
                print(f"differs: {question}")
    seconds = (time.perf_counter() - started) / number
    print(f"{agreed} of {number} questions agree, {seconds:.1f} s each")


if __name__ == "__main__":
    main()

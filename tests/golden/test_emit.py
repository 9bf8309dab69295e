"""What formats write for a few plans stays what it was, byte for byte.

Beside the files stands how they are started. After a deliberate change
``PYTHONPATH=tests:tests/property python tests/golden/test_emit.py`` writes them anew.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from contexts import context_of, strategy_of
from megatron_plans import CASES, draw

from planner.cost.context import Context
from planner.formats.registry import load_format
from planner.spec.strategy import Strategy

FOLDER = Path(__file__).parent / "emit"
Plan = tuple[Context, Strategy]


def planned(of: dict[str, str], layout: dict[str, Any]) -> Plan:
    """A plan on two nodes of eight."""
    given = {"model": "llama3-8b", **of}
    context = context_of(**given, cluster="2xdgx-h100", global_batch=64, seq_len=8192)
    lists = {name: tuple(value) for name, value in layout.items() if isinstance(value, list)}
    return context, strategy_of(**{"layers_per_stage": (32,), **layout, **lists})


TABLE = yaml.safe_load((FOLDER.with_suffix(".yaml")).read_text("utf-8"))
PLANS = {name: planned(**case) for name, case in TABLE.items()}
DRAWN = {
    f"{form}/{CASES[case][0]}-{seed}": (seed, case)
    for form, plans in (("megatron", ((1, 0), (6, 3), (0, 6))), ("bridge", ((1, 0), (0, 4))))
    for seed, case in plans
}
"""Seeds and places of CASES, of plans drawn from a whole space."""


def written(name: str) -> dict[str, str]:
    """The files of a plan, and how they are started."""
    plan = draw(*DRAWN[name]) if name in DRAWN else PLANS[name]
    emitted = load_format(name.partition("/")[0]).emit(*plan)
    lines = [" ".join((*emitted.own_launcher, *emitted.words))]
    lines += [f"{key}={value}" for key, value in emitted.environment.items()]
    lines += [f"${{{key}}}: {what}" for key, what in emitted.variables.items()]
    lines += [f"{each.key} | {each.value} | {each.why}" for each in emitted.decided]
    files = {f"{file.name}.golden": file.text for file in emitted.files}
    return files | {"start.txt": "\n".join(lines) + "\n"}


@pytest.mark.parametrize("name", PLANS | DRAWN)
def test_a_plan_is_written_as_before(name: str) -> None:
    golden = {path.name: path.read_text("utf-8") for path in (FOLDER / name).iterdir()}
    assert written(name) == golden


if __name__ == "__main__":
    for name in PLANS | DRAWN:
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        for file, text in written(name).items():
            (FOLDER / name / file).write_text(text, encoding="utf-8")

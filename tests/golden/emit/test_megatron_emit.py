"""Emitted files of a few plans, byte for byte.

After a change that is meant: ``python tests/golden/emit/test_megatron_emit.py`` writes them anew.
"""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "property"))
from megatron_plans import CASES, draw  # noqa: E402

from planner.formats.registry import load_format  # noqa: E402

PLANS = {"megatron": ((1, 0), (6, 3), (0, 6)), "bridge": ((1, 0), (0, 4))}
"""Seeds and numbers of CASES."""
FILES = [(form, seed, case) for form, plans in PLANS.items() for seed, case in plans]


def golden(form: str, seed: int, case: int) -> Path:
    return HERE / form / f"{CASES[case][0]}-{seed}.txt"


def emitted(form: str, seed: int, case: int) -> str:
    found = load_format(form).emit(*draw(seed, case))
    lines = [f"{name}={value}" for name, value in found.environment.items()]
    return found.files[0].text + "\n".join(["", *lines, " ".join(found.command), ""])


@pytest.mark.parametrize(("form", "seed", "case"), FILES)
def test_a_plan_is_emitted_as_before(form: str, seed: int, case: int) -> None:
    assert emitted(form, seed, case) == golden(form, seed, case).read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in FILES:
        golden(*each).write_text(emitted(*each), encoding="utf-8")

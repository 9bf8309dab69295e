"""CP-SAT, asked for anything faster than what the search found, agrees with brute force."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brute_force import CASES, Case, a_few_values, force
from depth import of_all
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.search.prove import prove
from planner.search.search import search
from tools.commands import run

ROOT = Path(__file__).resolve().parents[2]
PLANS = re.compile(r"^(?:\$ )?(planner plan [\w./-]+ [\w.@-]+(?<!yaml)(?: .*)?)$", re.MULTILINE)
# What is written, shown otherwise, or another question.
BESIDE = re.compile(r" (--(save|emit|out|format|top) \S+|-v|> \S+)")
DOCUMENTED = sorted(
    {
        BESIDE.sub("", command)
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for command in PLANS.findall(path.read_text(encoding="utf-8"))
        if not re.search("--(space|maximize|versus|like)|yaml|json|brige|zb-v", command)
    }
)


@settings(max_examples=of_all(25), derandomize=True)
@given(case=CASES, data=st.data())
def test_something_is_faster_than_a_time_where_brute_force_says_so(
    case: Case, data: st.DataObject
) -> None:
    context = replace(case.context(), ranking="evidence")
    narrowing = data.draw(a_few_values(context, case.scope))
    best_s = force(context, narrowing).best_s
    assume(np.isfinite(best_s).any())
    found = search(context, top=3, narrowing=narrowing, one_per_layout=True)
    layouts = [plan.strategy for plan in found.plans]
    for factor, is_faster in ((1.0, False), (1.0 + 1e-4, True), (0.9, False)):
        proof = prove(context, narrowing, layouts, factor * float(best_s.min()))
        assert proof.num_undecided == 0
        assert bool(proof.faster) == is_faster


def test_questions_of_the_documentation_are_found() -> None:
    assert len(DOCUMENTED) >= 10


@pytest.mark.parametrize("command", DOCUMENTED)
def test_nothing_is_faster_than_plans_of_the_documentation(command: str) -> None:
    code, output = run(shlex.join([*shlex.split(command), "--prove", "--format", "json"]))
    assert code in (0, 3), output
    if code == 0:
        proof = json.loads(output)["search"]["proof"]
        assert (proof["faster"], proof["num_undecided"]) == ([], 0)
        assert proof["num_programs"] > 0

"""Layouts, times, bytes, findings and exit codes of what users ask stay what they were."""

import json

import pytest
from transcripts import SUMMARIES, commands, differences, summary

# Of each kind of question one that takes about a second; the others run with scripts/check --all.
QUICK = """
plan-8b plan-ds-4090 plan-qlora plan-versus plan-nothing-2 why-tp8 memory-fits job-8b
collective-ar check-zero2 check-megatron repair-zero2
"""
QUESTIONS = [
    pytest.param(name, marks=() if name in QUICK.split() else pytest.mark.slow)
    for name in commands()
]


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_is_what_it_was(name: str) -> None:
    kept = json.loads(SUMMARIES.read_text(encoding="utf-8"))[name]
    assert not list(differences(kept, summary(commands()[name]), 1e-9))

"""First answers to questions whose expert answers are known: see first_answers.yaml."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from planner.answers.base import Deadline, Plan
from planner.answers.plan import searched
from planner.documents.tree import load_yaml
from planner.query.query import Query
from planner.query.resolve import resolve

FILE: Any = load_yaml(Path(__file__).parent / "first_answers.yaml")
FEWEST_QUESTIONS = 64
LEAST_ACCEPTED_PERCENT = 90.0
PART_FRACTION = 0.5  # of layers recomputed whole, up to which it is a part of them
COHERENT_BYTES_PER_S = 100e9  # of a link to the host; PCIe 5.0 x16 has 63
MATCHED_BY_SHAPE = ("tp", "pp", "cp", "ep", "dp", "vpp", "schedule", "zero_stage", "micro_batch")


def read(question: str) -> Query:
    """The question of a command line without abbreviations and switches."""
    model, cluster, *words = shlex.split(question)
    given: dict[str, Any] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        assert flag.startswith("--"), question
        given[flag[2:].replace("-", "_")] = value
    return Query.of(model, cluster, **given)


def first(query: Query) -> Plan | None:
    found = searched(resolve(query), 1, Deadline())
    return found.plans[0] if found.plans else None


@dataclass(frozen=True)
class First:
    """The first plan of a question, as what patterns have conditions on."""

    query: Query
    plan: Plan

    @cached_property
    def facts(self) -> dict[str, Any]:
        plan, layout, context = self.plan, self.plan.strategy, self.plan.context
        node, moe = context.cluster.node, context.model.moe
        num_layers = sum(layout.layers_per_stage)
        sharded = layout.dp * layout.cp // layout.dp_replicate
        is_coherent = node.host_link_bytes_per_s > COHERENT_BYTES_PER_S
        return {
            **{name: getattr(layout, name) for name in MATCHED_BY_SHAPE},
            "framework": plan.framework,
            "num_gpus": "all"
            if plan.num_gpus == context.cluster.num_accelerators
            else plan.num_gpus,
            "recompute": self.recompute,
            "offload": self.offload,
            "seq_len": context.job.seq_len,
            "experts": moe.num_experts if moe else 1,
            "tp_beyond_domain": layout.tp > context.cluster.domain.num_accelerators,
            "host_link": "coherent" if is_coherent else "pcie",
            "weight_shards": sharded if layout.zero_stage == 3 else 1,
            "tokens_per_rank": context.job.seq_len // layout.cp,
            "layers_per_chunk": num_layers / (layout.pp * layout.vpp),
        }

    @property
    def recompute(self) -> str:
        layout = self.plan.strategy
        whole, chosen = layout.layers_under["full"], layout.layers_under["selective"]
        if whole:
            is_part = whole <= PART_FRACTION * sum(layout.layers_per_stage)
            return "part" if is_part else "full"
        return "selective" if chosen else "none"

    @property
    def offload(self) -> str:
        layout = self.plan.strategy
        states = [layout.offload] if layout.offload != "none" else []
        activations = ["activations:host"] if layout.layers_under["offloaded"] else []
        return " + ".join(states + activations) or "none"

    @cached_property
    def gain(self) -> float | None:
        """Share of time that offloading saves; 1 where nothing fits without, None without any."""
        if self.offload == "none":
            return None
        without = first(self.query.with_(forbid=("offload",)))
        if without is None:
            return 1.0
        return 1.0 - self.plan.estimate.iter_time_s / without.estimate.iter_time_s

    def matches(self, pattern: Mapping[str, Any]) -> bool:
        """All conditions hold; the gain is looked at last, as it takes another search."""
        facts = {name: wanted for name, wanted in pattern.items() if name != "gain"}
        if not all(holds(self.facts[name], wanted) for name, wanted in facts.items()):
            return False
        return "gain" not in pattern or holds(self.gain, pattern["gain"])

    def never(self, question: Mapping[str, Any]) -> Iterator[str]:
        """Names of what it is and must not be."""
        asked = self.query.given
        for rule in FILE["never"]:
            is_excused = rule["name"] in question.get("allows", ())
            if not is_excused and rule.get("unless_asked") not in asked:
                yield from (rule["name"] for _ in range(self.matches(rule["match"])))
        yield from (str(one) for one in question.get("never", ()) if self.matches(one))

    def is_accepted(self, question: Mapping[str, Any]) -> bool:
        return any(self.matches(FILE["usual"] | one) for one in question["accepted"])

    def words(self) -> str:
        """Its layout in short, without what is usual."""
        usual = {**dict.fromkeys(MATCHED_BY_SHAPE, 1), "schedule": "1f1b", "recompute": "none"}
        shown = (*MATCHED_BY_SHAPE, *FILE["usual"], "recompute")
        usual |= FILE["usual"]
        values = {name: self.facts[name] for name in shown if self.facts[name] != usual[name]}
        return " ".join(f"{name}={value}" for name, value in values.items())


def holds(value: Any, wanted: Any) -> bool:
    """A value is the one wanted, in the list, or in the range."""
    if isinstance(wanted, list):
        return any(holds(value, one) for one in wanted)
    ends = re.fullmatch(r"([\d.]*?)\.\.([\d.]*)", wanted) if isinstance(wanted, str) else None
    if ends is None or value is None:
        return bool(value == wanted)
    least, most = ends.groups()
    return (not least or value >= float(least)) and (not most or value <= float(most))


def sources(question: Mapping[str, Any]) -> list[str]:
    named = question["source"]
    return [text.partition(",")[0] for text in (named if isinstance(named, list) else [named])]


@dataclass(frozen=True)
class Outcome:
    """A question with what came first; None where nothing fits."""

    asked: Mapping[str, Any]
    came: First | None

    @cached_property
    def never(self) -> tuple[str, ...]:
        return tuple(self.came.never(self.asked)) if self.came else ()

    @cached_property
    def is_accepted(self) -> bool:
        return self.came is not None and self.came.is_accepted(self.asked)

    def lines(self) -> Iterator[str]:
        yield self.asked["question"]
        yield f"  first:    {self.came.words() if self.came else 'nothing fits'}"
        for pattern in self.asked["accepted"]:
            conditions = (f"{name}={wanted}" for name, wanted in pattern.items())
            yield f"  accepted: {' '.join(conditions)}"
        yield from (f"  never:    {name}" for name in self.never)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    found = []
    for asked in FILE["questions"]:
        query = read(asked["question"])
        plan = first(query)
        found.append(Outcome(asked, First(query, plan) if plan else None))
    wrong = [one for one in found if not one.is_accepted or one.never]
    table = [f"{len(wrong)} of {len(found)} first answers are not accepted:"]
    table += [line for one in wrong for line in one.lines()]
    sys.stdout.write("\n".join(["", *table, ""]))
    return found


def test_most_first_answers_are_those_of_experts(outcomes: list[Outcome]) -> None:
    accepted = sum(one.is_accepted for one in outcomes)
    assert 100.0 * accepted >= LEAST_ACCEPTED_PERCENT * len(outcomes), f"{accepted} accepted"


def test_no_first_answer_is_absurd(outcomes: list[Outcome]) -> None:
    assert not [(one.asked["question"], name) for one in outcomes for name in one.never]


def test_every_question_has_its_source() -> None:
    questions = [one["question"] for one in FILE["questions"]]
    assert len(questions) == len(set(questions)) >= FEWEST_QUESTIONS
    named = {name for one in FILE["questions"] for name in sources(one)}
    assert named == set(FILE["sources"])
    assert all(one["why"] and one["accepted"] for one in FILE["questions"])
    assert all(one["basis"] in ("read", "recalled") for one in FILE["sources"].values())

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
from planner.answers.layout import short_layout
from planner.answers.plan import answer_question
from planner.documents.tree import load_yaml
from planner.query.options import OPTIONS
from planner.query.query import Query
from planner.query.resolve import resolve

FILE: Any = load_yaml(Path(__file__).parent / "first_answers.yaml")
FEWEST_QUESTIONS = 64
LEAST_ACCEPTED_FRACTION = 0.9
MOST_OF_A_PART = 0.5  # of layers recomputed whole
COHERENT_BYTES_PER_S = 100e9  # of a link to the host; PCIe 5.0 x16 has 63
NAMED = ("tp", "pp", "cp", "ep", "dp", "vpp", "schedule", "zero_stage", "micro_batch")


def first(query: Query) -> Plan | None:
    found = answer_question(resolve(query), 1, Deadline())
    return found.plans[0] if found.plans else None


def holds(value: Any, wanted: Any) -> bool:
    """A value is the one wanted, in the list, or in the range."""
    if isinstance(wanted, list):
        return any(holds(value, one) for one in wanted)
    ends = re.fullmatch(r"([\d.]*?)\.\.([\d.]*)", wanted) if isinstance(wanted, str) else None
    if ends is None or value is None:
        return bool(value == wanted)
    least, most = ends.groups()
    return (not least or value >= float(least)) and (not most or value <= float(most))


@dataclass(frozen=True)
class First:
    """What came first of a question, as what patterns have conditions on."""

    asked: Mapping[str, Any]

    @cached_property
    def query(self) -> Query:
        model, cluster, *words = shlex.split(self.asked["question"])
        names = {option.flag: name for name, option in OPTIONS.items()}
        said: dict[str, list[str]] = {}
        for flag, value in zip(words[::2], words[1::2], strict=True):
            said.setdefault(names[flag], []).append(value)
        given = {name: each if OPTIONS[name].many else each[0] for name, each in said.items()}
        return Query.of(model, cluster, **given)

    @cached_property
    def plan(self) -> Plan | None:
        """None where nothing fits."""
        return first(self.query)

    @cached_property
    def facts(self) -> dict[str, Any]:
        assert self.plan is not None
        plan, layout, context = self.plan, self.plan.strategy, self.plan.context
        under, num_layers = layout.layers_under, sum(layout.layers_per_stage)
        recompute = "selective" if under["selective"] else "none"
        if under["full"]:
            recompute = "part" if under["full"] <= MOST_OF_A_PART * num_layers else "full"
        away = [layout.offload] * (layout.offload != "none")
        away += ["activations:host"] * (under["offloaded"] > 0)
        moe, cluster = context.model.moe, context.cluster
        is_coherent = cluster.node.host_link_bytes_per_s > COHERENT_BYTES_PER_S
        shards = layout.dp * layout.cp // layout.dp_replicate
        return {
            **{name: getattr(layout, name) for name in NAMED},
            "framework": plan.framework,
            "num_gpus": "all" if plan.num_gpus == cluster.num_accelerators else plan.num_gpus,
            "recompute": recompute,
            "offload": " + ".join(away) or "none",
            "seq_len": context.job.seq_len,
            "experts": moe.num_experts if moe else 1,
            "tp_beyond_domain": layout.tp > cluster.domain.num_accelerators,
            "host_link": "coherent" if is_coherent else "pcie",
            "weight_shards": shards if layout.zero_stage == 3 else 1,
            "tokens_per_rank": context.job.seq_len // layout.cp,
            "layers_per_chunk": num_layers / (layout.pp * layout.vpp),
        }

    @cached_property
    def gain(self) -> float | None:
        """Share of time that offloading saves; 1 where nothing fits without, None without any."""
        assert self.plan is not None
        if self.facts["offload"] == "none":
            return None
        without = first(self.query.with_(forbid=("offload",)))
        ours_s = self.plan.estimate.iter_time_s
        return 1.0 - ours_s / without.estimate.iter_time_s if without else 1.0

    def matches(self, pattern: Mapping[str, Any]) -> bool:
        """All conditions hold; the gain is looked at last, as it takes another search."""
        others = ((name, wanted) for name, wanted in pattern.items() if name != "gain")
        if self.plan is None or not all(holds(self.facts[name], wanted) for name, wanted in others):
            return False
        return "gain" not in pattern or holds(self.gain, pattern["gain"])

    @cached_property
    def is_accepted(self) -> bool:
        return any(self.matches(FILE["usual"] | one) for one in self.asked["accepted"])

    @cached_property
    def never(self) -> list[str]:
        """What it is and must not be."""
        allowed, given = self.asked.get("allows", ()), self.query.given
        rules = [one for one in FILE["never"] if one["name"] not in allowed]
        rules = [one for one in rules if one.get("unless_asked") not in given]
        found = [one["name"] for one in rules if self.matches(one["match"])]
        return found + [str(one) for one in self.asked.get("never", ()) if self.matches(one)]

    def lines(self) -> Iterator[str]:
        yield self.asked["question"]
        yield f"  first:    {short_layout(self.plan.strategy) if self.plan else 'nothing fits'}"
        yield from (f"  accepted: {one}" for one in self.asked["accepted"])
        yield from (f"  never:    {one}" for one in self.never)


@pytest.fixture(scope="module")
def answers() -> list[First]:
    found = [First(asked) for asked in FILE["questions"]]
    wrong = [one for one in found if not one.is_accepted or one.never]
    table = [f"{len(wrong)} of {len(found)} first answers are not accepted:"]
    table += [line for one in wrong for line in one.lines()]
    sys.stdout.write("\n".join(["", *table, ""]))
    return found


def test_most_first_answers_are_those_of_experts(answers: list[First]) -> None:
    accepted = [one for one in answers if one.is_accepted]
    assert len(accepted) >= LEAST_ACCEPTED_FRACTION * len(answers)


def test_no_first_answer_is_absurd(answers: list[First]) -> None:
    assert not [(one.asked["question"], one.never) for one in answers if one.never]


def test_every_question_has_its_source() -> None:
    asked = FILE["questions"]
    assert len({one["question"] for one in asked}) == len(asked) >= FEWEST_QUESTIONS
    sources = [one["source"] for one in asked]
    listed = (each if isinstance(each, list) else [each] for each in sources)
    assert {text.partition(",")[0] for each in listed for text in each} == set(FILE["sources"])

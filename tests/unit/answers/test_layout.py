"""A layout given degree by degree: what is filled in, and what is refused with which numbers."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from contexts import context_of
from places import assert_places

from planner.answers.layout import default_chunks, fill_in, layout_chunks, requested
from planner.errors import InputError
from planner.formats.megatron.options import per_stage
from planner.frameworks.settings import with_optimizer
from planner.search.space.interleaving import default_layers
from planner.spec.strategy import FIELD_DEFAULTS, SEARCHED_FIELDS, STRATEGY_FIELDS

CASES = yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("question", "given", "places"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_what_is_not_given_is_filled_in_or_refused(
    question: dict[str, Any], given: dict[str, Any], places: dict[str, Any]
) -> None:
    asked = requested(**given)
    if not any(place.startswith("--") for place in places):
        context, strategy = fill_in(context_of(**question), asked)
        assert_places(SimpleNamespace(context=context, strategy=strategy), places)
        return
    with pytest.raises(InputError) as caught:
        fill_in(context_of(**question), asked)
    assert {problem.where for problem in caught.value.problems} == {"command line"}
    said = {problem.key: problem.message for problem in caught.value.problems}
    assert all(re.match(message, said[key]) for key, message in places.items()), said


@pytest.mark.parametrize(
    ("num_layers", "pp", "expected"),
    [(80, 1, (80,)), (80, 4, (20, 20, 20, 20)), (61, 4, (15, 15, 15, 16)), (7, 4, (1, 2, 2, 2))],
)
def test_what_even_stages_leave_over_goes_to_the_last_ones(
    num_layers: int, pp: int, expected: tuple[int, ...]
) -> None:
    assert default_layers(num_layers, pp, vpp=1) == expected


def test_only_what_is_said_to_follow_is_not_neutral_where_it_is_left_out() -> None:
    context = context_of(model="llama3.1-70b", cluster="4xdgx-h100", global_batch=64)
    strategy = fill_in(context, requested(tp=8, pp=2))[1]
    filled = {
        name for name in SEARCHED_FIELDS if getattr(strategy, name) != FIELD_DEFAULTS[name]
    } - {"tp", "pp"}
    assert filled == {"dp", "etp", "zero_stage", "sequence_parallel"}
    assert filled < {name for name in SEARCHED_FIELDS if STRATEGY_FIELDS[name].follows}


def test_the_zero_stage_is_one_the_optimizer_runs_under() -> None:
    context = context_of()
    sgd = replace(context, traits=with_optimizer(context.traits, "sgd"))
    assert fill_in(sgd, requested())[1].zero_stage == 0
    refused = "optimizer_runs_under_zero: .*sgd under ZeRO 1: under megatron it runs under 0"
    with pytest.raises(InputError, match=f"--zero-stage: {refused}"):
        fill_in(sgd, requested(zero_stage=1))


def test_a_layout_is_taken_as_written_and_a_cut_one_goes_on_as_it_began() -> None:
    assert layout_chunks("Et|(tt|)*2tmL", 6) == (1, 2, 2, 1)
    assert per_stage(layout_chunks("Et*4|(t*4|)*14tmL", 61), 4) == (16, 16, 16, 13)
    assert layout_chunks("Et*8|t*8|...", 61) == (8,) * 7 + (5,)
    assert layout_chunks("Et*4|t*4|t*4|...", 16) == (4, 4, 4, 4)


@pytest.mark.parametrize(
    ("num_layers", "pp", "vpp", "chunks"),
    [
        (80, 4, 1, (20, 20, 20, 20)),
        (126, 4, 8, (3, *[4] * 30, 3)),
        (94, 8, 1, (11, *[12] * 6, 11)),
        (61, 4, 1, (16, 15, 15, 15)),
        (7, 1, 1, (7,)),
    ],
)
def test_without_a_layout_embedding_and_head_count_where_that_divides(
    num_layers: int, pp: int, vpp: int, chunks: tuple[int, ...]
) -> None:
    assert default_chunks(num_layers, pp, vpp) == chunks


@pytest.mark.parametrize(("num_layers", "pp", "vpp"), [(61, 4, 4), (31, 2, 8), (45, 4, 3)])
def test_chunks_hold_every_layer_where_nothing_divides(num_layers: int, pp: int, vpp: int) -> None:
    chunks = default_chunks(num_layers, pp, vpp)
    assert len(chunks) == pp * vpp
    assert sum(chunks) == num_layers
    assert max(chunks) == -(-num_layers // (pp * vpp))

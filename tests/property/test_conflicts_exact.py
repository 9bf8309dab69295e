"""What is said of a space in which nothing fits, against looking at every layout of it."""

from dataclasses import replace
from itertools import combinations

import pytest
from contexts import context_of
from enumerated import enumerate_space

from planner.answers.changes import of_size, with_memory
from planner.answers.conflict import HBM, HOST, Limits, missing_memory
from planner.cost.context import Context
from planner.query.resolve import Case
from planner.search.conflicts import conflicting_rules
from planner.search.feasible import first_feasible, smallest_feasible
from planner.search.search import search
from planner.search.space.narrow import Narrowing, read_narrowing
from planner.search.space.space import EVERYTHING
from planner.units import GIB

OPTIONS: tuple[dict[str, list[str]], ...] = (
    {},
    {"forbid": ["offload"]},
    {"fix": ["tp=1", "pp=1"]},
    {"fix": ["recompute=none", "micro_batch=4"], "forbid": ["offload"]},
    {"limit": ["tp*pp<=2"], "fix": ["zero=0"]},
    {"where": ["dp >= 4"], "fix": ["tp=4"]},  # more GPUs than there are
)
SIZES = (1.0, 1.5, 2.5, 5.0)


def small(hbm_gib: float, host_bytes: float = 4 * GIB) -> Context:
    context = context_of(global_batch=8, hbm_bytes=hbm_gib * GIB, cluster="1xdgx-h100")
    node = replace(context.cluster.node, host_memory_bytes=host_bytes)
    return replace(context, cluster=replace(context.cluster, node=node))


def fits(context: Context, narrowing: Narrowing) -> bool:
    return bool(search(context, top=1, narrowing=narrowing, with_frontier=False).plans)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("hbm_gib", SIZES)
def test_something_fits_where_the_search_finds_a_plan(
    options: dict[str, list[str]], hbm_gib: float
) -> None:
    context, narrowing = small(hbm_gib), read_narrowing(**options)
    found = first_feasible(context, narrowing)
    assert (found is not None) == fits(context, narrowing)
    if found is not None:
        smallest = smallest_feasible(context, narrowing)
        assert smallest is not None
        assert smallest[1]
        result = search(context, top=1, narrowing=narrowing)
        assert smallest[0].strategy.num_gpus == result.frontier[0].strategy.num_gpus


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("hbm_gib", SIZES[:3])
def test_a_conflict_is_one_and_no_smaller_set_is(
    options: dict[str, list[str]], hbm_gib: float
) -> None:
    context, narrowing = small(hbm_gib), read_narrowing(**options)
    if fits(context, narrowing):
        return
    limits = Limits(case=Case(contexts=(context,), narrowing=narrowing))
    conflict = limits.conflict()
    assert not limits.can_hold(conflict)
    for fewer in combinations(conflict, len(conflict) - 1):
        assert limits.can_hold(fewer)


@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
def test_the_nearest_layout_lacks_least(options: dict[str, list[str]]) -> None:
    context, narrowing = small(1.0), read_narrowing(**options)
    if fits(context, narrowing):
        pytest.skip("something fits")
    short = missing_memory(context, narrowing)
    assert short is not None
    assert short.is_least
    assert short.limit == HBM
    own, peak = context.usable_bytes, short.ledger.peak_bytes
    assert short.missing_bytes == pytest.approx(peak - own)
    assert fits(with_memory(context, hbm=peak / own * (1 + 1e-9)), narrowing)
    assert not fits(with_memory(context, hbm=(own + 0.97 * short.missing_bytes) / own), narrowing)


def test_what_is_missing_of_host_memory_is_said_so() -> None:
    context = small(80.0, host_bytes=1e6)
    narrowing = read_narrowing(fix=["offload=optimizer:host"])
    short = missing_memory(context, narrowing)
    assert short is not None
    assert short.limit == HOST
    assert short.missing_bytes > 0
    conflict = Limits(case=Case(contexts=(context,), narrowing=narrowing)).conflict()
    assert set(conflict) == {HOST, "--fix offload=optimizer:host"}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_larger_cluster_holds_what_fits_in_a_smaller_one(options: dict[str, list[str]]) -> None:
    """No assumption: its space holds theirs, and memory does not depend on the cluster."""
    case = Case(contexts=(small(2.0),), narrowing=read_narrowing(**options))
    size = case.context.cluster.node.num_accelerators
    for num_nodes in (1, 2, 3):
        found = first_feasible(of_size(case, num_nodes * size).context, case.narrowing)
        if found is not None:
            larger = of_size(case, (num_nodes + 1) * size).context
            assert first_feasible(larger, case.narrowing) is not None


ILLEGAL: tuple[dict[str, list[str]], ...] = (
    {"fix": ["tp=3"]},
    {"fix": ["pp=1", "vpp=2"]},
    {"fix": ["tp=8", "dp=2"]},
    {"fix": ["dp=3"]},
    {"where": ["vpp * pp == 8"]},
    {"fix": ["ep=2"], "where": ["tp + pp == 5"]},
)


@pytest.mark.parametrize("options", ILLEGAL, ids=str)
def test_rules_that_forbid_are_minimal(
    options: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, narrowing = small(80.0), read_narrowing(**options)
    assert len(enumerate_space(context, narrowing).strategy) == 0
    found = conflicting_rules(context, narrowing)
    assert found is not None
    assert found.rules
    names = [rule.name for rule in found.rules]

    def is_empty(kept: list[str]) -> bool:
        rules = tuple(rule for rule in found.rules if rule.name in kept)
        monkeypatch.setattr("planner.search.space.space.RULES", rules)
        return conflicting_rules(context, narrowing) is not None

    assert is_empty(names)
    for name in names:
        rest = [other for other in names if other != name]
        assert is_empty([name]) if found.each_alone else not is_empty(rest)


def test_nothing_forbids_a_legal_space_and_values_not_searched_need_no_rule() -> None:
    assert conflicting_rules(small(80.0), EVERYTHING) is None
    found = conflicting_rules(small(80.0), read_narrowing(limit=["micro_batch >= 9"]))
    assert found is not None
    assert found.rules == ()

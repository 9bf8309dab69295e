import json
from typing import Any

import pytest

ASKED = ("collective", "all-reduce", "350GB", "64xdgx-h100")


def test_the_example_of_the_documentation_runs(planner: Any) -> None:
    run = planner(*ASKED, "--algorithm", "all", "--group", "8")
    assert run.code == 0
    assert "all-reduce of 325.96 GiB on 8 of 512 h100-sxm" in run.out
    for text in ("bus GB/s", "rounds", "sent per rank", "bottleneck", "in-network"):
        assert text in " ".join(run.out.split())


def test_every_level_has_its_share_of_every_algorithm(planner: Any) -> None:
    run = planner(*ASKED, "--algorithm", "ring,hierarchical", "-v")
    rows = {tuple(line.split()[:2]) for line in run.out.splitlines()}
    for name in ("ring", "hierarchical"):
        assert {(name, "nvlink"), (name, "ib-ndr")} <= rows
    assert "double-tree" not in run.out


@pytest.mark.parametrize("cluster", ["frontier", "aurora"])
def test_nothing_of_many_levels_is_cut(
    planner: Any, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = planner("collective", "all-reduce", "1GB", cluster, "-v")
    assert "…" not in run.out
    assert max(map(len, run.out.splitlines())) <= 80


@pytest.mark.parametrize(("size", "cluster"), [("1GB", "frontier"), ("350GB", "64xdgx-h100")])
def test_the_fastest_algorithm_takes_about_what_plans_use(
    planner: Any, size: str, cluster: str
) -> None:
    data = json.loads(planner("collective", "all-reduce", size, cluster, "--format", "json").out)
    assert 1 / 1.5 < data["algorithms"][0]["time_s"] / data["plan_s"] < 1.5


def test_direct_all_to_all_on_a_torus_is_bound_as_plans_are(planner: Any) -> None:
    asked = ("collective", "all-to-all", "1GB", "tpu-v4-pod", "--algorithm", "direct")
    data = json.loads(planner(*asked, "--format", "json").out)
    assert data["algorithms"][0]["time_s"] == pytest.approx(data["plan_s"], rel=0.02)


def test_json_holds_the_same_in_base_units(planner: Any) -> None:
    run = planner(*ASKED, "--group", "16", "--algorithm", "ring", "--format", "json")
    data = json.loads(run.out)
    (ring,) = data["algorithms"]
    assert data["bytes"] == 350e9
    assert ring["rounds"] == 30
    assert ring["sent_bytes"] == pytest.approx(sum(x["sent_bytes"] for x in ring["levels"]))
    assert ring["busbw_bytes_per_s"] == pytest.approx(30 / 16 * 350e9 / ring["time_s"])


def test_plans_of_one_measured_domain_say_so(planner: Any) -> None:
    assert "(measured)" in planner(*ASKED, "--group", "8").out
    assert "(no measurement of this group)" in planner(*ASKED, "--group", "16").out


@pytest.mark.parametrize("kind", ["reduce-scatter", "all-gather", "broadcast", "all-to-all", "p2p"])
@pytest.mark.parametrize("cluster", ["2xdgx-a100-640", "512xtpu-v4", "2xfrontier", "4xhgx-mi300x"])
def test_every_collective_on_every_kind_of_machine(planner: Any, kind: str, cluster: str) -> None:
    run = planner("collective", kind, "64MiB", cluster, "--format", "json")
    data = json.loads(run.out)
    assert run.code == 0
    assert data["algorithms"]
    times = [algorithm["time_s"] for algorithm in data["algorithms"]]
    assert times == sorted(times)
    assert min(times) > 0


@pytest.mark.parametrize(
    ("cluster", "num_ranks"), [("superpod-h100", 768), ("lumi", 23808), ("2xdgx-h100", 16)]
)
def test_without_a_group_the_largest_of_whole_units_is_taken_and_said(
    planner: Any, cluster: str, num_ranks: int
) -> None:
    run = planner("collective", "all-reduce", "1GB", cluster, "--format", "json")
    assert run.code == 0
    data = json.loads(run.out)
    assert data["ranks"] == num_ranks
    assert (f"{num_ranks:,} of" in data["note"]) == (cluster != "2xdgx-h100")
    printed = " ".join(planner("collective", "all-reduce", "1GB", cluster).out.split())
    assert data["note"] in printed


def test_a_torus_is_used_along_all_dimensions(planner: Any) -> None:
    run = planner("collective", "all-reduce", "1GB", "512xtpu-v4", "--format", "json")
    data = json.loads(run.out)
    times = {a["name"]: a["time_s"] for a in data["algorithms"]}
    assert times["multi-dimensional"] < times["ring"] / 2.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all-reduce", "1XB", "2xdgx-h100"), "SIZE: not a size: '1XB'"),
        (("all-reduce", "1GB", "nope"), "cluster::nope"),
        (("all-reduce", "1GB", "2xdgx-h100", "--group", "17"), "--group: must be 2 to 16"),
        (("all-reduce", "1GB", "2xdgx-h100", "--group", "12"), "nearest are 8 and 16"),
        (("all-reduce", "1GB", "2xdgx-h100", "--algorithm", "rin"), "did you mean ring?"),
        (("all-to-all", "1GB", "2xdgx-h100", "--algorithm", "ring"), "ring does no all-to-all"),
        (("all-reduce", "1GB", "1xh100"), "has one accelerator"),
    ],
)
def test_bad_arguments_are_explained(
    planner: Any, arguments: tuple[str, ...], message: str
) -> None:
    run = planner("collective", *arguments)
    assert run.code == 2
    assert message in " ".join(run.err.split())


def test_every_wrong_argument_is_reported_at_once(planner: Any) -> None:
    run = planner("collective", "all-reduce", "x", "y", "--algorithm", "z")
    for text in ("SIZE", "cluster::y", "--algorithm"):
        assert text in run.err


def test_other_ways_say_whether_they_change_training(planner: Any) -> None:
    options = ("--buckets", "4", "--compress", "topk:0.01", "--server", "8", "--format", "json")
    run = planner("collective", "all-reduce", "1GB", "2xdgx-h100", *options)
    assert run.code == 0, run.err
    data = json.loads(run.out)
    server, top_k, buckets = data["ways"]
    assert [way["changes_training"] for way in data["ways"]] == [False, True, False]
    # each of 8 servers gives out the weights of two workers
    assert server["sent_bytes"] == pytest.approx(1e9 * 16 / 8)
    # 15 others' share of 1 %, each number with its place
    assert top_k["sent_bytes"] == pytest.approx(15 * 0.01 * 1e9 * 2)
    assert buckets["exposed_s"] == pytest.approx(data["algorithms"][0]["time_s"] / 4)


def test_priority_hides_what_a_short_backward_leaves(planner: Any) -> None:
    asked = ("collective", "all-reduce", "1GB", "2xdgx-h100", "--buckets", "100")
    asked = (*asked, "--backward-s", "0.001", "--format", "json")
    (plain,) = json.loads(planner(*asked).out)["ways"]
    (first,) = json.loads(planner(*asked, "--priority").out)["ways"]
    assert plain["exposed_s"] - first["exposed_s"] == pytest.approx(0.99 * 0.0005)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all-reduce", "--compress", "topk:2"), "--compress: must be int8, or topk:SHARE"),
        (("all-reduce", "--priority"), "--priority: needs --buckets"),
        (("all-gather", "--server", "2"), "servers are of an all-reduce"),
    ],
)
def test_other_ways_that_cannot_be_are_refused(
    planner: Any, arguments: tuple[str, ...], message: str
) -> None:
    kind, *others = arguments
    run = planner("collective", kind, "1GB", "2xdgx-h100", *others)
    assert run.code == 2
    assert message in run.err

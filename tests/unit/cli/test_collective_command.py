import pytest
from in_process import json_of, planner

ASKED = ("collective", "all-reduce", "350GB", "64xdgx-h100")


def test_every_level_has_its_share_of_every_algorithm() -> None:
    run = planner(*ASKED, "--algorithm", "ring,hierarchical", "-v")
    rows = {tuple(line.split()[:2]) for line in run.out.splitlines()}
    for name in ("ring", "hierarchical"):
        assert {(name, "nvlink"), (name, "ib-ndr")} <= rows
    assert "double-tree" not in run.out


@pytest.mark.parametrize(("size", "cluster"), [("1GB", "frontier"), ("350GB", "64xdgx-h100")])
def test_the_fastest_algorithm_takes_about_what_plans_use(size: str, cluster: str) -> None:
    data = json_of("collective", "all-reduce", size, cluster)
    assert 1 / 1.5 < data["algorithms"][0]["time_s"] / data["plan_s"] < 1.5


def test_a_torus_bounds_all_to_all_as_plans_are_and_is_used_along_all_dimensions() -> None:
    data = json_of("collective", "all-to-all", "1GB", "tpu-v4-pod", "--algorithm", "direct")
    assert data["algorithms"][0]["time_s"] == pytest.approx(data["plan_s"], rel=0.02)
    data = json_of("collective", "all-reduce", "1GB", "512xtpu-v4")
    times = {a["name"]: a["time_s"] for a in data["algorithms"]}
    assert times["multi-dimensional"] < times["ring"] / 2.5


def test_json_holds_the_same_in_base_units() -> None:
    data = json_of(*ASKED, "--group", "16", "--algorithm", "ring")
    (ring,) = data["algorithms"]
    assert data["bytes"] == 350e9
    assert ring["rounds"] == 30
    assert ring["sent_bytes"] == pytest.approx(sum(x["sent_bytes"] for x in ring["levels"]))
    assert ring["busbw_bytes_per_s"] == pytest.approx(30 / 16 * 350e9 / ring["time_s"])


@pytest.mark.parametrize("kind", ["reduce-scatter", "all-gather", "broadcast", "all-to-all", "p2p"])
@pytest.mark.parametrize("cluster", ["2xdgx-a100-640", "512xtpu-v4", "2xfrontier", "4xhgx-mi300x"])
def test_every_collective_on_every_kind_of_machine(kind: str, cluster: str) -> None:
    data = json_of("collective", kind, "64MiB", cluster)
    assert data["algorithms"]
    times = [algorithm["time_s"] for algorithm in data["algorithms"]]
    assert times == sorted(times)
    assert min(times) > 0


def test_other_ways_say_whether_they_change_training() -> None:
    options = ("--buckets", "4", "--compress", "topk:0.01", "--server", "8")
    data = json_of("collective", "all-reduce", "1GB", "2xdgx-h100", *options)
    server, top_k, buckets = data["ways"]
    assert [way["changes_training"] for way in data["ways"]] == [False, True, False]
    # each of 8 servers gives out the weights of two workers
    assert server["sent_bytes"] == pytest.approx(1e9 * 16 / 8)
    # 15 others' share of 1 %, each number with its place
    assert top_k["sent_bytes"] == pytest.approx(15 * 0.01 * 1e9 * 2)
    assert buckets["exposed_s"] == pytest.approx(data["algorithms"][0]["time_s"] / 4)


def test_priority_hides_what_a_short_backward_leaves() -> None:
    asked = ("collective", "all-reduce", "1GB", "2xdgx-h100", "--buckets", "100")
    asked = (*asked, "--backward-s", "0.001")
    (plain,) = json_of(*asked)["ways"]
    (first,) = json_of(*asked, "--priority")["ways"]
    assert plain["exposed_s"] - first["exposed_s"] == pytest.approx(0.99 * 0.0005)

import itertools
import json
import math
import re
from pathlib import Path

import pytest
from in_process import json_of, planner

from planner.search.ranking.penalties import TIE_FRACTION

LAYOUT = ("dp", "tp", "pp", "cp", "ep", "etp", "zero_stage")
ALL_TABLES = {"plans", "ladder", "pareto"}
SMALL = ("plan", "llama3-8b", "2xdgx-h100", "--global-batch", "64")


def test_json_has_the_documented_shape() -> None:
    answer = json_of(*SMALL, "--top", "2")
    assert answer["schema_version"] == 2
    assert {
        "plans", "fastest", "ladder", "recipe", "pareto", "search", "inputs", "flops_convention",
    } <= answer.keys()  # fmt: skip
    plan = answer["plans"][0]
    assert {
        "dp", "tp", "pp", "vpp", "cp", "ep", "etp", "zero_stage", "micro_batch",
        "num_micro_batches",
        "recompute", "offload", "layers_per_stage", "recompute_layers_per_stage",
    } <= plan["strategy"].keys()  # fmt: skip
    assert sum(item["exposed_s"] for item in plan["time"].values()) == pytest.approx(
        plan["iter_time_s"]
    )
    assert sum(plan["memory"]["items"].values()) == pytest.approx(plan["memory"]["peak_bytes"])
    assert plan["memory"]["peak_bytes"] <= plan["memory"]["usable_bytes"]
    assert plan["iter_time_s_lower"] <= plan["iter_time_s"] <= plan["iter_time_s_upper"]
    assert plan["iter_time_s_overlapped"] <= plan["iter_time_s"] <= plan["iter_time_s_serial"]
    assert len(plan["evidence"]["runs"]) == 3
    search = answer["search"]
    # Looked at: branches that a rule cut, legal shapes (one too big for memory is one of them),
    # and the strategies of shapes that were opened, of which some are set aside unpriced.
    cut = sum(number for name, number in search["dropped"].items() if name != "fits_in_memory")
    strategies = search["configurations"] - cut - search["shapes"]
    assert 0 < search["fitting"] <= search["priced"] <= strategies
    assert search["proved_optimal"]
    assert search["gap"] == 0.0


def test_plans_are_ranked_and_the_frontier_is_not_dominated() -> None:
    answer = json_of(*SMALL, "--frontier")
    # Ties first, the simplest of them leading; then by time.
    fastest_s = min(plan["weighed_s"] for plan in answer["plans"])
    ties = [plan["weighed_s"] <= fastest_s * (1.0 + TIE_FRACTION) for plan in answer["plans"]]
    assert ties == sorted(ties, reverse=True)
    slower = [plan["iter_time_s"] for plan in answer["plans"][sum(ties) :]]
    assert slower == sorted(slower)
    for plan in answer["plans"]:
        factor = math.prod(plan["penalties"].values())
        assert plan["weighed_s"] == pytest.approx(plan["iter_time_s"] * factor, rel=1e-6)
    points = [(plan["gpus"], plan["iter_time_s"]) for plan in answer["pareto"]]
    assert len(points) > 1
    assert [gpus for gpus, _ in points] == sorted({gpus for gpus, _ in points})
    assert all(later[1] < earlier[1] for earlier, later in itertools.pairwise(points))


def test_rows_are_layouts_and_their_knobs_are_variants() -> None:
    answer = json_of(*SMALL)
    layouts = [tuple(plan["strategy"][name] for name in LAYOUT) for plan in answer["plans"]]
    assert len(set(layouts)) == len(layouts) == 5
    for plan, own in zip(answer["plans"], layouts, strict=True):
        for variant in plan["variants"]:
            assert tuple(variant["strategy"][name] for name in LAYOUT) == own
            assert variant["turned"]
            assert variant["time_change"] == pytest.approx(
                variant["iter_time_s"] / plan["iter_time_s"] - 1.0
            )


def test_the_fastest_and_fewer_gpus_stand_beside_the_rows() -> None:
    answer = json_of(*SMALL)
    first = answer["plans"][0]
    if answer["fastest"] is not None:
        assert answer["fastest"]["iter_time_s"] < first["iter_time_s"]
    rungs = [plan["gpus"] for plan in answer["ladder"]]
    assert rungs == sorted(set(rungs), reverse=True)
    assert rungs[0] <= first["gpus"] // 2
    assert answer["pareto"] == []


def test_any_framework_ranks_across_frameworks(tmp_path: Path) -> None:
    tiny = tmp_path / "m.yaml"
    tiny.write_text(
        "num_layers: 2\nhidden_size: 1024\nnum_heads: 2\nvocab_size: 32000\nmax_seq_len: 2048\n"
    )
    run = planner(
        "plan", str(tiny), "1xdgx-h100", "--global-batch", "8", "--framework", "any",
        "--format", "json", "--top", "150",
    )  # fmt: skip
    plans = json.loads(run.out)["plans"]
    frameworks = [plan["framework"] for plan in plans]
    assert len(set(frameworks)) > 1
    # The best of each framework first; among those, and among the others, ranked by weighed time,
    # not one framework behind the other.
    leading = len(set(frameworks))
    assert len(set(frameworks[:leading])) == leading
    for rows in (plans[:leading], plans[leading:]):
        weighed = [plan["weighed_s"] for plan in rows]
        assert weighed == sorted(weighed)
    assert sum(one != other for one, other in itertools.pairwise(frameworks[leading:])) > 1


def test_the_suggested_number_of_nodes_is_the_smallest_that_fits() -> None:
    batch = ("--global-batch", "512")
    suggested = planner("plan", "llama3.1-405b", "1xdgx-h100", *batch).err
    nodes = int(re.search(r"\((\d+)xdgx-h100\)", suggested)[1])  # type: ignore[index]
    assert planner("plan", "llama3.1-405b", f"{nodes}xdgx-h100", *batch).code == 0
    assert planner("plan", "llama3.1-405b", f"{nodes - 1}xdgx-h100", *batch).code == 3


def test_a_link_is_followed_when_saving(tmp_path: Path) -> None:
    target, link = tmp_path / "target.yaml", tmp_path / "link.yaml"
    target.write_text("old")
    link.symlink_to(target)
    assert planner(*SMALL, "--save", str(link), "--force").code == 0
    assert link.is_symlink()
    assert "schema_version" in target.read_text()


def test_the_placement_of_the_fastest_plan_is_shown() -> None:
    placement = json_of(*SMALL)["plans"][0]["strategy"]["placement"]
    assert f"Rank order {placement} (inside out): " in planner(*SMALL, "-v").out

"""``planner memory``: one configuration, as text and as JSON, and what it refuses."""

import pytest
from in_process import json_of, planner

LAYOUT = ("memory", "llama3.1-70b", "4xdgx-h100", "--tp", "8", "--pp", "2")


def test_all_shows_every_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    first = json_of(*LAYOUT)["stages"][0]["ledger"]
    short, long = planner(*LAYOUT, "-v").out, planner(*LAYOUT, "--all").out
    assert f"and {len(first) - 12} smaller items" in short
    assert "smaller items" not in long
    assert all(item["name"] in long for item in first)


def test_json_ledgers_add_up_to_the_peaks() -> None:
    answer = json_of(*LAYOUT)
    assert len(answer["stages"]) == 2
    for stage in answer["stages"]:
        total = sum(item["num_bytes"] for item in stage["ledger"])
        assert total == pytest.approx(stage["peak_bytes"], rel=1e-12)
        assert stage["allocated_bytes"] < stage["peak_bytes"]
    assert answer["peak_bytes"] == max(stage["peak_bytes"] for stage in answer["stages"])
    assert answer["headroom_bytes"] == answer["hbm_bytes"] - answer["peak_bytes"]
    for saving in answer["savings"]:
        if saving["refused"] is None:
            assert saving["saved_bytes"] == answer["peak_bytes"] - saving["peak_bytes"]


def test_the_margin_is_the_uncertainty_and_moves_no_byte() -> None:
    plain = json_of(*LAYOUT)
    given = json_of(*LAYOUT, "--margin", "7.5")
    assert given["uncertainty_bytes"] == pytest.approx(0.075 * given["hbm_bytes"])
    assert plain["uncertainty_bytes"] != given["uncertainty_bytes"]
    assert given["peak_bytes"] == plain["peak_bytes"]


WHOLE = ("memory", "llama3-8b", "1xdgx-h100", "--tp", "8")


def test_activations_offloaded_to_the_host_are_those_the_device_no_longer_keeps() -> None:
    kept, moved, some = (
        json_of(*WHOLE, *options)
        for options in ((), ("--offload-activations", "all"), ("--offload-activations", "8"))
    )
    assert (kept["host_bytes"], kept["host_limit_bytes"]) == (0.0, None)
    items = [
        item for item in kept["stages"][0]["ledger"] if item["name"].startswith("activations.")
    ]
    assert moved["host_bytes"] == pytest.approx(sum(item["num_bytes"] for item in items))
    assert some["host_bytes"] == pytest.approx(moved["host_bytes"] * 8 / 32)
    assert moved["strategy"]["offloaded_layers_per_stage"] == [32]
    assert moved["peak_bytes"] < some["peak_bytes"] < kept["peak_bytes"]

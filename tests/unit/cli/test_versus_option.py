"""`planner plan --versus`: one question beside the same asked otherwise."""

from in_process import json_of

SMALL = ("plan", "gpt3-xl", "1xdgx-a100-640", "--global-batch", "64", "--tp", "1", "--pp", "1")


def test_several_changes_at_once_and_several_alternatives() -> None:
    versus = ("--versus", "tp=2,zero=1", "--versus", "forbid=recompute,micro-batch=2")
    found = json_of(*SMALL, *versus)
    assert found["asked"]["plan"]["strategy"]["tp"] == 1
    first, second = (each["plan"]["strategy"] for each in found["others"])
    assert (first["tp"], first["zero_stage"], first["pp"]) == (2, 1, 1)
    assert (second["tp"], second["micro_batch"], second["recompute"]) == (1, 2, "none")
    speed = found["others"][0]["speed"]
    assert speed["lower"] < speed["value"] < speed["upper"]

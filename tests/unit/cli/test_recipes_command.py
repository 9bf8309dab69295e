"""``planner show recipes`` and ``planner plan --like``."""

import json

from in_process import planner


def test_the_list_as_json() -> None:
    run = planner("show", "recipes", "deepseek-v3", "amd", "--format", "json")
    assert {row["accelerator"] for row in json.loads(run.out)["recipes"]} == {"mi300x", "mi355x"}

"""``planner check PLAN --fix``: figures of its document, absurd numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import planner
from plan_document import plan_document


def fix(folder: Path, cluster: str, **strategy: object) -> Any:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan_document({"margin_fraction": 0.02}, **strategy)))
    return planner("check", str(path), "--fix", "--cluster", cluster, "--format", "json")


def test_json_has_changes_figures_and_alternatives(tmp_path: Path) -> None:
    answer = json.loads(fix(tmp_path, "1xdgx-h100").out)
    assert answer["before"]["iter_time_s"] > 0
    assert answer["repair"]["peak_bytes"] <= answer["repair"]["usable_bytes"]
    times = [one["iter_time_s"] for one in (answer["repair"], *answer["alternatives"])]
    assert times == sorted(times)
    assert len(answer["alternatives"]) <= 3
    for one in answer["alternatives"]:
        assert sum(change["counts"] for change in one["changes"]) == answer["num_changes"]


@pytest.mark.parametrize(
    "edit",
    [
        {"layers_per_stage": [0]},
        {"offloaded_layers_per_stage": [1, 2, 3]},
        {"dp": 10**7, "tp": 10**7, "pp": 10**7, "cp": 10**7},
        {"micro_batch": 10**7, "ep": 10**7, "dp_replicate": 10**7},
    ],
    ids=lambda edit: ",".join(edit),
)
def test_absurd_numbers_are_repaired_or_given_up(tmp_path: Path, edit: dict[str, Any]) -> None:
    run = fix(tmp_path, "2xdgx-h100", **edit)
    assert run.code in (0, 3)
    assert json.loads(run.out)["violations"]

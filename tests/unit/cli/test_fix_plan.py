"""``planner check PLAN --fix``: what it says, its exit codes, files and JSON, what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import json_of, planner
from plan_document import plan_document


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., str]:
    """Write a plan file with some values changed; returns its path."""

    def write(*, inputs: dict[str, Any] | None = None, **strategy: object) -> str:
        path = tmp_path / "plan.yaml"
        content = plan_document({"margin_fraction": 0.02, **(inputs or {})}, **strategy)
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return write


def test_a_list_of_the_wrong_length_is_made_anew(plan_of: Any) -> None:
    """Two stages are illegal on so many GPUs, or one list is: the latter is one change."""
    run = planner(
        "check", plan_of(pp=2, dp=4, num_micro_batches=32), "--fix", "--cluster", "2xdgx-h100"
    )
    assert run.code == 0
    assert "field changed; no repair with fewer exists" in run.out
    answer = json_of("check", plan_of(pp=2, dp=4), "--fix", "--cluster", "2xdgx-h100")
    keys = [one["key"] for one in answer["violations"]]
    assert "layers_per_stage" in keys
    assert (
        len(answer["repair"]["strategy"]["layers_per_stage"])
        == (answer["repair"]["strategy"]["pp"])
    )


def test_json_has_changes_figures_and_alternatives(plan_of: Any) -> None:
    answer = json_of("check", plan_of(), "--fix", "--cluster", "1xdgx-h100")
    assert answer["before_cluster"] == "2xdgx-h100"
    assert answer["before"]["iter_time_s"] > 0
    assert not answer["is_sound"]
    assert answer["repair"]["peak_bytes"] <= answer["repair"]["usable_bytes"]
    assert answer["repair"]["proved_fastest"]
    times = [one["iter_time_s"] for one in (answer["repair"], *answer["alternatives"])]
    assert times == sorted(times)
    assert len(answer["alternatives"]) <= 3
    for one in answer["alternatives"]:
        assert sum(change["counts"] for change in one["changes"]) == answer["num_changes"]


def test_the_saved_repair_is_a_plan_for_the_new_cluster(plan_of: Any, tmp_path: Path) -> None:
    saved = tmp_path / "mended.yaml"
    given = plan_of(inputs={"margin_fraction": 0.05})
    arguments = ("check", given, "--fix", "--cluster", "1xdgx-h100", "--out", str(saved))
    run = planner(*arguments)
    assert run.code == 0
    assert run.err == f"saved the plan to {saved}\n"
    inputs = yaml.safe_load(saved.read_text())["inputs"]
    assert (inputs["cluster"], inputs["model"]) == ("1xdgx-h100", "llama3-8b")
    assert inputs["margin_fraction"] == pytest.approx(0.05)
    explained = planner("explain", str(saved), "memory")
    assert (explained.code, explained.err) == (0, "")
    again = planner("check", str(saved), "--fix", "--cluster", "1xdgx-h100")
    assert "Nothing is wrong" in again.out
    before = saved.read_text()
    refused = planner(*arguments)
    assert refused.code == 2
    assert "use --force" in refused.err
    assert saved.read_text() == before
    assert planner(*arguments, "--force").code == 0


def test_apply_replaces_a_broken_plan_and_leaves_a_sound_one(plan_of: Any, tmp_path: Path) -> None:
    path = Path(plan_of(tp=3))
    run = planner("check", str(path), "--fix", "--apply")
    assert (run.code, run.err) == (0, f"saved the plan to {path}\n")
    assert yaml.safe_load(path.read_text())["strategy"]["tp"] == 2
    mended = path.read_text()
    again = planner("check", str(path), "--fix", "--apply")
    assert (again.code, again.err) == (0, f"{path} stays as it is\n")
    assert path.read_text() == mended
    copy = tmp_path / "copy.yaml"
    assert (
        planner("check", str(path), "--fix", "--cluster", "1xdgx-h100", "--out", str(copy)).code
        == 0
    )
    assert yaml.safe_load(copy.read_text())["inputs"]["cluster"] == "1xdgx-h100"
    assert path.read_text() == mended


def test_no_repair_ends_with_3_and_names_the_search(
    plan_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    saved = tmp_path / "none.yaml"
    plan = plan_of(inputs={"model": "llama3.1-405b"}, layers_per_stage=[126])
    run = planner("check", plan, "--fix", "--cluster", "1xdgx-h100", "--out", str(saved))
    assert run.code == 3
    assert "No repair with at most 5 changed fields exists" in run.out
    assert "Looked at " in run.out
    assert "planner plan llama3.1-405b 1xdgx-h100 --framework megatron" in run.out
    assert not saved.exists()
    run = planner("check", plan, "--fix", "--cluster", "1xdgx-h100", "--format", "json")
    answer = json.loads(run.out)
    assert answer["repair"] is None
    assert answer["none_with_at_most"] == 5


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
def test_absurd_numbers_are_repaired_or_given_up(plan_of: Any, edit: dict[str, Any]) -> None:
    run = planner("check", plan_of(**edit), "--fix", "--cluster", "2xdgx-h100")
    assert run.code in (0, 3)
    assert "What is wrong" in run.out

"""``planner sweep``: the same results whoever answers, and everything wrong with a file at once."""

import json
from pathlib import Path

import pytest
from in_process import json_of, planner

QUICK = """
model: gpt3-xl
cluster: [1xa100-80, 1xdgx-a100-640]
framework: [accelerate, megatron]
fix: [[tp=1, pp=1, cp=1, recompute=none, micro_batch=1]]
forbid: offload
tokens: 10B
"""


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a sweep that this process answered."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "q.yaml").write_text(QUICK)
    return folder


@pytest.fixture
def results(answered: Path) -> Path:
    file = answered / "q.jsonl"
    if not file.exists():
        run = planner("sweep", str(answered / "q.yaml"), "--workers", "1")
        assert run.code == 0, run.err
        assert "4 cells (2 cluster × 2 framework): 4 with a plan." in run.out
    return file


def test_a_cell_is_what_plan_answers(results: Path) -> None:
    row = json.loads(results.read_text().splitlines()[2])
    best = json_of(*row["command"].split()[1:])["plans"][0]
    for name in ("iter_time_s", "gpus", "mfu"):
        assert row[name] == best[name], name
    billions = row["total_tokens"] / 1e9
    assert row["cost_usd_per_billion_tokens"] * billions == pytest.approx(row["cost_usd"])


@pytest.mark.slow
def test_two_processes_write_the_same_file(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "two.jsonl"
    run = planner("sweep", str(results.with_suffix(".yaml")), "--workers", "2", "-o", str(out))
    assert run.code == 0, run.err
    assert out.read_text() == results.read_text()


def test_show_says_the_same_in_every_form(results: Path) -> None:
    words = ("sweep", "show", str(results), "--best", "cost", "--per", "cluster", "--top", "1")
    assert planner(*words).out.startswith("Cheapest of 4 plans, for each cluster:\n")
    kept = planner(*words, "--where", "gpus=8").out
    assert kept.startswith("Cheapest of 2 plans with gpus=8, for each cluster:\n")
    csv = planner(*words, "--format", "csv").out.splitlines()
    assert csv[0].startswith("rank,")
    place = csv[0].split(",").index("cluster")
    assert [line.split(",")[place] for line in csv[1:]] == ["1xa100-80", "1xdgx-a100-640"]
    found = json_of(*words)
    assert [row["cluster"] for row in found["rows"]] == ["1xa100-80", "1xdgx-a100-640"]
    assert found["choices"] == ["asked_framework"]


def test_a_million_cells_are_refused_with_their_number(tmp_path: Path) -> None:
    batches = ", ".join(map(str, range(1, 1001)))
    file = tmp_path / "big.yaml"
    file.write_text(
        f"model: gpt3-xl\ncluster: 1xdgx-h100\nglobal-batch: [{batches}]\n"
        f"micro-batch: [{batches}]\n"
    )
    run = planner("sweep", str(file))
    assert run.code == 2
    assert "has 1,000,000 cells (1000 global-batch × 1000 micro-batch)" in run.err
    forced = planner("sweep", str(file), "--max-cells", "1000000", "--dry-run")
    assert forced.out == "1,000,000 cells (1000 global-batch × 1000 micro-batch)\n"

"""``planner sweep``: the same results whoever answers, and everything wrong with a file at once."""

import json
from pathlib import Path
from typing import Any

import pytest

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
def results(answered: Path, planner: Any) -> Path:
    file = answered / "q.jsonl"
    if not file.exists():
        run = planner("sweep", str(answered / "q.yaml"), "--workers", "1")
        assert run.code == 0, run.err
        assert "4 cells (2 cluster × 2 framework): 4 with a plan." in run.out
    return file


def test_a_cell_is_what_plan_answers(results: Path, planner: Any) -> None:
    row = json.loads(results.read_text().splitlines()[2])
    best = json.loads(planner(*row["command"].split()[1:], "--format", "json").out)["plans"][0]
    for name in ("iter_time_s", "gpus", "mfu"):
        assert row[name] == best[name], name
    billions = row["total_tokens"] / 1e9
    assert row["cost_usd_per_billion_tokens"] * billions == pytest.approx(row["cost_usd"])


@pytest.mark.slow
def test_two_processes_write_the_same_file(results: Path, planner: Any, tmp_path: Path) -> None:
    out = tmp_path / "two.jsonl"
    run = planner("sweep", str(results.with_suffix(".yaml")), "--workers", "2", "-o", str(out))
    assert run.code == 0, run.err
    assert out.read_text() == results.read_text()


def test_show_says_the_same_in_every_form(results: Path, planner: Any) -> None:
    words = ("sweep", "show", str(results), "--best", "cost", "--per", "cluster", "--top", "1")
    assert planner(*words).out.startswith("Cheapest of 4 plans, for each cluster:\n")
    kept = planner(*words, "--where", "gpus=8").out
    assert kept.startswith("Cheapest of 2 plans with gpus=8, for each cluster:\n")
    csv = planner(*words, "--format", "csv").out.splitlines()
    assert csv[0].startswith("rank,")
    place = csv[0].split(",").index("cluster")
    assert [line.split(",")[place] for line in csv[1:]] == ["1xa100-80", "1xdgx-a100-640"]
    found = json.loads(planner(*words, "--format", "json").out)
    assert [row["cluster"] for row in found["rows"]] == ["1xa100-80", "1xdgx-a100-640"]
    assert found["choices"] == ["asked_framework"]


def test_a_cell_that_is_no_question_and_one_that_fits_nowhere_are_rows(
    tmp_path: Path, planner: Any
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "model: [gpt3-xl, llama3-70b]\ncluster: [1xa100-80, 1xh100-sxm]\nprecision: [bf16, fp8]\n"
        "framework: accelerate\nfix: [[tp=1, pp=1, cp=1, recompute=none]]\nforbid: offload\n"
    )
    run = planner("sweep", str(file), "--workers", "1")
    assert run.code == 0, run.err
    assert "2 refused: --precision: a100-sxm-80 has no fp8 matrix rate" in run.out
    assert "3 where nothing fits: no layout fits" in run.out


def test_all_that_is_wrong_with_a_file_is_said_at_once(tmp_path: Path, planner: Any) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "model: [gpt3-xl, nosuch]\ncluster: 1xa100-80\nglobl-batch: 3\nprecision: [bf16, [bf16]]\n"
        "seq-len: [1k, 1024]\ntp: true\npp: []\n"
    )
    run = planner("sweep", str(file))
    assert run.code == 2
    keys = [line.split("::")[1].split(":")[0] for line in run.err.splitlines()]
    wrong = ["globl-batch", "model[1]", "precision[1]", "seq-len[1]", "tp", "pp"]
    assert keys == wrong
    assert "did you mean global-batch" in run.err


def test_a_value_that_is_wrong_in_every_cell_is_named(tmp_path: Path, planner: Any) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "model: gpt3-xl\ncluster: [1xa100-80, 1xh100-sxm]\nframework: [megatron, megatrn]\n"
    )
    run = planner("sweep", str(file))
    assert run.code == 2
    assert run.err.startswith(f"{file}::framework[1]: ")
    assert "did you mean megatron" in run.err


def test_a_million_cells_are_refused_with_their_number(tmp_path: Path, planner: Any) -> None:
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("q.yaml", "--ray", "auto", "--workers", "2"), "--workers: is of this machine"),
        (("nosuch.yaml",), "nosuch.yaml::file: no such file"),
        (("show", "q.yaml"), "q.yaml::RESULTS: was not made by planner sweep"),
        (("show", "nosuch.jsonl"), "nosuch.jsonl::RESULTS: no such file"),
        (("q.yaml", "-o", "precious.jsonl"), "exists and is no result of a sweep; --force"),
    ],
)
def test_what_cannot_be_used_is_named(
    answered: Path, planner: Any, monkeypatch: pytest.MonkeyPatch, words: Any, message: str
) -> None:
    monkeypatch.chdir(answered)
    Path("precious.jsonl").write_text("mine")
    run = planner("sweep", *words)
    assert (run.code, run.out) == (2, "")
    assert message in run.err

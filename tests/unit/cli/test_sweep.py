"""``planner sweep``: the same file whoever answers, wherever it was interrupted."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.cli import sweep_cell
from planner.cli.sweep import MAX_CELLS

pytest.importorskip("polars")
QUICK = """
model: gpt3-xl
cluster: [1xa100-80, 1xdgx-a100-640]
framework: [accelerate, megatron]
global-batch: [64, 128, 256]
fix: [[tp=1, pp=1, cp=1, recompute=none, micro_batch=1]]
forbid: offload
tokens: 10B
"""
ALL = 12
PATIENCE_S = 300.0
"""A machine may be busy."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "q.yaml").write_text(QUICK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one worker, beside the folder of its answers."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "q.yaml").write_text(QUICK)
    run = start(folder, "q.yaml", "--workers", "1").communicate()
    assert (folder / "q.parquet").exists(), run
    return folder


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Address and session of a Ray cluster that asks for a token, as Ray starts them."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-this-test-" * 4)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ("--node-ip-address", "127.0.0.1", "--port", address.rpartition(":")[2])
    head = ("start", "--head", "--block", "--num-cpus", "2", "--include-dashboard", "false")
    # a socket's path may have 107 bytes, too few for pytest's own folders
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as scratch:
        command = ("-m", "ray.scripts.scripts", *head, *words, "--temp-dir", scratch)
        cluster = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            wait_for(lambda: answers(address), cluster)
            yield address, cluster.pid
        finally:
            cluster.terminate()
            cluster.wait()


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "planner.cli.app", "sweep", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )


def parts(folder: Path) -> int:
    return len(list(folder.rglob("*.json")))


def wait_for(said: Callable[[], Any], run: subprocess.Popen[Any]) -> Any:
    """What becomes true while a command runs."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and run.poll() is None:
        if found := said():
            return found
        time.sleep(0.02)
    raise AssertionError(run.communicate())


def processes_named(beginning: str, group: int) -> list[int]:
    """Processes of a session whose command begins so."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text()
            session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
        except (OSError, ValueError):
            continue
        if session == group and command.startswith(beginning):
            found.append(int(path.name))
    return found


def test_every_cell_has_a_row_in_the_order_of_the_file(answered: Path, planner: Any) -> None:
    run = planner("sweep", "show", str(answered / "q.parquet"), "--per", "none", "--top", "99")
    assert run.out.startswith(f"Fastest of {ALL} plans:")
    import polars as pl

    rows = pl.read_parquet(answered / "q.parquet")
    assert rows["status"].to_list() == ["plan"] * ALL
    assert rows["global_batch"].to_list() == [64, 128, 256] * 4
    assert rows["asked_framework"].to_list() == (["accelerate"] * 3 + ["megatron"] * 3) * 2
    assert (rows["gpus"] <= rows["dp"]).all()
    assert rows["command"][0] == (
        "planner plan gpt3-xl 1xa100-80 --framework=accelerate --global-batch=64 --fix=tp=1 "
        "--fix=pp=1 --fix=cp=1 --fix=recompute=none --fix=micro_batch=1 "
        "--forbid=offload --tokens=10B"
    )


def test_a_cell_is_what_plan_answers(answered: Path, planner: Any) -> None:
    import polars as pl

    row = pl.read_parquet(answered / "q.parquet").row(4, named=True)
    words = row["command"].split()[1:]
    best = json.loads(planner(*words, "--format", "json").out)["plans"][0]
    for name in ("iter_time_s", "gpus", "mfu", "cost_usd", "days", "gpu_hours"):
        assert row[name] == best[name], name
    billions = row["total_tokens"] / 1e9
    assert row["cost_usd_per_billion_tokens"] * billions == pytest.approx(row["cost_usd"])


def test_a_run_that_was_killed_and_interrupted_goes_on_to_the_same_file(
    answered: Path, folder: Path, planner: Any
) -> None:
    run = start(folder, "q.yaml", "--workers", "1")
    wait_for(lambda: parts(folder) >= 1, run)
    run.kill()
    run.communicate()
    kept = parts(folder)

    run = start(folder, "q.yaml", "--workers", "2")
    wait_for(lambda: parts(folder) > kept, run)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate()
    assert run.returncode == 130
    assert "is kept in q.cells; the same command goes on from there" in errors
    assert kept < parts(folder) < ALL
    assert not (folder / "q.parquet").exists()

    kept = parts(folder)
    out, _ = start(folder, "q.yaml", "--workers", "2").communicate()
    assert f"{ALL} cells (2 cluster × 2 framework × 3 global-batch): {ALL} with a plan." in out
    assert re.search(
        rf"^{ALL - kept} answered in .* cells/s on 2 workers\), {kept} known\.$", out, re.M
    )
    assert (folder / "q.parquet").read_bytes() == (answered / "q.parquet").read_bytes()
    assert f"All {ALL} answers were known." in planner("sweep", "q.yaml").out


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_an_existing_ray_cluster_with_a_killed_worker_writes_the_same_file(
    answered: Path, folder: Path, ray_cluster: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, group = ray_cluster
    monkeypatch.delenv("RAY_AUTH_MODE")
    _, refused = start(folder, "q.yaml", "--ray", address).communicate()
    assert f"--ray: no Ray cluster at {address}: it asks for a token; set RAY_AUTH_" in refused
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    run = start(folder, "q.yaml", "--ray", address, "--format", "json")
    wait_for(lambda: parts(folder) >= 1, run)
    for one in wait_for(lambda: processes_named("ray::answer", group), run)[:1]:
        os.kill(one, signal.SIGKILL)
    out, errors = run.communicate()
    assert run.returncode == 0, errors
    assert json.loads(out)["by_status"]["plan"] == ALL
    assert "worker died" in errors
    assert (folder / "q.parquet").read_bytes() == (answered / "q.parquet").read_bytes()


def test_the_key_is_of_what_files_hold_and_not_of_where_they_lie(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.catalog.models import model_file

    text = model_file("gpt3-xl").read_text()
    for name, layers in (("a", 24), ("b", 24), ("c", 12)):
        Path(name).mkdir()
        lines = re.sub(r"^num_layers: .*$", f"num_layers: {layers}", text, flags=re.M)
        Path(name, "m.yaml").write_text(lines)

    def key(*words: str) -> str:
        return sweep_cell.key_of(words)

    keys = [key("--seq-len=1024", "--", f"{folder}/m.yaml", "1xa100-80") for folder in "ab"]
    assert keys[0] == keys[1]
    others = [
        key("--seq-len=1024", "--", "c/m.yaml", "1xa100-80"),
        key("--seq-len=2048", "--", "a/m.yaml", "1xa100-80"),
        key("--seq-len=1024", "--", "a/m.yaml", "2xa100-80"),
    ]
    monkeypatch.setattr(sweep_cell, "fingerprint", lambda: "another planner")
    others.append(key("--seq-len=1024", "--", "a/m.yaml", "1xa100-80"))
    assert len({keys[0], *others}) == 5


def test_a_cell_that_is_no_question_and_one_that_fits_nowhere_are_rows(
    folder: Path, planner: Any
) -> None:
    Path("r.yaml").write_text(
        "model: [gpt3-xl, llama3-70b]\ncluster: [1xa100-80, 1xh100-sxm]\nprecision: [bf16, fp8]\n"
        "framework: accelerate\nfix: [[tp=1, pp=1, cp=1, recompute=none]]\nforbid: offload\n"
    )
    run = planner("sweep", "r.yaml", "--workers", "1")
    assert run.code == 0, run.err
    assert "8 cells" in run.out
    assert "2 refused: --precision: a100-sxm-80 has no fp8 matrix rate" in run.out
    assert "3 where nothing fits: no layout fits" in run.out


def test_a_million_cells_are_refused_with_their_number(folder: Path, planner: Any) -> None:
    lists = "\n".join(
        f"{n}: [{', '.join(map(str, range(1, 101)))}]" for n in ("tp", "pp", "seq-len")
    )
    Path("big.yaml").write_text(f"model: gpt3-xl\ncluster: 1xdgx-h100\n{lists}\n")
    run = planner("sweep", "big.yaml")
    assert run.code == 2
    assert run.err == (
        "big.yaml::cells: has 1,000,000 cells (100 tp × 100 pp × 100 seq-len); at most "
        f"{MAX_CELLS:,} are asked; --max-cells 1000000 asks them all\n"
    )
    forced = planner("sweep", "big.yaml", "--max-cells", "1000000", "--dry-run")
    assert forced.out == "1,000,000 cells (100 tp × 100 pp × 100 seq-len)\n"


def test_only_results_of_a_sweep_are_replaced(folder: Path, planner: Any) -> None:
    (folder / "q.parquet").write_text("precious")
    run = planner("sweep", "q.yaml")
    assert run.code == 2
    assert "q.parquet::--out: exists and is no result of a sweep; --force replaces it" in run.err
    assert (folder / "q.parquet").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("q.yaml", "--ray", "127.0.0.1:1"), "--ray: nobody answers at 127.0.0.1:1"),
        (("q.yaml", "--ray", "auto", "--workers", "2"), "--workers: is of this machine"),
        (("nosuch.yaml",), "nosuch.yaml::file: no such file"),
        (("show", "q.yaml"), "q.yaml::RESULTS: is no result of a sweep: no Parquet"),
        (("show", "nosuch.parquet"), "nosuch.parquet::RESULTS: no such file"),
    ],
)
def test_what_cannot_be_used_is_named(
    folder: Path, planner: Any, words: tuple[str, ...], message: str
) -> None:
    run = planner("sweep", *words)
    assert (run.code, run.out) == (2, "")
    assert message in run.err


def test_show_names_every_wrong_option_at_once(answered: Path, planner: Any) -> None:
    file = str(answered / "q.parquet")
    run = planner(
        "sweep", "show", file, "--best", "x", "--under", "dys=3", "--per", "mdel", "--changes", "no"
    )
    assert [line.split("::")[1].split(":")[0] for line in run.err.splitlines()] == [
        "--best",
        "--under",
        "--per",
        "--changes",
    ]
    assert "did you mean days?" in run.err
    for text in ("days", "days=x", "days=nan"):
        err = planner("sweep", "show", file, "--under", text).err
        assert f"--under: must be COLUMN=NUMBER, such as days=30; given '{text}'" in err
    missed = planner("sweep", "show", file, "--under", "days=0.001")
    assert (missed.code, missed.err) == (3, f"no plan of {ALL} in {file} keeps the conditions\n")


def test_show_says_the_same_in_every_form(answered: Path, planner: Any) -> None:
    words = ("sweep", "show", str(answered / "q.parquet"), "--best", "cost", "--changes", "cluster")
    table = planner(*words).out
    assert table.startswith("Cheapest along cluster:\n")
    kept = planner(*words, "--under", "gpus=8", "--where", "days > 0").out
    assert kept.startswith("Cheapest along cluster with gpus <= 8 and days > 0:\n")
    csv = planner(*words, "--format", "csv").out.splitlines()
    assert csv[0].startswith("cluster,is_change,lead,status,")
    assert [line.split(",")[0] for line in csv[1:]] == ["1xa100-80", "1xdgx-a100-640"]
    found = json.loads(planner(*words, "--format", "json").out)
    assert [row["cluster"] for row in found["rows"]] == ["1xa100-80", "1xdgx-a100-640"]
    assert found["choices"] == ["asked_framework", "global_batch"]


def test_files_are_found_from_anywhere_and_shown_as_given(folder: Path, planner: Any) -> None:
    from planner.catalog.models import model_file
    from planner.cli.sweep_file import read_sweep

    Path("own.yaml").write_text(model_file("gpt3-xl").read_text())
    Path("s.yaml").write_text("model: [own.yaml, GPT3-XL]\ncluster: 1xa100-80\n")
    first, second = read_sweep(Path("s.yaml")).cells()
    assert first.question == ("--", str(folder / "own.yaml"), "1xa100-80")
    assert first.command == "planner plan own.yaml 1xa100-80"
    assert second.places[0] == "gpt3-xl"


@pytest.mark.parametrize("change", ["num_layers: 12", None], ids=["changed", "gone"])
def test_whoever_has_another_file_says_so_and_answers_nothing(
    folder: Path, change: str | None
) -> None:
    from planner.catalog.models import model_file
    from planner.sweep.cells import Task

    text = model_file("gpt3-xl").read_text()
    path = folder / f"own-{change is None}.yaml"
    path.write_text(text)
    words = ("--", str(path), "1xa100-80")
    key = sweep_cell.key_of(words)
    sweep_cell._content.cache_clear()
    path.write_text(re.sub(r"^num_layers: .*$", change or "", text, flags=re.M))
    if change is None:
        path.unlink()
    row = sweep_cell.answer(Task(key=key, words=words))
    assert row["status"] == "differs"
    assert str(path) in row["reason"]

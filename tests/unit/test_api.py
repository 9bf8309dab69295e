"""``planner.plan``: the command's answer as Python objects."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from page_text import read_page
from rich.console import Console
from typer.testing import CliRunner

import planner
from planner.answers.plan_file import load_plan
from planner.cli.app import app
from planner.errors import InputError, NothingFitsError

DOCS = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture(scope="module")
def answer() -> planner.Planned:
    return planner.plan("llama3.2-1b", "8xh100", seq_len=2048, global_batch=64, fix={"tp": "1|2"})


def test_it_is_the_answer_of_the_command(answer: planner.Planned) -> None:
    words = ["plan", "llama3.2-1b", "8xh100", "--seq-len", "2048", "--global-batch", "64"]
    words += ["--tp", "1|2", "--format"]
    run = CliRunner().invoke(app, [*words, "json"])
    ours, theirs = json.loads(json.dumps(answer.to_dict())), json.loads(run.output)
    for each in (ours, theirs):
        del each["search"]
    assert ours == theirs
    table = list(csv.DictReader(io.StringIO(CliRunner().invoke(app, [*words, "csv"]).output)))
    shown = [
        {name: "" if value is None else str(value) for name, value in row.items()}
        for row in answer.to_rows()
    ]
    assert shown == table


def test_plans_are_best_first(answer: planner.Planned) -> None:
    assert answer.best is answer.plans[0]
    assert answer.best.strategy.tp in (1, 2)
    ranks = [row["rank"] for row in answer.to_rows() if row["table"] == "plans"]
    assert ranks == list(range(1, len(answer.plans) + 1))
    assert re.fullmatch(r"<llama3\.2-1b on 8xh100: .* MFU .*%; \d layouts>", repr(answer))


def test_it_is_shown_in_terminals_and_notebooks(answer: planner.Planned) -> None:
    text = io.StringIO()
    Console(file=text, width=100).print(answer)
    assert "Best layouts on 8 GPUs" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 100
    assert "Best layouts on 8 GPUs" in str(answer)
    assert max(map(len, str(answer).splitlines()[:-2])) <= 80
    assert answer._repr_html_().startswith("<pre")
    assert "Best layouts" in answer._repr_html_()


def test_a_frame_has_the_rows(answer: planner.Planned) -> None:
    pandas = pytest.importorskip("pandas")
    frame = answer.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["iter_time_s"]) == [row["iter_time_s"] for row in answer.to_rows()]


def test_the_best_plan_is_saved_and_written_as_files(
    answer: planner.Planned, tmp_path: Path
) -> None:
    saved = answer.save(tmp_path / "best.yaml")
    assert load_plan(saved)[1] == answer.best.strategy
    with pytest.raises(InputError, match="--force"):
        answer.save(saved)
    written = answer.emit("megatron", tmp_path / "run")
    assert {path.name for path in written} >= {"megatron.args", "launch.sh", "README.md"}
    assert all(path.is_file() for path in written)


def test_what_is_wrong_is_raised_all_at_once() -> None:
    with pytest.raises(InputError) as caught:
        planner.plan("llama3.1-9b", "8xh101", framework="fsdp")
    assert len(caught.value.problems) == 3
    with pytest.raises(NothingFitsError, match="nothing fits"):
        planner.plan("llama3.1-405b", "8xh100")
    with pytest.raises(TypeError, match="no option 'seqlen'; did you mean seq_len"):
        planner.plan("llama3.2-1b", "8xh100", seqlen=2048)
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        planner.plam  # noqa: B018


def test_every_question_is_asked_as_by_its_command(tmp_path: Path) -> None:
    usual = {"seq_len": 2048, "global_batch": 64}
    question = ("llama3.2-1b", "8xh100")
    memory = planner.memory(*question, zero_stage=1, **usual)
    assert memory.found.peak_bytes == memory.to_dict()["peak_bytes"]
    assert "8 GPUs: dp=8, ZeRO-1" in str(memory)
    assert planner.why(*question, tp=8, **usual).to_dict()["schema"] == "why"
    assert "1 GPU (of a dgx-h100)" in str(planner.size("llama3.2-1b", "dgx-h100", **usual))
    run = planner.emit(*question, to="deepspeed", out=tmp_path / "run", **usual)
    assert (tmp_path / "run" / run.found[0].name).is_file()
    found = planner.check(tmp_path / "run" / run.found[0].name, model=question[0])
    assert found.to_dict()["exit_code"] == found.exit_code == 0
    for ask in (planner.memory, planner.why, planner.size):
        with pytest.raises(TypeError, match="no option 'nonsense'"):
            ask(*question, nonsense=True)
    with pytest.raises(InputError, match="--deadline: not taken here"):
        planner.why(*question, tp=2, deadline="30d")


def test_the_page_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    assert "s an iteration" in capsys.readouterr().out
    assert (tmp_path / "run" / "launch.sh").is_file()


def test_its_page_is_written_once(answer: planner.Planned, tmp_path: Path) -> None:
    page = answer.report(tmp_path / "best.html")
    assert read_page(page.read_text(encoding="utf-8")).tags.count("h1") == 1
    with pytest.raises(InputError, match="--force"):
        answer.report(page)
    assert answer.report(page, force=True) == page


def test_options_of_the_layout_narrow_the_search_and_a_plan_fits_a_line() -> None:
    found = planner.plan("gpt3-xl", "1xdgx-a100-640", global_batch=64, tp=2, top=1)
    assert found.best.strategy.tp == 2
    assert found.answer.narrowing.texts == ("--fix tp=2",)
    assert len(repr(found.best)) < 80
    assert repr(found.best).startswith("Plan(megatron, 8 GPUs, ")

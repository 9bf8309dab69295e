"""planner.toml and [tool.planner]: the nearest upwards, held to its keys."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.check.settings import Settings, settings_for
from planner.errors import InputError

CASES = yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text("utf-8"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a folder in it; commands run in the outer one."""
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems_of(path: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        settings_for(path)
    return [f"{one.key}: {one.message}" for one in caught.value.problems]


@pytest.mark.parametrize(
    ("files", "path", "read"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_the_nearest_settings_are_read(
    project: Path, files: dict[str, str], path: str, read: dict[str, Any]
) -> None:
    for name, text in files.items():
        (project / name).write_text(text)
    assert settings_for(Path(path)) == Settings(**read)


def test_a_name_longer_than_any_file_s_is_a_name(project: Path) -> None:
    (project / "planner.toml").write_text(f'model = "{"m" * 5000}"')
    assert settings_for(Path("f" * 5000) / "a.json").model == "m" * 5000


def test_models_and_clusters_that_are_files_lie_beside_the_settings(project: Path) -> None:
    (project / "planner.toml").write_text('model = "m.yaml"\ncluster = "1xdgx-h100"')
    (project / "m.yaml").write_text("")
    settings = settings_for(Path("configs/a.json"))
    assert settings.model == str(project / "m.yaml")
    assert settings.cluster == "1xdgx-h100"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "planner.toml",
            'modle = "a"\ngpus = 0\nfail-on = "never"\nignore = 3',
            ["gpus: ", "fail-on: ", "ignore: ", "modle: .* did you mean model\\?$"],
        ),
        (
            "pyproject.toml",
            "[tool.planner]\nseq-len = 1\n",
            ["tool.planner.seq-len: unknown key.* did you mean seq_len"],
        ),
        (
            "planner.toml",
            'seq_len = "8k"\nglobal_batch = 0',
            ["global_batch: must be from 1 to 1,000,000,000 sequences; given 0$"],
        ),
    ],
)
def test_every_unknown_key_and_wrong_value_is_named(
    project: Path, name: str, text: str, said: list[str]
) -> None:
    (project / name).write_text(text)
    problems = problems_of(Path("a.json"))
    assert len(problems) == len(said)
    assert all(map(re.match, said, problems)), problems


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("planner.toml", b"model = "),
        ("planner.toml", b"model = '\xff'"),
        ("planner.toml", b"a = " + b"[" * 100_000),
        ("planner.toml", b"gpus = " + b"9" * 5000),
        ("pyproject.toml", b"[tool]\nplanner = 3\n"),
        ("pyproject.toml", b"tool = "),
    ],
)
def test_what_is_no_toml_is_an_input_error(project: Path, name: str, content: bytes) -> None:
    (project / name).write_bytes(content)
    assert problems_of(Path("a.json"))

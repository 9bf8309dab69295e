"""planner.toml and [tool.planner]: the nearest upwards, held to its keys."""

from pathlib import Path

import pytest

from planner.check.settings import Settings, settings_for
from planner.errors import InputError

ALL = """
model = "llama3-8b"
cluster = "2xdgx-h100"
framework = "auto"
gpus = 16
seq_len = 4096
global_batch = 128
fail-on = "warning"
ignore = ["advice", "memory.tight"]
"""


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


def test_every_key_is_read(project: Path) -> None:
    (project / "planner.toml").write_text(ALL)
    settings = settings_for(project / "configs" / "a.json")
    assert (settings.model, settings.cluster, settings.framework) == (
        "llama3-8b",
        "2xdgx-h100",
        "auto",
    )
    assert (settings.gpus, settings.seq_len, settings.global_batch) == (16, 4096, 128)
    assert settings.fail_on == "warning"
    assert settings.ignore == ("advice", "memory.tight")


def test_without_a_file_nothing_is_said(project: Path) -> None:
    assert settings_for(Path("configs/a.json")) == Settings()


def test_the_nearest_file_upwards_counts(project: Path) -> None:
    (project / "planner.toml").write_text('model = "outer"')
    (project / "configs" / "planner.toml").write_text('model = "inner"')
    assert settings_for(Path("configs/a.json")).model == "inner"
    assert settings_for(Path("a.json")).model == "outer"


def test_a_file_elsewhere_falls_back_on_the_present_folder(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (project / "planner.toml").write_text('model = "here"')
    assert settings_for(tmp_path_factory.mktemp("elsewhere") / "a.json").model == "here"


def test_a_section_of_the_projects_file_counts(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.planner]\nmodel = "ours"\n')
    assert settings_for(Path("a.json")).model == "ours"


def test_a_projects_file_without_the_section_is_passed_over(project: Path) -> None:
    (project / "planner.toml").write_text('model = "outer"')
    (project / "configs" / "pyproject.toml").write_text("[tool.other]\nmodel = 1\n")
    assert settings_for(Path("configs/a.json")).model == "outer"


def test_the_own_file_comes_before_the_projects(project: Path) -> None:
    (project / "planner.toml").write_text('model = "own"')
    (project / "pyproject.toml").write_text('[tool.planner]\nmodel = "project"\n')
    assert settings_for(Path("a.json")).model == "own"


def test_models_and_clusters_that_are_files_lie_beside_the_settings(project: Path) -> None:
    (project / "planner.toml").write_text('model = "m.yaml"\ncluster = "1xdgx-h100"')
    (project / "m.yaml").write_text("")
    settings = settings_for(Path("configs/a.json"))
    assert settings.model == str(project / "m.yaml")
    assert settings.cluster == "1xdgx-h100"


def test_names_that_no_file_can_have_are_names(project: Path) -> None:
    (project / "planner.toml").write_text(f'model = "{"m" * 5000}"\ncluster = "a\\u0000b"')
    settings = settings_for(Path("f" * 5000) / "a.json")
    assert (settings.model, settings.cluster) == ("m" * 5000, "a\0b")


def test_every_unknown_key_and_wrong_value_is_named(project: Path) -> None:
    (project / "planner.toml").write_text('modle = "a"\ngpus = 0\nfail-on = "never"\nignore = 3')
    problems = problems_of(Path("a.json"))
    assert [text.partition(":")[0] for text in problems] == ["gpus", "fail-on", "ignore", "modle"]
    assert problems[-1].endswith("did you mean model?")


def test_keys_of_a_projects_file_are_named_in_full(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.planner]\nseq-len = 1\n")
    (problem,) = problems_of(Path("a.json"))
    assert problem.startswith("tool.planner.seq-len: unknown key")
    assert "did you mean seq_len" in problem


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


def test_tool_that_is_no_table_has_no_section(project: Path) -> None:
    (project / "pyproject.toml").write_text("tool = 3\n")
    assert settings_for(Path("a.json")) == Settings()


def test_values_are_those_of_the_options(project: Path) -> None:
    (project / "planner.toml").write_text('seq_len = "8k"\nglobal_batch = 0')
    (problem,) = problems_of(Path("a.json"))
    assert problem == "global_batch: must be from 1 to 1,000,000,000 sequences; given 0"
    (project / "planner.toml").write_text('seq_len = "8k"')
    assert settings_for(Path("a.json")).seq_len == 8192

"""The release workflow and the container file: what they name is there, and no more is allowed."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import __version__

ROOT = Path(__file__).resolve().parents[2]
INSTRUCTION = re.compile(r"^([A-Z]+) (.*)$", re.MULTILINE)


@pytest.fixture
def release() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    return dict(yaml.load(text, Loader=yaml.BaseLoader))


@pytest.fixture
def image() -> list[tuple[str, str]]:
    return INSTRUCTION.findall((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"])


def test_only_tags_of_versions_release(release: dict[str, Any]) -> None:
    assert release["on"] == {"push": {"tags": ["v*"]}}


def test_only_the_job_that_publishes_can_prove_who_it_is_and_it_runs_no_code(
    release: dict[str, Any],
) -> None:
    assert release["permissions"] == {"contents": "read"}
    assert "permissions" not in release["jobs"]["build"]
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    assert all("run" not in step for step in publish["steps"])


def test_no_secret_is_stored_and_no_expression_pasted_into_a_script(
    release: dict[str, Any],
) -> None:
    assert "secrets." not in str(release)
    scripts = [step["run"] for step in release["jobs"]["build"]["steps"] if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]


def test_what_is_built_is_what_is_published(release: dict[str, Any]) -> None:
    def artifact(job: str, action: str) -> dict[str, str]:
        (step,) = [one for one in release["jobs"][job]["steps"] if action in one.get("uses", "")]
        return {name: step["with"][name] for name in ("name", "path")}

    assert artifact("build", "upload-artifact") == artifact("publish", "download-artifact")


def test_the_version_is_stated_once() -> None:
    assert "version" not in project()
    assert project()["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_the_image_is_made_from_files_that_the_build_may_see(image: list[tuple[str, str]]) -> None:
    words = [text.split() for name, text in image if name == "COPY" and "--from" not in text]
    copied = {source for line in words for source in line[:-1]}
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert copied == {line[1:] for line in ignored if line.startswith("!")}


def test_the_image_holds_all_that_the_wheel_is_built_from(image: list[tuple[str, str]]) -> None:
    copied = {word for name, text in image if name == "COPY" for word in text.split()}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], project()["readme"]}
    assert needed | set(project()["license-files"]) <= copied


def test_the_image_runs_the_program_and_not_as_root(image: list[tuple[str, str]]) -> None:
    last = dict(image)
    assert last["USER"] in last["RUN"]
    assert last["USER"] != "root"
    assert last["ENTRYPOINT"] == '["planner"]'
    assert "planner" in project()["scripts"]

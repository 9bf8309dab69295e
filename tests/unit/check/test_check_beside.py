"""Files that a launcher takes beside a configuration: DeepSpeed's hostfile."""

from pathlib import Path

import pytest

from planner.check.check import check_file
from planner.check.result import FileResult, exit_code
from planner.query.from_file import Request

HOSTS = "# two nodes\nworker-0 slots=8\nworker-1 slots=8\n"


def check(folder: Path, text: str, **request: object) -> FileResult:
    path = folder / "hostfile"
    path.write_text(text, encoding="utf-8")
    return check_file(str(path), Request(**request))  # type: ignore[arg-type]


def test_a_sound_hostfile_needs_no_model(tmp_path: Path) -> None:
    result = check(tmp_path, HOSTS)
    assert (result.format, result.num_gpus) == ("deepspeed hostfile", 16)
    assert not result.findings
    assert exit_code([result]) == 0


def test_what_the_launcher_refuses_is_said_at_its_line(tmp_path: Path) -> None:
    result = check(tmp_path, HOSTS + "worker-0 slots=4\n")
    assert [(each.rule, each.line) for each in result.findings] == [
        ("deepspeed.hostfile_duplicate", 4)
    ]
    assert exit_code([result]) == 1


@pytest.mark.parametrize(
    ("request_of", "said"),
    [
        ({"num_gpus": 8}, ["the job has 8 GPUs; given 16"]),
        ({"num_gpus": 16}, []),
        ({"cluster": "1xdgx-h100"}, ["the cluster has 8 GPUs; given 16"]),
        ({"model": "llama3-8b", "cluster": "4xdgx-h100"}, []),
    ],
)
def test_its_slots_are_those_of_the_job(
    tmp_path: Path, request_of: dict[str, object], said: list[str]
) -> None:
    assert [each.message for each in check(tmp_path, HOSTS, **request_of).findings] == said


@pytest.mark.parametrize("framework", ["deepspeed", "auto"])
def test_it_is_recognised_by_its_first_entry(tmp_path: Path, framework: str) -> None:
    assert check(tmp_path, HOSTS, framework=framework).format == "deepspeed hostfile"


def test_another_framework_does_not_read_it(tmp_path: Path) -> None:
    request = {"framework": "megatron", "model": "llama3-8b", "cluster": "2xdgx-h100"}
    assert check(tmp_path, HOSTS, **request).format != "deepspeed hostfile"

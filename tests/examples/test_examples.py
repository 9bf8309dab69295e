"""Example files: everything under positive/ loads; under negative/ fails as it says itself.

YAML says so in comments at its head, JSON under the key ``_expects``. refused.yaml changes sound
files: each problem, and no other, is said of its key.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.answers.plan_file import load_plan
from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.errors import InputError
from planner.sweep.sweep import check_values, read_sweep

FOLDER = Path(__file__).parent


def load_sweep(path: Path) -> None:
    check_values(read_sweep(path), path)


LOADERS: dict[str, Callable[[Path], object]] = {
    "models": load_model,
    "configs": load_model,
    "clusters": load_cluster,
    "plans": load_plan,
    "sweeps": load_sweep,
}
EXPECTS = "# expects: "
SUFFIXES = (".yaml", ".json")


def files(kind: str) -> list[Path]:
    return sorted(path for path in (FOLDER / kind).glob("*/*") if path.suffix in SUFFIXES)


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def expected_messages(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        messages: list[str] = json.loads(text)["_expects"]
        return messages
    lines = text.splitlines()
    return [line.removeprefix(EXPECTS) for line in lines if line.startswith(EXPECTS)]


@pytest.mark.parametrize("path", files("positive"), ids=name)
def test_positive_example_loads(path: Path) -> None:
    LOADERS[path.parent.name](path)


@pytest.mark.parametrize("path", files("negative"), ids=name)
def test_negative_example_fails_with_the_messages_it_names(path: Path) -> None:
    expected = expected_messages(path)
    assert expected, "a negative example names what it expects"
    with pytest.raises(InputError) as error:
        LOADERS[path.parent.name](path)
    text = str(error.value)
    assert all(message in text for message in expected), text
    assert len(error.value.problems) >= len(expected)


TABLES = yaml.safe_load((FOLDER / "refused.yaml").read_text(encoding="utf-8"))
REFUSED = [
    pytest.param(kind, *row, id=f"{kind}-{'-'.join(row[1])}")
    for kind, table in TABLES.items()
    for row in table["refused"]
]


@pytest.mark.parametrize(("kind", "changes", "messages"), REFUSED)
def test_a_changed_file_is_refused_by_its_keys(
    kind: str, changes: dict[str, Any], messages: dict[str, str], tmp_path: Path
) -> None:
    table = TABLES[kind]
    given = {k: v for k, v in (table["sound"] | changes).items() if v != "absent"}
    path = tmp_path / table["name"]
    path.write_text(json.dumps(given), encoding="utf-8")
    with pytest.raises(InputError) as error:
        LOADERS[kind](path)
    problems = {problem.key: problem.message for problem in error.value.problems}
    assert {problem.where for problem in error.value.problems} == {str(path)}
    assert problems.keys() == messages.keys()
    for key, message in messages.items():
        assert message in problems[key]

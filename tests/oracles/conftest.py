"""Oracles: the planner's numbers against the libraries that train models, run on a CPU.

They need consumers that the planner itself does not depend on. Where one is missing every file
in this folder fails and says how to get it; nothing is skipped but the page in a browser, which no
package brings.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starts import Starts, running

HERE = Path(__file__).resolve().parent
ORACLES = HERE.parents[1] / ".oracles"
MEGATRON = Path(os.environ.get("MEGATRON_PATH") or ORACLES)
"""Folder that holds the package ``megatron``, as scripts/oracles makes it."""
BROUGHT = {"bridge": "megatron/bridge/__init__.py", "skypilot": "bin/sky"}
"""Folders beside it, with a file of each."""
CONSUMERS = (
    "accelerate",
    "deepspeed",
    "kubeflow_trainer_api",
    "torch",
    "torchtitan",
    "transformers",
)
INSTALL = "pip install -e '.[oracles]' && python scripts/oracles"
THIRD_PARTY_WARNINGS = tuple(rf"ignore:::{name}(\.|$)" for name in (*CONSUMERS, "megatron"))
"""Warnings that the consumers raise about their own code; the planner's stay errors."""


def missing_consumers() -> list[str]:
    missing = [name for name in CONSUMERS if importlib.util.find_spec(name) is None]
    if not (MEGATRON / "megatron" / "core" / "__init__.py").is_file():
        missing.append(f"megatron-core in {MEGATRON} (or in $MEGATRON_PATH)")
    for name, file in BROUGHT.items():
        if not (ORACLES / name / file).is_file():
            missing.append(f"{name} in .oracles/{name}")
    return missing


class MissingConsumers(pytest.Item):
    """Stands in for the tests of a file whose consumers are not there, and fails."""

    def runtest(self) -> None:
        missing = ", ".join(missing_consumers())
        pytest.fail(f"not installed: {missing}; install with `{INSTALL}`", pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class FileWithoutConsumers(pytest.File):
    """A test file that is not imported because its imports would fail."""

    def collect(self) -> Iterator[pytest.Item]:
        yield MissingConsumers.from_parent(self, name="consumers_are_installed")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> FileWithoutConsumers | None:
    if not missing_consumers():
        return None
    file: FileWithoutConsumers = FileWithoutConsumers.from_parent(parent, path=module_path)
    return file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            for warning in THIRD_PARTY_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def megatron_path() -> Path:
    return MEGATRON


@pytest.fixture(scope="session")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    """One process of Megatron-LM's code, which files share: its import takes as long as a file."""
    with running("megatron_start.py", tmp_path_factory.mktemp("megatron"), MEGATRON) as starts:
        yield starts

"""Files that once raised, hung or crashed the program: each ends in findings, and soon."""

import shutil
import time
from pathlib import Path

import pytest
from any_file import kinds, name_for, use

FOLDER = Path(__file__).parent / "fuzz"
FILES = sorted(path for path in FOLDER.glob("*/*") if path.name != "planner.toml")
LIMIT_S = 10  # of the processor; what once hung took minutes


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_that_was_found_ends_in_findings(path: Path, tmp_path: Path) -> None:
    kind = path.parent.name
    copy = tmp_path / name_for(kind)
    shutil.copyfile(path, copy)
    start = time.process_time()
    use(kinds()[kind], copy)
    assert time.process_time() - start < LIMIT_S

"""The script that fuzzes on runs as it is: it reaches into modules by name."""

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).resolve().parents[2] / "scripts" / "fuzz"


def test_the_fuzzing_script_reads_plans_and_finds_nothing(tmp_path: Path) -> None:
    options = ["--only", "plan", "--inputs", "20", "--out", str(tmp_path / "found")]
    done = subprocess.run(
        [sys.executable, str(FUZZ), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("20 inputs in")
    assert not (tmp_path / "found").exists()

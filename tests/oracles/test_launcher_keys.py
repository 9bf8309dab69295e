"""The lists of known keys are those of the installed packages."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "launcher_keys.py"


def test_the_files_of_keys_are_what_the_packages_give() -> None:
    for path, text in runpy.run_path(str(SCRIPT))["texts"]().items():
        assert path.read_text(encoding="utf-8") == text, f"run scripts/{SCRIPT.name}"

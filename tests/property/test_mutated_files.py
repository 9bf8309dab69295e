"""Spoilt files of every kind: findings or an error for users, valid reports, nothing else.

20,000 in all, always the same ones, or the first of them: more of the kinds that take less time.
scripts/fuzz goes on.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random

import pytest
from any_file import Kind, kinds, name_for, read_format, use
from depth import of_all
from mutations import mutated

from planner.formats.registry import format_names

SLOW = of_all(20)  # Files that are priced, repaired and reported in five forms
COUNTS = {"settings": 6000, "hardware": 4000, "config": 4500, "model": 1500, "cluster": 600}
COUNTS |= {"plan": 250}
TOTAL = of_all(20_000)
WHOLE = {name: of_all(COUNTS[name]) if name in COUNTS else SLOW for name in kinds()}
READ = (TOTAL - sum(WHOLE.values())) // len(format_names())
"""Files of every format that are read only."""


def spoilt(kind: Kind, number: int, folder: Path, salt: str) -> Iterator[Path]:
    """So many files; each is written over the one before."""
    path = folder / name_for(kind.name)
    seeds = [seed.read_bytes() for seed in kind.seeds]
    for at, seed in enumerate(islice(cycle(seeds), number)):
        path.write_bytes(mutated(seed, seeds, Random(f"{kind.name} {salt} {at}")))
        yield path


@pytest.mark.parametrize("name", list(kinds()))
def test_a_spoilt_file_ends_in_findings(name: str, tmp_path: Path) -> None:
    kind = kinds()[name]
    for path in spoilt(kind, WHOLE[name], tmp_path, "whole"):
        use(kind, path)


@pytest.mark.parametrize("name", format_names())
def test_a_spoilt_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    kind = kinds()[name]
    reading = Kind(name=name, use=partial(read_format, name=name), seeds=kind.seeds)
    for path in spoilt(reading, READ, tmp_path, "read"):
        use(reading, path)


def test_the_files_are_as_many_as_said() -> None:
    assert TOTAL - len(format_names()) < sum(WHOLE.values()) + READ * len(format_names()) <= TOTAL


FUZZ = Path(__file__).resolve().parents[2] / "scripts" / "fuzz"


def test_the_fuzzing_script_reads_plans_and_finds_nothing(tmp_path: Path) -> None:
    options = ["--only", "plan", "--inputs", "20", "--out", str(tmp_path / "found")]
    done = subprocess.run(
        [sys.executable, str(FUZZ), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("20 inputs in")
    assert not (tmp_path / "found").exists()

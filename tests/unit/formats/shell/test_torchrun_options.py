"""Options of torchrun in front of the script."""

import pytest

from planner.formats.format import SourceText
from planner.formats.shell.launch import unknown_options
from planner.formats.shell.script import read_script
from planner.formats.shell.word import Lines


def unknown(text: str) -> list[tuple[str, int]]:
    source, lines = SourceText(path="run.sh", text=text), Lines(text)
    words = read_script(source).commands[-1].words
    found = [word for word, _ in unknown_options(words)]
    return [(word.text.partition("=")[0], lines.at(word.start)) for word in found]


@pytest.mark.parametrize(
    "options",
    [
        "--nnodes 2 --nproc_per_node=8 --rdzv-backend c10d",
        "--nproc-per-nod 8 --standalone",
        "-r 3 -t3 --max-restarts 0 -m",
        "--rdzv-id --odd",
        "${EXTRA} --odd",
        "train.py --odd",
    ],
)
def test_what_torchrun_takes_is_no_finding(options: str) -> None:
    assert unknown(f"torchrun {options} train.py --odd 1") == []


def test_an_unknown_option_is_found_behind_a_joined_value() -> None:
    assert unknown("torchrun -t3 --odd 1 --nnodes=2 train.py") == [("--odd", 1)]


@pytest.mark.parametrize(
    "program", ["torchrun", "/opt/bin/torchrun", "python -m torch.distributed.run"]
)
def test_an_unknown_option_is_found_with_its_line(program: str) -> None:
    text = f"srun --odd {program} --nnodes 2 \\\n  --rdzv-bakend c10d train.py"
    assert unknown(text) == [("--rdzv-bakend", 2)]

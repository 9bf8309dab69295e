"""What ``planner repair`` prints of a configuration file is, but for its timing, what it was.

Regenerate after a deliberate change:
``PYTHONPATH=tests python tests/golden/repair/test_golden_repair.py``.
"""

import re
from io import StringIO
from pathlib import Path

from broken_files import BROKEN, CLUSTER, MODEL
from rich.console import Console

from planner.check.job import Request
from planner.check.repair import repair_file
from planner.formats.format import SourceText
from planner.report.repair_file import print_repaired_file

GOLDEN = Path(__file__).parent / "deepspeed_memory.txt"
WIDTH = 100


def printed() -> str:
    """The text of one repair, with its timing cut out."""
    broken = BROKEN["deepspeed-memory"]
    source = SourceText(path=broken.name, text=broken.text)
    made = repair_file(source, Request(model=MODEL, cluster=CLUSTER))
    console = Console(file=StringIO(), width=WIDTH, highlight=False, emoji=False)
    with console.capture() as captured:
        print_repaired_file(made, console, command="planner plan ...")
    text = re.sub(r"in \d+\.\d+ s\.", "in N s.", captured.get())
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_the_text_of_a_repair_is_unchanged() -> None:
    assert printed() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(printed(), encoding="utf-8")

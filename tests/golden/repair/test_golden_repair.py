"""What ``planner check --fix`` prints of a configuration file is what it was.

Regenerate after a deliberate change:
``PYTHONPATH=tests python tests/golden/repair/test_golden_repair.py``.
"""

from io import StringIO
from pathlib import Path

from broken_files import BROKEN, CLUSTER, MODEL
from rich.console import Console

from planner.check.fix import fix_file
from planner.formats.format import SourceText
from planner.query.from_file import Request
from planner.report.repair import print_repair

GOLDEN = Path(__file__).parent / "deepspeed_memory.txt"
WIDTH = 100


def printed() -> str:
    """The text of one repair."""
    broken = BROKEN["deepspeed-memory"]
    source = SourceText(path=broken.name, text=broken.text)
    made = fix_file(source, Request(model=MODEL, cluster=CLUSTER))
    console = Console(file=StringIO(), width=WIDTH, highlight=False, emoji=False)
    with console.capture() as captured:
        print_repair(made, "planner plan ...", console)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def test_the_text_of_a_repair_is_unchanged() -> None:
    assert printed() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(printed(), encoding="utf-8")

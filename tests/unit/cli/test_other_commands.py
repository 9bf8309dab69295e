import csv
import io
import subprocess
import sys

import pytest
from in_process import json_of, planner


@pytest.mark.parametrize("width", [80, 120, 160])
def test_an_entry_is_readable_at_any_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """No word is broken into letters to fit a column."""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = planner("show", "hardware", "b200-sxm", "--all").out.splitlines()
    assert not [line for line in lines if len(line.strip()) == 1 and not line.strip().isdigit()]
    table = [line.split() for line in lines]
    assert ["figure", "value", "basis", "from"] in table
    (peak,) = (row for row in table if row[:1] == ["bf16_dense_tflops"])
    assert peak == ["bf16_dense_tflops", "2250", "read", "[3]"]
    assert "usable, label 180 GB" in "\n".join(lines)


@pytest.mark.parametrize("kind", ["models", "hardware", "recipes", "frameworks"])
def test_a_list_has_at_most_twenty_rows_and_says_how_to_see_more(kind: str) -> None:
    shown = planner("show", kind).out
    whole = planner("show", kind, "--all").out
    assert len(shown.splitlines()) < 37 < len(whole.splitlines())
    assert "--all lists all" in shown
    assert "--all lists all" not in whole


@pytest.mark.parametrize("kind", ["models", "recipes", "frameworks"])
def test_a_list_as_csv_has_all_rows(kind: str) -> None:
    found = json_of("show", kind)
    listed = found["profiles" if kind == "frameworks" else kind]
    rows = list(csv.DictReader(io.StringIO(planner("show", kind, "--format", "csv").out)))
    assert [list(row) for row in rows] == [list(row) for row in listed]


def test_commands_that_do_not_search_import_neither_ortools_nor_pandas() -> None:
    code = (
        "import sys; sys.argv = ['planner', 'show', 'models', 'llama3-8b']\n"
        "from planner.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'ortools', 'pandas'} & sys.modules.keys(), 'slow imports'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_closed_pipe_is_no_finding() -> None:
    code = (
        "import sys; sys.argv = ['planner', 'show', 'models']\n"
        "from planner.cli.app import main; main()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    run.stdout.close()
    _, shown = run.communicate()
    assert (run.returncode, shown) == (141, b"")

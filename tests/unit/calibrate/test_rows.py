"""Tables of measurements: written, read again, and refused where they are spoilt."""

import pytest
from tables import synthetic

from planner.calibrate.rows import FIRST_LINE, read_table, table_text
from planner.errors import InputError


def test_a_table_is_read_as_it_was_written() -> None:
    table = synthetic()
    text = table_text(table)
    assert text.startswith(FIRST_LINE)
    again = read_table("x.csv", text)
    assert again.machine == table.machine
    assert [row.what for row in again.rows] == [row.what for row in table.rows]
    assert again.rows[0].time_s == pytest.approx(table.rows[0].time_s, rel=1e-3)
    lines = enumerate(text.splitlines(), 1)
    assert again.lines[0] == next(at for at, line in lines if line.startswith("product"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# per_node: 4", "# per_node: many", "# per_node: must be a valid integer"),
        ("# device: cpu", "# device: abacus", "allowed 'cpu', 'cuda' or 'rocm'"),
        ("time_us", "time_ms", "columns missing: time_us"),
        (
            "\nproduct,",
            "\nprodukt,",
            "line 15: what unknown choice; given 'produkt', allowed 'product'",
        ),
        (
            "\nlaunch,,4,,,,,,,,,,10,",
            "\nlaunch,,4,,,,,,,,,,-10,",
            "time_us must be greater than 0; given '-10'",
        ),
    ],
)
def test_a_spoilt_table_is_refused_at_its_line(old: str, new: str, said: str) -> None:
    text = table_text(synthetic())
    assert old in text
    with pytest.raises(InputError, match=r"x\.csv") as raised:
        read_table("x.csv", text.replace(old, new))
    assert said in str(raised.value)


def test_a_table_without_rows_is_truncated() -> None:
    lines = table_text(synthetic()).splitlines()
    head = [line for line in lines if line.startswith(("#", "what"))]
    with pytest.raises(InputError, match="has no row: it is truncated"):
        read_table("x.csv", "\n".join(head))

"""Every example of a rule is taken for a file of its own format, and of no other."""

from pathlib import Path

import pytest

from planner.formats.format import read_source
from planner.formats.registry import recognised

FORMATS = Path(__file__).parent / "formats"
EXAMPLES = sorted(
    path
    for word in ("accepted", "refused")
    for path in FORMATS.glob(f"*/*/{word}*")
    if path.is_file()
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(FORMATS)))
def test_an_example_is_recognised_as_its_format_only(path: Path) -> None:
    found = [each.name for each in recognised(read_source(str(path)))]
    assert found == [path.relative_to(FORMATS).parts[0]]

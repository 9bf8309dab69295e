"""What a configuration's job trains, as the adapter file beside it says."""

from pathlib import Path

from planner.documents.file import is_file
from planner.formats import registry as formats
from planner.formats.adapters import FILE, read_adapters
from planner.formats.format import Reading, read_source
from planner.spec.training import FULL, Training


def trained_beside(reading: Reading) -> Training:
    """Adapters where a file beside says so, else all weights; InputError where it is unsound."""
    beside = Path(reading.path).parent / FILE
    if not formats.load_format(reading.format).takes_adapters or not is_file(beside):
        return FULL
    return read_adapters(read_source(beside))

"""What a configuration's job trains, as the adapter file beside it says."""

from pathlib import Path

from planner.documents.file import is_file
from planner.formats.adapters import FILE, read_adapters
from planner.formats.source import read_source
from planner.spec.training import FULL, Training


def trained_beside(path: str) -> Training:
    """Adapters where a file beside says so, else all weights; InputError where it is unsound."""
    beside = Path(path).parent / FILE
    return read_adapters(read_source(beside)) if is_file(beside) else FULL

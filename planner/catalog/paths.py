"""Where the data files lie: beside the package in a checkout, inside it when installed."""

from functools import cache
from pathlib import Path

from planner.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]


def hwdb_dir() -> Path:
    """Return the folder of accelerators/, nodes/ and fabrics/."""
    return _data_dir("hwdb")


def models_dir() -> Path:
    """Return the folder of model files."""
    return _data_dir("models")


@cache
def _data_dir(name: str) -> Path:
    installed, checkout = _PACKAGE / "data" / name, _PACKAGE.parent / name
    for folder in (installed, checkout):
        if folder.is_dir():
            return folder
    raise InputError.single(
        str(checkout), name, f"data folder not found; looked for {installed} and {checkout}"
    )

"""Facts of models and hardware: where they lie, names for examples, the error for unknown names."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from planner.errors import InputError, did_you_mean

# What help and messages name, and tables of the documentation are made for.
EXAMPLE_NODE, EXAMPLE_ACCELERATOR, EXAMPLE_MACHINE = "dgx-h100", "h100", "frontier"
EXAMPLE_MODEL, EXAMPLE_CLUSTER = "llama3-8b", f"8x{EXAMPLE_ACCELERATOR}"
# What a description of a node names where its network plays no part, or is stated apart.
PLAIN_FABRIC = "eth-25g"


def hwdb_dir() -> Path:
    """Return the folder of accelerators/, nodes/ and fabrics/."""
    return _data_dir("hwdb")


def models_dir() -> Path:
    """Return the folder of model files."""
    return _data_dir("models")


@cache
def _data_dir(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    installed, checkout = package / "data" / name, package.parent / name
    if folder := next(filter(Path.is_dir, (installed, checkout)), None):
        return folder
    message = f"data folder not found; looked for {installed} and {checkout}"
    raise InputError.single(str(checkout), name, message)


def unknown_name(
    kind: str,
    name: str,
    known: Iterable[str],
    where: str,
    key: str,
    listing: str = "planner show hardware",
) -> InputError:
    """Return the error for a name that is not in the catalog; ``listing`` prints those that are."""
    names = list(known)
    hint = did_you_mean(name, names) or f"{len(names)} are known; `{listing}` lists them"
    return InputError.single(where, key, f"unknown {kind} {name!r}; {hint}")


@cache
def list_models() -> list[str]:
    """Return the names in the catalog, sorted, a list that nobody changes; no file is opened."""
    return sorted(path.stem for path in models_dir().glob("*.yaml"))

"""Tables of what stands where: places are dotted paths of attributes, keys and indices."""

from collections.abc import Mapping
from typing import Any

import pytest


def at(holder: Any, path: str) -> Any:
    """What stands at ``levels.0.name`` of an object, a mapping or a list."""
    for key in path.split("."):
        if isinstance(holder, Mapping):
            holder = holder[key]
        else:
            holder = holder[int(key)] if key.lstrip("-").isdigit() else getattr(holder, key)
    return holder


def assert_places(holder: Any, places: Mapping[str, Any]) -> None:
    """Every value of a table stands at its place: tuples are lists there, floats near."""
    for path, value in places.items():
        found = at(holder, path)
        found = list(found) if isinstance(found, tuple) else found
        assert found == (pytest.approx(value) if isinstance(value, float) else value), path

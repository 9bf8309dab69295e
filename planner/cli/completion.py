"""What the shell offers for a word that is being typed."""

import re


def models(incomplete: str) -> list[str]:
    """Models of the catalog that begin so."""
    from planner.catalog.paths import list_models

    return [name for name in list_models() if name.startswith(incomplete.lower())]


def clusters(incomplete: str) -> list[str]:
    """Machines that begin so, and nodes and accelerators behind a count: ``16xdgx``."""
    from planner.catalog.hardware import list_names

    count, times, name = re.match(r"^([0-9]*)(x?)(.*)$", incomplete, re.DOTALL).groups()  # type: ignore[union-attr]
    if not count:
        return [each for each in list_names("clusters") if each.startswith(incomplete)]
    if not times:
        return [f"{count}x"]
    known = (*list_names("nodes"), *list_names("accelerators"))
    return [f"{count}x{each}" for each in known if each.startswith(name.lower())]


def frameworks(incomplete: str) -> list[str]:
    """Frameworks and formats of files that begin so."""
    from planner.formats.registry import format_names
    from planner.frameworks.registry import FRAMEWORKS

    known = dict.fromkeys((*FRAMEWORKS, *format_names(), "any"))
    return [name for name in known if name.startswith(incomplete.lower())]

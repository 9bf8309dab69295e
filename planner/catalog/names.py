"""Names a user mistyped: the nearest known ones, and the error that offers them."""

from collections.abc import Iterable
from difflib import get_close_matches

from planner.errors import InputError


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` known names close to ``name``, the closest first.

    Case is ignored; names that contain ``name`` follow those that are spelled alike.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    wanted = name.lower()
    close = get_close_matches(wanted, by_lower, n=count, cutoff=0.6)
    inside = sorted(text for text in by_lower if wanted and wanted in text and text not in close)
    return [by_lower[text] for text in [*close, *inside][:count]]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean a, b?`` or, when nothing is close, an empty text."""
    close = nearest(name, known)
    return f"did you mean {', '.join(close)}?" if close else ""


def unknown_name(
    kind: str,
    name: str,
    known: Iterable[str],
    where: str,
    key: str,
    listing: str = "planner hardware",
) -> InputError:
    """Return the error for a name that is not in the catalog; ``listing`` prints those that are."""
    names = list(known)
    hint = did_you_mean(name, names) or f"{len(names)} are known; `{listing}` lists them"
    return InputError.single(where, key, f"unknown {kind} {name!r}; {hint}")

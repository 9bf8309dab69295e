"""Names a user mistyped: the nearest known ones."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

# Characters of a name; what is longer was not mistyped.
MAX_LENGTH = 100


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` known names close to ``name``, the closest first.

    Case is ignored; names that contain ``name`` follow those that are spelled alike.
    """
    if len(name) > MAX_LENGTH:
        return []
    return list(_nearest(name, tuple(known), count))


@lru_cache(maxsize=4096)
def _nearest(name: str, known: tuple[str, ...], count: int) -> tuple[str, ...]:
    by_lower = {candidate.lower(): candidate for candidate in known}
    wanted = name.lower()
    close = get_close_matches(wanted, by_lower, n=count, cutoff=0.6)
    inside = sorted(text for text in by_lower if wanted and wanted in text and text not in close)
    return tuple(by_lower[text] for text in [*close, *inside][:count])


def alike(name: str, known: Iterable[str], likeness: float) -> str | None:
    """Return the known name most like ``name`` if the likeness, up to 1, is at least so large."""
    close = get_close_matches(name[:MAX_LENGTH], known, n=1, cutoff=likeness)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean a, b?`` or, when nothing is close, an empty text."""
    close = nearest(name, known)
    return f"did you mean {', '.join(close)}?" if close else ""


def hint(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean a, b?`` or, when nothing is close, all names that are allowed."""
    names = list(known)
    return did_you_mean(name, names) or f"allowed are {', '.join(names) or 'none'}"


def unknown(kind: str, given: str, known: Iterable[str], hint: str = "") -> str:
    """Return that a name is unknown, what is allowed, and the hint or what may be meant."""
    names = tuple(known)
    text = f"unknown {kind} {given!r}; allowed are {', '.join(names)}"
    hint = hint or did_you_mean(given, names)
    return f"{text}. {hint}" if hint else text

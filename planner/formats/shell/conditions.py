"""Whether a test of a script holds, where everything in it is known."""

import operator
from collections.abc import Callable, Mapping, Sequence

from planner.formats.shell.word import Word

_ENDS = {"[": "]", "[[": "]]"}
_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_MAX_DIGITS = 15


def holds(words: Sequence[Word]) -> bool | None:
    """Whether ``[ A = B ]``, ``[ A -gt 1 ]`` or ``[ -z A ]`` holds; None where it is not known."""
    texts = [word.text for word in words]
    if any(word.unknown for word in words) or len(texts) < 4 or _ENDS.get(texts[0]) != texts[-1]:
        return None
    inner = texts[1:-1]
    if len(inner) == 2:
        return {"-z": not inner[1], "-n": bool(inner[1])}.get(inner[0])
    return _compared(*inner) if len(inner) == 3 else None


def _compared(left: str, sign: str, right: str) -> bool | None:
    if sign in _TEXTS and not set(right) & set("*?["):
        return _TEXTS[sign](left, right)
    if sign in _NUMBERS and _is_number(left) and _is_number(right):
        return _NUMBERS[sign](int(left), int(right))
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS

"""Whether a test of a script holds, where everything in it is known."""

import operator
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planner.formats.shell.expansion import NUMBER, WORDS, Words

if TYPE_CHECKING:
    from tree_sitter import Node

_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": fnmatchcase,
    "==": fnmatchcase,
    "!=": lambda text, pattern: not fnmatchcase(text, pattern),
    "<": operator.lt,
    ">": operator.gt,
}
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def holds(words: Words, node: "Node") -> bool | None:
    """Whether a condition holds; None where it is not known."""
    parts = [each for each in node.children if each.type != "comment"]
    if node.type in ("test_command", "parenthesized_expression") and len(parts) == 3:
        return None if parts[0].type == "((" else holds(words, parts[1])
    if node.type in ("negated_command", "unary_expression") and words.text(parts[0]) == "!":
        inner = holds(words, parts[1])
        return None if inner is None else not inner
    if node.type == "unary_expression":
        text = _text(words, parts[1])
        is_empty = None if text is None else not text
        sign = words.text(parts[0])
        return is_empty if sign == "-z" or is_empty is None else {"-n": not is_empty}.get(sign)
    if node.type in ("binary_expression", "list") and len(parts) == 3:
        left, sign, right = parts[0], words.text(parts[1]), parts[2]
        if sign in ("&&", "||"):
            found = {holds(words, left), holds(words, right)}
            decides = sign == "||"
            return decides if decides in found else None if None in found else not decides
        return _compared(_text(words, left), sign, _text(words, right))
    return None


def _text(words: Words, node: "Node") -> str | None:
    word = words.joined([node]) if node.type in WORDS else None
    return None if word is None or word.unknown else word.text


def _compared(left: str | None, sign: str, right: str | None) -> bool | None:
    if left is None or right is None:
        return None
    if sign in _TEXTS:
        return _TEXTS[sign](left, right)
    if sign in _NUMBERS and NUMBER.fullmatch(left) and NUMBER.fullmatch(right):
        return _NUMBERS[sign](int(left), int(right))
    return None

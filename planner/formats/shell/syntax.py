"""Trees of shell text, as tree-sitter's grammar of bash reads it.

What bash would refuse is read as far as it goes, but for a quote that nothing closes.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from planner.formats.shell.word import Span

if TYPE_CHECKING:
    from tree_sitter import Language, Node

# Of quotes, brackets and other signs of the shell; of 1,692 public scripts none has 4,600.
MAX_SIGNS = 10_000
# Of a tree; of the same scripts none has 9,600.
MAX_NODES = 20_000
# The parser gets its text in pieces of so many characters, and may ask for each so often on
# average: a text that is made to be tried again and again ends there.
_CHUNK, _READ_AGAIN = 4096, 8
# Text in an example for the reader to fill in, `<path to data>`: a word, no redirections.
PLACEHOLDER = r"(?<![<\d&])<[A-Za-z](?:[^<>\n;|&$`'\"]*[A-Za-z.)])?>(?![>&])"


class ScriptError(Exception):
    """A text that a shell refuses or that takes too long to read, and why."""

    def __init__(self, why: str, at: int | None = None) -> None:
        self.at = at
        super().__init__(why)


@lru_cache(maxsize=16)
def parsed(text: str) -> "Node":
    """The root of a script's tree, whose places are those of the characters.

    Raises ScriptError for a quote that nothing closes, and a text that is made to take long.
    """
    from tree_sitter import Parser

    signs = re.findall(r"[\"'`$(){}<>|&;]", text)
    if len(signs) > MAX_SIGNS:
        raise ScriptError(f"it has more than {MAX_SIGNS:,} quotes, brackets and other signs")
    # The grammar counts bytes: whatever it need not understand becomes one of the same length.
    plain = text.replace("\\\r\n", " \\\n").replace("\r\n", "\n\n").replace("\r", " ")
    plain = re.sub(PLACEHOLDER, lambda found: "%" * len(found[0]), plain)
    plain = re.sub(r"[^\t\n -~]", "%", plain)
    plain = re.sub(r"(?<!\$)\$(?=\s|$)", "%", plain)
    data = plain.encode("ascii")
    left = (len(data) // _CHUNK + 100) * _READ_AGAIN

    def chunk(at: int, _: object) -> bytes:
        nonlocal left
        left -= 1
        return data[at : at + _CHUNK]

    try:
        parser = Parser(_language())
        root = parser.parse(chunk, progress_callback=lambda *_: left < 0).root_node
    except ValueError:
        raise ScriptError("it is tangled so that it takes too long to read") from None
    at = _unclosed(root, text) if root.has_error or "$'" in text else None
    if at is not None:
        raise ScriptError("a quote is not closed", at)
    if root.descendant_count > MAX_NODES:
        raise ScriptError(f"it has more than {MAX_NODES:,} words and signs")
    return root


@cache
def _language() -> "Language":
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def _unclosed(root: "Node", text: str) -> int | None:
    """A quote is not closed where the last of its sign begins a text: the grammar recovers."""
    for last in (r"(?s).*(')", r"(?s).*(?<!\\)(')", r'(?s).*(?<!\\)(")'):
        found = re.match(last, text)
        node = root.descendant_for_byte_range(*found.span(1)) if found else None
        if found is None or node is None:
            continue
        at, parent = found.start(1), node.parent
        is_open = parent and (parent.type == "ERROR" or parent.children[-1].is_missing)
        if (
            (node.type == "ERROR" and node.child_count == 0)
            or (node.type == "ansi_c_string" and node.start_byte + 1 == at)
            or (node.type in ('"', "'") and is_open)
        ):
            return at
    return None


def _nodes(text: str) -> Iterator["Node"]:
    stack = [parsed(text)]
    while stack:
        node = stack.pop()
        stack += node.children
        yield node


def branches_in(text: str) -> tuple[Span, ...]:
    """Return what runs never or more than once: branches, loops, what follows ``&&`` and ``||``."""
    branches = ("if_statement", "case_statement", "while_statement", "for_statement", "list")
    nodes = (each for each in _nodes(text) if each.type in branches)
    last = (each.children[-1] if each.type == "list" else each for each in nodes)
    return tuple((each.start_byte, each.end_byte) for each in last)


def branch_places(text: str) -> list[int]:
    """Return where another branch begins: no run takes what is before and after it."""
    turns = ("else", "elif", ";;", ";&", ";;&")
    return [node.start_byte for node in _nodes(text) if node.type in turns]

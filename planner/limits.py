"""Limits of counts, texts and files, of what a name may contain, and of how a text is shown.

One table for every reader. What is larger than a limit is a mistake, or was written to do harm.
"""

import math
import re

# Thirty times the longest launch script seen, six times a config.json with a label per class.
MAX_FILE_BYTES = 2**18
# Of what tools print, and of tables of runs: nine times the published ones.
MAX_LOG_BYTES = 2**23
# Mappings and lists inside each other, aliases and merge keys written out.
MAX_DEPTH = 64
# Keys and values in the text of a file; values with aliases and merge keys written out.
MAX_VALUES = 50_000
# Of a number in a file; a float holds every whole number of so many.
MAX_DIGITS = 301
# Of a number on the command line, point included.
MAX_COUNT_DIGITS = 40
# Characters of one word of the command line.
MAX_WORD = 2000
MAX_CONDITION_CHARACTERS = 1000
MAX_CONDITION_DEPTH = 40
# Number in a condition.
MAX_LITERAL = 10**9
# That narrow a search, each member of a comma list counted.
MAX_OPTIONS = 100
# Sizes of one curve.
MAX_SIZES = 64
MAX_TIME_LIMIT_S = 1e7
# Characters of a message, a path or a key shown; what a file holds may be longer.
MAX_MESSAGE = 1000
# Accelerators, nodes, and the degree of any axis.
MAX_GPUS = 10**7
# Eight times the deepest model of the catalog.
MAX_LAYERS = 1000
# Layers of an encoder and a decoder together.
MAX_BLOCKS = 2 * MAX_LAYERS
# Of a hidden layer, heads, vocabulary and windows: rows or columns of one matrix.
MAX_WIDTH = 10**7
MAX_EXPERTS = 10**4
# Of one tensor outside the repeated shape, or of a whole model.
MAX_PARAMETERS = 10**15
MAX_SEQ_LEN = 10**8
# Sequences of one iteration.
MAX_BATCH = 10**9
# Of multi-token prediction: more further tokens than anyone predicts.
MAX_MTP_LAYERS = 16
# Tokens beyond the mean: a busier rank would hold those of more than a hundred others.
MAX_IMBALANCE = 100.0
MAX_TOKENS = 10**18
MAX_USD = 10**15
# Three hundred years.
MAX_DURATION_S = 10**10
MAX_BYTES = 2**60

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+:/@(),=-]{0,99}")
NAME_RULE = "1 to 100 ASCII letters, digits, blanks and ._+:/@(),=- behind a letter or digit"
_SHOWN = 60


def name_of(stem: str) -> str:
    """The name of what a file without one holds: its own, without what no name may have."""
    cleaned = re.sub(r"[^A-Za-z0-9 ._+-]", "-", stem)[:100].lstrip(" ._+-")
    return cleaned or "unnamed"


def number_in(text: str) -> float:
    """Read a number; nan, which lies in no range, of a text that is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def brief(value: object) -> str:
    """A value as a message shows it: quoted, of one line, and short."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return short(text)


def short(text: str) -> str:
    """The text, its end left out where it is long."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def one_line(text: str) -> str:
    """The text on one line: what cannot be printed (lone surrogates too) escaped, cut short."""
    if len(text) > MAX_MESSAGE:
        text = f"{text[: MAX_MESSAGE - 3]}..."
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def printable(text: str) -> str:
    """The text with all that moves a cursor, hides or turns what follows written as an escape."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        char if char in "\n\t" or char.isprintable() or char == "\xa0" else _escape(char)
        for char in text
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()

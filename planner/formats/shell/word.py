"""Trees, words and commands of shell text, each character with its places in the file.

Trees are those of tree-sitter's grammar of bash. What bash would refuse is read as far as it goes,
but for a quote that nothing closes. Options and variables of Slurm:
https://slurm.schedmd.com/sbatch.html.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby, pairwise, zip_longest
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tree_sitter import Node

Span = tuple[int, int]


class Char(NamedTuple):
    """A character of a word; of an empty text in quotes, which is a word too, none."""

    text: str
    place: Span  # Place in the file; for a variable's value without blanks, that of the variable
    origin: Span  # Place where it is defined: for a variable's value, in the word that assigns it
    is_known: bool = True
    """False in what could not be resolved: that stands as it is written, and is never split."""


# Of a text: None in the place of blanks that separate words.
Chars = Iterator[Char | None]


@dataclass(frozen=True)
class Word:
    """A word as a command gets it."""

    chars: tuple[Char, ...]
    site: Span | None = None
    """The written word, quotes included, where all of it stands for this word alone."""

    @cached_property
    def text(self) -> str:
        """Its characters."""
        return "".join(char.text for char in self.chars)

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Parts that could not be resolved, as written."""
        runs = groupby(self.chars, key=lambda char: (char.is_known, char.place))
        unknown = (run for (is_known, _), run in runs if not is_known)
        return tuple("".join(char.text for char in run) for run in unknown)

    @property
    def origin(self) -> Span | None:
        """Place where the text is defined, without its quotes; None if it is not in one piece."""
        return in_one_piece(char.origin for char in self.chars)

    @property
    def place(self) -> Span | None:
        """Place to edit in the file to change this word; None if it is not in one piece."""
        return self.site or in_one_piece(char.place for char in self.chars)

    @property
    def start(self) -> int:
        """Position in the file where the word begins."""
        return self.site[0] if self.site else min((each.place[0] for each in self.chars), default=0)

    @property
    def end(self) -> int:
        """Behind it in the file."""
        return self.site[1] if self.site else max((each.place[1] for each in self.chars), default=0)

    def cut(self, start: int, end: int) -> "Word":
        """Some of its characters."""
        return Word(tuple([char for char in self.chars if char.text][start:end]))


def in_one_piece(spans: Iterable[Span]) -> Span | None:
    """All of a file that places take up; None where there is something between them."""
    found = sorted(set(spans))
    if not found or any(left != right for (_, left), (right, _) in pairwise(found)):
        return None
    return found[0][0], found[-1][1]


def split(chars: Iterable[Char]) -> Chars:
    """The characters without blanks, None in place of these."""
    return (None if each.is_known and each.text.isspace() else each for each in chars if each.text)


def gathered(chars: Chars) -> Iterator[tuple[Char, ...]]:
    """The characters of each word of those that None separates."""
    runs = groupby(chars, key=lambda each: each is None)
    return (tuple(filter(None, run)) for is_gap, run in runs if not is_gap)


def split_words(word: Word) -> tuple[Word, ...]:
    """A word that stands without quotes, as its words."""
    if word.text and not re.search(r"\s", word.text):
        return (word,)
    return tuple(map(Word, gathered(split(word.chars))))


def spaced(words: Iterable[Word]) -> Iterator[Char]:
    """Words in one line; a blank between two stands where the file has something between them."""
    end = 0
    for word in words:
        gap = (end, word.start) if 0 < end < word.start else (0, 0)
        yield Char(" ", gap, gap)
        yield from word.chars
        end = word.end


@dataclass(frozen=True, kw_only=True)
class Command:
    """Words of a command, or those behind its program; and what starts it."""

    words: tuple[Word, ...]
    launcher: tuple[Word, ...] = ()
    """Words before them: of what starts the shell, sbatch's in comments, torchrun and its own."""
    program: Word | None = None
    environment: Mapping[str, Word] = field(default_factory=dict)
    """Variables set for it alone, and those that its shell exports."""
    is_list: bool = False  # True if the file consists of words alone, and no commands
    is_kept: bool = False
    """True if a variable contains the command line and nothing seems to run it."""
    end: int | None = None
    """Behind its last written word; None where that stands for the words of several commands."""

    @property
    def start(self) -> int:
        """Position of the program in the file, or of the words."""
        return min((word.start for word in (self.program, *self.words) if word), default=0)

    def behind(self, at: int) -> "Command":
        """Return the command whose program is the word at this index, with the words after it."""
        launcher = self.launcher + self.words[:at]
        program, *after = self.words[at:]
        return replace(self, words=tuple(after), launcher=launcher, program=program)


class Lines:
    """Starts of the lines of a text."""

    def __init__(self, text: str) -> None:
        self.starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def at(self, place: int) -> int:
        """The line of a place, from 1."""
        return bisect_right(self.starts, place)


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
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    if len(re.findall(r"[\"'`$(){}<>|&;]", text)) > MAX_SIGNS:
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

    parser = Parser(Language(tree_sitter_bash.language()))
    try:
        root = parser.parse(chunk, progress_callback=lambda *_: left < 0).root_node
    except ValueError:
        raise ScriptError("it is tangled so that it takes too long to read") from None
    at = _unclosed(root, text) if root.has_error or "$'" in text else None
    if at is not None:
        raise ScriptError("a quote is not closed", at)
    if root.descendant_count > MAX_NODES:
        raise ScriptError(f"it has more than {MAX_NODES:,} words and signs")
    return root


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
    return tuple(each.byte_range for each in last)


def branch_places(text: str) -> list[int]:
    """Return where another branch begins: no run takes what is before and after it."""
    turns = ("else", "elif", ";;", ";&", ";;&")
    return [node.start_byte for node in _nodes(text) if node.type in turns]


NNODES, NPROC_PER_NODE = "--nnodes", "--nproc-per-node"
# Begins a comment that holds words of sbatch.
SBATCH = "#SBATCH"
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}
# Variables that Slurm sets where a job asks for so much.
SLURM_VARIABLES = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--gpus": ("SLURM_GPUS",),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gres": ("SLURM_GPUS_ON_NODE",),
}
_NUMBER = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?([1-9]\d{0,7})")


def launcher_values(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Nodes, processes and GPUs: the option in full, and its number, or all it says."""
    is_slurm = False
    for word, following in zip_longest(words, words[1:]):
        program = word.text.rpartition("/")[2]
        if program in ("srun", "sbatch", "salloc", SBATCH):
            is_slurm = True
        elif program in ("torchrun", "mpirun", "mpiexec", "python", "python3"):
            # Their own options begin here among the words of srun.
            is_slurm = False
        name = word.text.partition("=")[0]
        spelled = re.sub("^-+", "--", name.replace("_", "-"))
        start = len(name) + 1
        if is_slurm and name[:2] in _SHORT:
            spelled, start = _SHORT[name[:2]], 2
        value = word
        if start >= len(word.text):
            start, value = 0, following
        is_slurms = is_slurm and spelled in SLURM_VARIABLES
        if value and (is_slurms or spelled in (NNODES, NPROC_PER_NODE)):
            end = len(value.text)
            if found := _NUMBER.fullmatch(value.text, start):
                start, end = found.span(1)
            yield spelled, value.cut(start, end)

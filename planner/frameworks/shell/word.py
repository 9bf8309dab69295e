"""A word of shell text with the places of its characters."""

from dataclasses import dataclass
from itertools import pairwise

from planner.frameworks.shell.tokens import Span


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word as a command gets it."""

    text: str
    spans: tuple[Span, ...]
    """Place of every character; those of a variable's value share the place of the variable."""
    unknown: tuple[str, ...] = ()
    """What in it could not be resolved, as written."""
    site: Span | None = None
    """The written word, where it stands for this word alone."""

    @property
    def place(self) -> Span | None:
        """What to replace in the file to change this word; None where it is not in one piece."""
        if self.site is not None:
            return self.site
        spans = sorted(set(self.spans))
        joined = all(left[1] == right[0] for left, right in pairwise(spans))
        return (spans[0][0], spans[-1][1]) if spans and joined else None

    @property
    def start(self) -> int:
        """Where it begins in the file."""
        return self.site[0] if self.site else min(self.spans, default=(0, 0))[0]

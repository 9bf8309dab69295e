"""What is known of a decision that a strategy holds, beside its value."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import get_type_hints

from planner.limits import MAX_GPUS

KINDS_OF_DIFFERENCE = (
    "degrees",
    "virtual stages",
    "micro-batch",
    "recomputation",
    "sequence parallel",
    "ZeRO stage",
    "offload",
    "expert layout",
    "schedule",
    "placement",
    "layers per stage",
)
"""What layouts may differ in, in the order that pairs' kinds are named."""


@dataclass(frozen=True)
class Decision:
    """A field of strategies: what it is, the values it can take, and what people read of it."""

    about: str
    """In one line, with a unit; what the help of its option says."""
    kind: str = ""
    """What a difference is called, one of KINDS_OF_DIFFERENCE; empty: it follows from others."""
    title: str = ""
    """What people read in place of the field's name."""
    word: str = ""
    """Of a degree: what it splits, in sentences and in the titles of wide tables."""
    least: int = 1
    most: int = MAX_GPUS
    words: tuple[str, ...] = ()
    """The values by their codes; empty where they are numbers."""
    is_flag: bool = False
    usual: int | None = None
    """The value that changes nothing, where it is neither the least, the first word nor false."""
    follows: str = ""
    """What a layout is filled in with that does not say it, in a few words; empty: that value."""

    @property
    def value_type(self) -> type:
        """Of its values: str of words, bool of flags, else int."""
        return str if self.words else bool if self.is_flag else int

    @cached_property
    def neutral(self) -> int:
        """The code of the value that changes nothing."""
        if self.usual is not None:
            return self.usual
        return 0 if self.words or self.is_flag else self.least

    def code(self, value: int | str) -> int:
        """The number that stands for a value in columns."""
        return self.words.index(value) if isinstance(value, str) else int(value)

    def value(self, code: int) -> int | str:
        """The value that a code stands for: a word, a flag or the number itself."""
        if self.words:
            return self.words[code]
        return bool(code) if self.is_flag else code


def decided_by(cls: type) -> Mapping[str, Decision]:
    """What is known of every field of a class, by the field's name."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}

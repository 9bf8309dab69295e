"""One option of a Megatron argument list, and why it is there."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An option with its words, none for a flag."""

    option: str
    words: tuple[str, ...] = ()
    why: str = ""
    """In plain words; empty where nothing was decided, such as for the model's shape."""


def chosen(option: str, *words: object, why: str = "") -> Choice:
    """An option with its values as words."""
    return Choice(option=option, words=tuple(map(str, words)), why=why)

"""What rules of Accelerate say."""

from collections.abc import Iterable, Mapping

from planner.formats.format import Broken, Value


def broken(settings: Mapping[str, Value], key: str, message: str) -> Broken:
    """A broken rule at a key, as the file spells it where it is there."""
    return Broken(key=settings[key].key if key in settings else key, message=message)


def one_of(words: Iterable[str]) -> str:
    """The words a message allows."""
    return f"allowed are {', '.join(words)}"

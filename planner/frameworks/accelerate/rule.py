"""How rules of Accelerate are made."""

from collections.abc import Callable, Iterable, Mapping

from planner.frameworks.finding import Severity
from planner.frameworks.format import Broken, FormatRule, Value, World

Check = Callable[[Mapping[str, Value], World], Iterable[Broken]]


def rule(
    check: Check, source: str, *, enforced: bool = True, severity: Severity = "error"
) -> FormatRule:
    """A rule by the name of its function."""
    return FormatRule(
        name=check.__name__, source=source, check=check, severity=severity, enforced=enforced
    )


def broken(settings: Mapping[str, Value], key: str, message: str) -> Broken:
    """A broken rule at a key, as the file spells it where it is there."""
    return Broken(key=settings[key].key if key in settings else key, message=message)


def one_of(words: Iterable[str]) -> str:
    """The words a message allows."""
    return f"allowed are {', '.join(words)}"

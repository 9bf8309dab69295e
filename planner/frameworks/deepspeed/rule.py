"""How the rules of this format are written down."""

from collections.abc import Callable, Iterator

from planner.frameworks.deepspeed.decisions import Settings
from planner.frameworks.finding import Severity
from planner.frameworks.format import Broken, FormatRule, World

Check = Callable[[Settings, World], Iterator[Broken]]


def broken(key: str, message: str) -> Broken:
    """How a rule is broken."""
    return Broken(key=key, message=message)


def rule(
    check: Check, source: str, *, enforced: bool = False, severity: Severity = "error"
) -> FormatRule:
    """The rule of a check, under the check's name."""
    return FormatRule(
        name=check.__name__, source=source, check=check, enforced=enforced, severity=severity
    )

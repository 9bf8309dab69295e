"""How the rules of a format are written down: a function each, with its source above it."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TypeAlias

from planner.formats.finding import Severity
from planner.formats.format import Broken, FormatRule, World
from planner.formats.settings import Settings

Said: TypeAlias = Iterator[tuple[str, str]]
"""Keys in full, with what is wrong, what was given, and what is allowed."""
Check: TypeAlias = Callable[[Settings, World], Said]


class Rules(list[FormatRule]):
    """Rules in the order they are written: called with a source, it takes the function below."""

    def __call__(
        self, source: str, *, enforced: bool = True, severity: Severity = "error"
    ) -> Callable[[Check], Check]:
        """Add a rule under the function's name; where it says a key, the file's own spelling."""

        def add(said: Check) -> Check:
            @wraps(said)
            def check(settings: Settings, world: World) -> Iterator[Broken]:
                for key, message in said(settings, world):
                    spelled = settings[key].key if key in settings else key
                    yield Broken(key=spelled, message=message)

            name: str = getattr(said, "__name__", "")
            self.append(
                FormatRule(
                    name=name, source=source, check=check, severity=severity, enforced=enforced
                )
            )
            return said

        return add

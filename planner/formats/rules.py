"""How the rules of a format are written down: a function each, with its source above it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, TypeAlias, TypeVar

from planner.formats import settings as values
from planner.formats.format import FormatRule, Severity, Violation, World
from planner.formats.settings import Settings, given

Violations: TypeAlias = Iterator[tuple[str, str]]
"""Keys in full, with what is wrong, what was given, and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class ConfigView:
    """A file as rules ask about it."""

    settings: Settings
    world: World
    unresolved: set[str] = field(default_factory=set)
    """Keys that were asked for whose value the file leaves open; what rests on it is not said."""

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value of a key, None where it is not there."""
        return given(self.settings, key)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Whether a flag is on."""
        return values.flag(self.settings, key, default=default)

    def whole(self, key: str, default: int = 1) -> int:
        """A whole number, or its default."""
        return values.whole(self.settings, key, default)

    def word(self, key: str, default: str = "") -> str:
        """A word, or its default."""
        return values.word(self.settings, key, default)

    def spelled(self, key: str) -> str:
        """A key as the file spells it."""
        return self.settings[key].key if key in self.settings else key


View = TypeVar("View", bound=ConfigView)
Check: TypeAlias = Callable[[View], Violations | bool]


class Rules(list[FormatRule], Generic[View]):
    """Rules in the order they are written: called with a source, it takes the function below.

    ``view`` makes what the functions ask; None: the rules say nothing of this file.
    """

    def __init__(self, view: Callable[..., View | None]) -> None:
        super().__init__()
        self._view = view

    def __call__(
        self,
        source: str,
        *,
        key: str = "",
        says: str = "",
        enforced: bool = True,
        severity: Severity = "error",
    ) -> Callable[[Check[View]], Check[View]]:
        """Add a rule under the function's name, which gives violations, or whether there is one.

        That one is of ``key``; ``says`` may name what the file gives there, and the ``file``.
        """

        def add(rule: Check[View]) -> Check[View]:
            @wraps(rule)
            def check(settings: Settings, world: World) -> Iterable[Violation]:
                file = self._view(settings=settings, world=world)
                if file is None:
                    return []
                found = rule(file)
                if found is True:
                    pairs = [(key, says.format(file=file, given=file[key]))]
                else:
                    pairs = list(found or ())
                # What was asked for is known only once the rule has run.
                known = () if file.unresolved else pairs
                return [Violation(key=file.spelled(at), message=text) for at, text in known]

            name: str = getattr(rule, "__name__", "")
            self.append(
                FormatRule(
                    name=name, source=source, check=check, severity=severity, enforced=enforced
                )
            )
            return rule

        return add

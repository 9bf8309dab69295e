"""Declaration of a format's rules: a function each, with its source above it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partialmethod, wraps
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

from planner.formats import settings as values
from planner.formats.format import CheckContext, FormatRule, Severity, Violation
from planner.formats.settings import Settings, given

# What is wrong, in words, by whether it is so.
Refused: TypeAlias = Mapping[str, object]
# Keys in full, with what is wrong, what was given, and what is allowed.
Violations: TypeAlias = Iterator[tuple[str, str]]


def first_of(refused: Refused) -> Refused:
    """Only the first of those that are so: what stands behind it follows from it."""
    found = (text for text, is_so in refused.items() if is_so)
    return dict.fromkeys(islice(found, 1), True)


@dataclass(frozen=True, kw_only=True)
class ConfigView:
    """A file as rules ask about it."""

    settings: Settings
    world: CheckContext = CheckContext(num_gpus=0, decisions={})  # noqa: RUF009 - frozen
    unresolved: set[str] = field(default_factory=set)
    """Keys that were asked for whose value the file leaves open; what rests on it is not said."""

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value of a key, None where it is not there."""
        return given(self.settings, key)

    def is_on(self, key: str) -> bool:
        """Return True if a key has a value that Python takes for true."""
        return bool(self[key])

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return True if a flag is on."""
        return values.flag(self.settings, key, default=default)

    def whole(self, key: str, default: int = 1) -> int:
        """A whole number, or its default."""
        return values.whole(self.settings, key, default)

    def word(self, key: str, default: str = "") -> str:
        """A word, or its default."""
        return values.word(self.settings, key, default)

    @property
    def num_gpus(self) -> int:
        """Processes in all."""
        return self.world.num_gpus

    def spelled(self, key: str) -> str:
        """A key as the file spells it."""
        return self.settings[key].key if key in self.settings else key


View = TypeVar("View", bound=ConfigView)
Check: TypeAlias = Callable[[View], Violations | Refused | Iterable[str] | bool]


class Rules(list[FormatRule], Generic[View]):
    """Rules in the order they are written: called with a source, it takes the function below.

    Where one expression says it, ``when`` is that function, ``name`` its name, and ``holds`` what
    is wrong. ``view`` makes what functions ask; None: the rules say nothing of this file.

    A function returns whether ``key`` breaks the rule; or all that may be wrong with ``key``; or
    the keys that break it; or violations. What is wrong with keys is ``says``, else the function's
    docstring; it may name the ``file`` and what is ``given``. Of a file in which the flag ``on`` is
    not on, nothing is asked.
    """

    def __init__(self, view: Callable[..., View | None]) -> None:
        super().__init__()
        self._view = view

    def __call__(
        self,
        source: str,
        key: str = "",
        name: str = "",
        holds: str = "",
        when: Check[View] | None = None,
        *,
        on: str = "",
        says: str = "",
        enforced: bool = True,
        severity: Severity = "error",
    ) -> Callable[[Check[View]], Check[View]]:
        """Add a rule under the function's name."""

        def add(rule: Check[View]) -> Check[View]:
            words = says
            if not words:
                # A sentence as what follows a key: without a capital and a full stop.
                sentence = holds or rule.__doc__ or ""
                words = sentence[:1].lower() + sentence[1:].removesuffix(".")

            @wraps(rule)
            def check(settings: Settings, world: CheckContext) -> Iterable[Violation]:
                file = self._view(settings=settings, world=world)
                if file is None or (on and file[on] is not True):
                    return []
                wrong = rule(file)
                if isinstance(wrong, bool):
                    wrong = [key] * wrong
                elif isinstance(wrong, Mapping):
                    wrong = iter([(key, text) for text, is_so in wrong.items() if is_so])
                found: list[Violation] = []
                for each in wrong:
                    if isinstance(each, str):
                        at = each
                        text = words.format(file=file, given=file[each])
                    else:
                        at, text = each
                    found.append(Violation(key=file.spelled(at), message=text))
                # What was asked for is known only once the rule has run.
                return [] if file.unresolved else found

            check.__doc__ = holds or rule.__doc__
            self.append(
                FormatRule(
                    name=name or getattr(rule, "__name__", ""),
                    source=source,
                    check=check,
                    severity=severity,
                    enforced=enforced,
                )
            )
            return rule

        if when is not None:
            add(when)
        return add

    unenforced = partialmethod(__call__, enforced=False)

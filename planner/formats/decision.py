"""One engine for all formats: a table says how the decisions of a plan stand in a file.

What is written of a plan, what a file decides, why a plan cannot be said, and what an edit changes
all follow from the same rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.documents.tree import load_own
from planner.errors import ExpressError
from planner.expr import Names, part_of
from planner.formats.format import DECISIONS, ExplainedKey, Located
from planner.formats.settings import (
    FUNCTIONS,
    Refused,
    Settings,
    as_whole,
    decided,
    flag,
    given,
    which,
)
from planner.spec.strategy import FIELD_DEFAULTS, Strategy

# Names of decisions, each with the key that decides it and the value.
Decided: TypeAlias = Iterator[tuple[str, str, Any]]
Of: TypeAlias = Callable[[Settings], Iterable[tuple[str, str, Any]]]
To: TypeAlias = Callable[[Context, Strategy], Iterable["KeyValue"]]
Cannot: TypeAlias = Callable[[Context, Strategy], Iterable[str] | Refused]
# An expression over ``plan_names``, or a function.
Value: TypeAlias = str | Callable[[Context, Strategy], object]
# Why a key has its value, or that by value; what stands in braces is an expression.
Why: TypeAlias = str | Mapping[Any, str]
# In the place of a value: the key stays as it is.
UNCHANGED: Final = object()


@dataclass(frozen=True, kw_only=True)
class KeyValue:
    """A key of a file, what it is set to, and why."""

    key: str  # Full key, as the format spells it
    value: Any  # Value as a reading of the file would contain it
    why: str = ""  # Empty: no line of the README
    is_assumed: bool = False
    """No decision, but what the plan's time or memory assumes: not written into a user's file."""
    is_default: bool = False
    """No decision, but needed beside one: what a user's file has there stays."""


def key_values(values: Mapping[str, tuple[object, str]]) -> Iterator[KeyValue]:
    """Yield a KeyValue per key; a value of None is not written."""
    for key, (value, why) in values.items():
        if value is not None:
            yield KeyValue(key=key, value=value, why=why)


def plan_names(
    context: Context,
    strategy: Strategy | None = None,
    table: Mapping[str, str] | None = None,
    **own: object,
) -> Names:
    """Names in expressions about a plan: fields of the strategy, parts of the context, a table's.

    Every field of a part that is None is None.
    """

    def ask(name: str) -> object:
        is_of_strategy = hasattr(strategy, name.partition(".")[0])
        return part_of(strategy if is_of_strategy else context, name)

    return Names(ask, FUNCTIONS, table, **own)


def writes(
    values: Mapping[str, tuple[Value, Why]], *, assumed: str = "False", is_default: bool = False
) -> To:
    """Return a writer of these keys; None is not written. ``assumed``: condition of is_assumed."""

    def to(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
        names = plan_names(context, strategy)
        for key, (value, why) in values.items():
            said = value(context, strategy) if callable(value) else names.value(value)
            if said is not None:
                yield KeyValue(
                    key=key,
                    value=said,
                    why=names.filled(why if isinstance(why, str) else why[said]),
                    is_assumed=names.value(assumed),
                    is_default=is_default,
                )

    return to


def reads(name: str, key: str, read: Callable[[Settings], object]) -> Of:
    """Return a reader of a decision, with the place of a key; ``read`` gives None for none."""

    def of(settings: Settings) -> Decided:
        value = read(settings)
        if value is not None:
            yield name, key, value

    return of


def reads_key(name: str, key: str, read: Callable[[Any], object] = as_whole) -> Of:
    """Return a reader of the decision that a key states; ``read`` gives None for other values."""
    return reads(name, key, lambda settings: read(given(settings, key)))


def reads_flag(name: str, key: str, value: object) -> Of:
    """Return a reader of a decision that holds where a flag is on."""
    return reads(name, key, lambda settings: value if flag(settings, key) else None)


def unless(conditions: Mapping[str, str]) -> Cannot:
    """Return a function that yields why a plan cannot be expressed: texts whose conditions hold."""
    return lambda context, strategy: plan_names(context, strategy).texts_that_hold(conditions)


def refusals(package: str) -> dict[str, partial[Iterator[str]]]:
    """Load ``cannot.yaml``: by part, a function that yields why a plan cannot be expressed."""
    tables = load_own(package, "cannot.yaml")
    names = tables.get("names", {})
    return {part: partial(_refused, table, names) for part, table in tables.items()}


def _refused(
    conditions: Mapping[str, object],
    names: Mapping[str, str],
    context: Context,
    strategy: Strategy | None = None,
    **own: object,
) -> Iterator[str]:
    return plan_names(context, strategy, names, **own).texts_that_hold(conditions)


def several(*functions: Callable[..., Iterable[Any]]) -> Callable[..., list[Any]]:
    """Join functions of a row into one that returns all of their results in order."""

    def given(*args: object) -> list[Any]:
        return [each for function in functions for each in function(*args)]

    return given


def nothing(*_: object) -> Iterator[Any]:
    """No line, no decision, no reason."""
    return iter(())


@dataclass(frozen=True, kw_only=True)
class KeyMapping:
    """Row of a format's table: a decision, or several that share keys, as written and as read."""

    names: tuple[str, ...]
    """Names of DECISIONS, of others: distinguished, but decided by no plan; none: its keys are
    compared one by one."""
    keys: tuple[str, ...]  # every key that carries it, in whatever file
    to: To = nothing
    """Keys that express a plan, with their values; called for plans that can be expressed."""
    of: Of = nothing  # Decisions that settings make, by name
    cannot: Cannot = nothing
    """Reasons why no key expresses it: name, what was given, what is allowed."""
    off: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys for which a plan has no line, where they are not just removed; KEPT: they
    stay."""


Table = Sequence[KeyMapping]


def of_key(
    name: str,
    key: str,
    value: Value,
    why: Why,
    *,
    read: Callable[[Any], object] = as_whole,
    follows: Callable[[Settings], object] | None = None,
    of: Of | None = None,
    off: object = REMOVED,
    cannot: Cannot = nothing,
    more: tuple[str, ...] = (),
    is_default: bool = False,
) -> KeyMapping:
    """Return the row of a decision that one key carries; a value of None is not written.

    What a file decides is read from the key's value, or ``follows`` from all settings. Without a
    name the key is needed beside a decision, and is none. ``more`` keys carry it too.
    """
    own = reads(name, key, follows) if follows else reads_key(name, key, read)
    return KeyMapping(
        names=(name,) if name else (),
        keys=(key, *more),
        to=writes({key: (value, why)}, is_default=is_default),
        of=(of or own) if name else nothing,
        off={key: UNCHANGED if is_default else off},
        cannot=cannot,
    )


def lines_of(table: Table, context: Context, strategy: Strategy) -> list[KeyValue]:
    """Keys and values that express a plan, in the order of the table."""
    return [line for row in table for line in row.to(context, strategy)]


def decided_in(table: Table, settings: Settings) -> dict[str, Located]:
    """Return the decisions that settings make, by the names of DECISIONS."""
    return {
        name: decided(settings, key, value)
        for row in table
        for name, key, value in row.of(settings)
        if name in DECISIONS
    }


def reasons(table: Table, context: Context, strategy: Strategy) -> list[str]:
    """Reasons why a format cannot express a plan; empty if it can."""
    found: list[str] = []
    for row in table:
        refused = row.cannot(context, strategy)
        found += which(refused) if isinstance(refused, Mapping) else refused
    return found


def refuse(title: str, found: Sequence[str]) -> None:
    """Raise ExpressError with every reason, if there are any."""
    if found:
        raise ExpressError("\n".join([f"{title} cannot express this plan:", *found]))


def changes(table: Table, settings: Settings, lines: Iterable[KeyValue]) -> dict[str, Any]:
    """Return what to set (REMOVED: to remove) so that a file states what the lines do, by key.

    A decision that the file states already, by whatever keys or by a default, is left as it is;
    where it follows from keys that change, it is stated too. A key that is off, and that would mean
    the same if it were missing, is not added. Keys are taken out last.
    """
    wanted = {line.key: line for line in lines}
    after = {key: Located(value=line.value, key=key) for key, line in wanted.items()}
    found: dict[str, Any] = {}
    before: dict[str, Any] | None = None
    while before != found:
        before = dict(found)
        for row in table:
            is_said = _values(row, _with(settings, found)) == _values(row, after)
            if not (row.names and is_said):
                found |= _edits(row, settings, wanted)
    for key, value in list(found.items()):
        # A key may be left out that is off.
        is_off = value is False or (value is not True and value in (0, 1, "none"))
        if key in settings or not is_off:
            continue
        without = {other: value for other, value in found.items() if other != key}
        now, then = _with(settings, found), _with(settings, without)
        is_decision = any(row.names and key in row.keys for row in table)
        if is_decision and all(_values(row, now) == _values(row, then) for row in table):
            found = without
    return dict(sorted(found.items(), key=lambda change: change[1] is REMOVED))


def _with(settings: Settings, found: Mapping[str, Any]) -> Settings:
    gone = tuple(f"{key}." for key, value in found.items() if value is REMOVED)
    after = {key: each for key, each in settings.items() if not f"{key}.".startswith(gone)}
    for key, value in found.items():
        if value is not REMOVED:
            after[key] = Located(value=value, key=key)
    return after


def _edits(row: KeyMapping, settings: Settings, wanted: Mapping[str, KeyValue]) -> dict[str, Any]:
    """Return the new values of a row's keys, where they differ from the present ones."""
    found: dict[str, Any] = {}
    for key in row.keys:
        line, there = wanted.get(key), settings.get(key)
        if line is None:
            value, is_left = row.off.get(key, REMOVED), there is None
        else:
            value, is_left = line.value, line.is_assumed or (line.is_default and bool(there))
        # The file may have that value already; true is not 1.
        is_same = there and type(there.value) is type(value) and there.value == value
        if not (is_left or value is UNCHANGED or is_same):
            found[key] = value
    return found


def _values(row: KeyMapping, settings: Settings) -> dict[str, Any]:
    """Return the decisions of a row without neutral values, which need no key."""
    return {
        name: value
        for name, _, value in row.of(settings)
        if name not in FIELD_DEFAULTS or value != FIELD_DEFAULTS[name]
    }


def explained(
    lines: Iterable[KeyValue], text: Callable[[Any], str] = str
) -> tuple[ExplainedKey, ...]:
    """The lines of a README that go with the lines of a file."""
    return tuple(
        ExplainedKey(key=line.key, value=text(line.value), why=line.why)
        for line in lines
        if line.why
    )

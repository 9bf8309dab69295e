"""Rows of Megatron's table, and the lines they make."""

from collections.abc import Iterable, Iterator

from planner.cost.context import Context
from planner.formats.decision import Cannot, Decision, Line, Of, To, says, stated
from planner.formats.format import Value
from planner.formats.megatron.options import load_options, typed
from planner.formats.settings import Settings, given
from planner.spec.strategy import Strategy


def chosen(option: str, *words: object, why: str = "") -> Line:
    """An option with its values."""
    value = typed(load_options()[option], list(map(str, words)))
    return Line(key=option, value=value, why=why)


def words_of(option: str, value: object) -> list[str]:
    """An option and its value as words of a command."""
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    return [option, *(f"{each:g}" if isinstance(each, float) else str(each) for each in values)]


def all_words(lines: Iterable[Line]) -> list[str]:
    """Options and values as the words of a command."""
    return [word for line in lines for word in words_of(line.key, line.value)]


def nothing(_context: Context, _strategy: Strategy) -> Iterator[str]:
    """No reason why a plan cannot be said."""
    return iter(())


def row(named: str, options: str, to: To, of: Of, cannot: Cannot = nothing) -> Decision:
    """A row; an option of it whose value nobody knows says something else than any plan."""
    keys = tuple(options.split())

    def decides(settings: Settings) -> Iterator[tuple[str, Value]]:
        yield from of(settings)
        yield from (
            (key, settings[key]) for key in keys if key in settings and given(settings, key) is None
        )

    return Decision(names=tuple(named.split()), keys=keys, to=to, of=decides, cannot=cannot)


def degree(
    name: str, option: str, why: str, *, least: int = 2, cannot: Cannot = nothing
) -> Decision:
    """A number of the strategy that an option states, where it is not below ``least``."""

    def value(_: Context, strategy: Strategy) -> object:
        number = getattr(strategy, name)
        return number if number >= least else None

    return row(name, option, says(option, value, why), stated(name, option), cannot)

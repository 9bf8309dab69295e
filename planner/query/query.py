"""A question: model, cluster, and what was said beside them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from planner.errors import InputError, Problem
from planner.query.options import OPTIONS, PLACES, Option, check_names


@dataclass(frozen=True, kw_only=True)
class Query:
    """A question: model, cluster, and what was said beside them."""

    model: str
    cluster: str
    given: Mapping[str, Any] = field(default_factory=dict)  # by name, only what was said
    defaults: Mapping[str, Any] = field(default_factory=dict)  # a project's own, beneath
    problems: tuple[Problem, ...] = ()  # with values that could not be read

    @classmethod
    def of(
        cls,
        model: str,
        cluster: str,
        *,
        defaults: Mapping[str, object] | None = None,
        **given: object,
    ) -> "Query":
        """Return the question of keywords; TypeError for unknown names, other problems kept."""
        check_names(given)
        said, problems = _values(given)
        beneath, more = _values(defaults or {})
        return cls(
            model=str(model),
            cluster=str(cluster),
            given=said,
            defaults=beneath,
            problems=(*problems, *more),
        )

    def get(self, name: str) -> Any:  # noqa: ANN401 - of the option's kind
        """Return what was said, else the project's default, else the option's own."""
        for said in (self.given, self.defaults):
            if name in said:
                return said[name]
        option = OPTIONS[name]
        return () if option.many else option.default

    def with_(self, **changes: object) -> "Query":
        """Return the question with other values of some options; None takes an option back."""
        places: Any = {name: str(changes.pop(name)) for name in PLACES if name in changes}
        check_names(changes)
        said, problems = _values(changes)
        kept = {name: value for name, value in self.given.items() if name not in changes}
        kept |= said
        given = {name: kept[name] for name in OPTIONS if name in kept}
        return replace(self, given=given, problems=(*self.problems, *problems), **places)

    def words(self) -> tuple[str, ...]:
        """Return the words of the command line that state it."""
        said = (OPTIONS[name].words(value) for name, value in self.given.items())
        return (self.model, self.cluster, *chain.from_iterable(said))


def _values(
    given: Mapping[str, object], table: Collection[Option] = OPTIONS.values()
) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """Values by name in the order of the table, and what is wrong with the others."""
    found, problems = dict[str, Any](), []
    for option in table:
        said = given.get(option.name)
        if said is None:
            continue
        try:
            value = option.read(said)
            option.check(value)
        except ValueError as error:
            problems.append(Problem(where="command line", key=option.flag, message=str(error)))
            continue
        if value != ():
            found[option.name] = value
    return found, tuple(problems)


def read_options(table: Collection[Option], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of options by name; raises InputError with every problem."""
    found, problems = _values(given, table)
    InputError.check(problems)
    return found

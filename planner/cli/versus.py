"""``--versus KEY=VALUE``: the same question with one thing, or several, said otherwise."""

import re
from collections.abc import Sequence

from planner.answers.plan import answered
from planner.answers.why import Side, Versus
from planner.cli.output import fail
from planner.errors import NothingFitsError
from planner.query.options import OPTIONS, PLACES
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.report.sizing_words import unmet_limits
from planner.search.search import Progress
from planner.search.space.vocabulary import ALIASES
from planner.spelling import did_you_mean

MEMBERS = re.compile(r",(?=\s*[A-Za-z][A-Za-z_-]*=)")
# Options that change what is shown, or how it is found.
LEFT_OUT = ("like", "fix", "frontier", "pareto", "objective", "time_limit")
SPELLED = {option.spelled: name for name, option in OPTIONS.items() if option.spelled}
WORDS = (*PLACES, *ALIASES, *SPELLED, *(name for name in OPTIONS if name not in LEFT_OUT))
BATCHES = {"global_batch": "global_batch_tokens", "global_batch_tokens": "global_batch"}


def otherwise(query: Query, text: str) -> Query:
    """Return the question with KEY=VALUE, or several with commas between; raises InputError."""
    for member in MEMBERS.split(text):
        key, equals, value = (part.strip() for part in member.partition("="))
        if not equals or not value:
            fail("--versus", f"must be KEY=VALUE such as precision=fp8 or cp=1; given {member!r}")
        query = _changed(query, key.lower().replace("-", "_"), value)
    return query


def _changed(query: Query, key: str, value: str) -> Query:
    """The question with one option said otherwise; what may be repeated is said beside."""
    if key not in WORDS:
        hint = did_you_mean(key, WORDS) or f"known are {', '.join(WORDS)}"
        fail("--versus", f"nothing is called {key!r}. {hint}")
    name = {**ALIASES, **SPELLED}.get(key, key)
    if name in PLACES:
        return query.with_(**{name: value})
    option = OPTIONS[name]
    if option.of == "layout":
        members = (one for each in query.get("fix") for one in each.split(","))
        query = query.with_(fix=[one for one in members if _fixed_name(one) != name])
        return query.with_(**{name: value})
    if option.many:
        return query.with_(**{name: [*query.get(name), value]})
    return query.with_(**{name: value}, **({BATCHES[name]: None} if name in BATCHES else {}))


def _fixed_name(fixed: str) -> str:
    name = fixed.partition("=")[0].strip().lower()
    return ALIASES.get(name, name)


def compare(query: Query, texts: Sequence[str], progress: Progress) -> Versus:
    """Answer the question as asked and otherwise; raises where no side has a plan."""
    queries = [("", query), *((text, otherwise(query, text)) for text in texts)]
    asked = [(label, resolve(each)) for label, each in queries]
    sides, errors = list[Side](), list[NothingFitsError]()
    for label, resolved in asked:
        try:
            answer = answered(resolved, 1, progress)
            if not answer.plans:
                raise unmet_limits(answer)
            sides.append(Side(label=label, answer=answer))
        except NothingFitsError as error:
            errors.append(error)
            sides.append(Side(label=label, answer=None, why_none=str(error)))
    if len(errors) == len(sides):
        raise errors[0]
    return Versus(asked=sides[0], others=tuple(sides[1:]))

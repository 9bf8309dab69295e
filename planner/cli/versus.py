"""``--versus KEY=VALUE``: the same question with one thing, or several, said otherwise."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from planner.answers.versus import Side, Versus
from planner.catalog.names import did_you_mean
from planner.cli import ask
from planner.cli.layout import RECOMPUTE
from planner.cli.words import length
from planner.errors import InputError, NothingFitsError
from planner.search.search import Progress
from planner.search.space.vocabulary import ALIASES, DIMENSIONS

OPTION = "--versus"
MEMBERS = re.compile(r",(?=\s*[A-Za-z][A-Za-z_-]*=)")
LISTS = {"set": "settings", **{name: name for name in ("limit", "where", "allow", "forbid")}}
"""Options that may be repeated: what is said otherwise is said beside them."""
NUMBERS: Mapping[str, type] = {
    "global_batch": int,
    "lora_rank": int,
    "mtp_layers": int,
    "margin": float,
    "imbalance": float,
}
PLACES = ("model", "cluster")
LEFT = ("settings", "limit", "where", "allow", "forbid", "pareto", "time_limit", "objective")
WORDS = tuple(
    name.replace("_", "-") for name in (*PLACES, *ask.Options.__annotations__) if name not in LEFT
)
LAYOUT = (*DIMENSIONS, *ALIASES, RECOMPUTE)
BATCHES = {"global_batch": "global_batch_tokens", "global_batch_tokens": "global_batch"}


@dataclass(frozen=True, kw_only=True)
class Asking:
    """What a question says, by the names of its options."""

    model: str
    cluster: str
    fix: Sequence[str]
    options: Mapping[str, Any]

    def otherwise(self, text: str) -> "Asking":
        """The same with KEY=VALUE, or several with commas between; raises InputError."""
        asking = self
        for member in MEMBERS.split(text):
            key, equals, value = (part.strip() for part in member.partition("="))
            if not equals or not value:
                message = f"must be KEY=VALUE such as precision=fp8 or cp=1; given {member!r}"
                raise InputError.single("command line", OPTION, message)
            asking = asking._with(key.lower().replace("-", "_"), value)
        return asking

    def _with(self, key: str, value: str) -> "Asking":
        said = {"model": self.model, "cluster": self.cluster, "fix": self.fix}
        options = dict(self.options)
        if key in PLACES:
            said[key] = value
        elif key in LAYOUT:
            name = ALIASES.get(key, key)
            kept = [one for each in self.fix for one in each.split(",") if _name(one) != name]
            said["fix"] = [*kept, f"{name}={value}"]
        elif key in LISTS:
            options[LISTS[key]] = [*(options.get(LISTS[key]) or ()), value]
        elif key.replace("_", "-") in WORDS:
            options[key] = [value] if key == "schedule" else _read(key, value)
            options |= {BATCHES[key]: None} if key in BATCHES else {}
        else:
            known = (*WORDS, *LISTS, *LAYOUT)
            hint = did_you_mean(key, known) or f"known are {', '.join(known)}"
            raise InputError.single("command line", OPTION, f"nothing is called {key!r}. {hint}")
        return Asking(options=options, **said)  # type: ignore[arg-type]

    def read(self) -> ask.Asked:
        """The question as the search takes it; raises InputError."""
        return ask.read(self.model, self.cluster, fix=self.fix, **self.options)


def _name(fixed: str) -> str:
    name = fixed.partition("=")[0].strip().lower()
    return ALIASES.get(name, name)


def _read(key: str, value: str) -> object:
    """The value of an option as its command takes it."""
    try:
        return length(value) if key == "seq_len" else NUMBERS.get(key, str)(value)
    except (ValueError, typer.BadParameter) as error:
        raise InputError.single("command line", OPTION, f"{key}: {error}") from None


def compare(asking: Asking, texts: Sequence[str], progress: Progress) -> Versus:
    """Answer the question as asked and otherwise; raises where no side has a plan."""
    questions = [("", asking), *((text, asking.otherwise(text)) for text in texts)]
    read = [(label, question.read()) for label, question in questions]
    sides, errors = list[Side](), list[NothingFitsError]()
    for label, asked in read:
        try:
            answer = asked.answered(1, progress)
            if not answer.plans:
                raise ask.unmet_limits(answer)
            sides.append(Side(label=label, answer=answer))
        except NothingFitsError as error:
            errors.append(error)
            sides.append(Side(label=label, answer=None, why_none=str(error)))
    if len(errors) == len(sides):
        raise errors[0]
    return Versus(asked=sides[0], others=tuple(sides[1:]))

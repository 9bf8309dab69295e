"""The rules of a check: what each says, how severe it is, where it comes from."""

from dataclasses import dataclass

from planner.documents.tree import load_own
from planner.formats import registry as formats
from planner.formats.format import Severity

LEGALITY = "legality"


@dataclass(frozen=True)
class RuleInfo:
    """A rule as reports describe it."""

    name: str
    description: str
    severity: Severity = "error"
    source: str = ""  # file of the framework that enforces it, where it is one of a framework


# Rules that belong to no format: what must hold.
OWN = {
    name: RuleInfo(name, description, severity)
    for severity, rules in load_own(__package__, "rules.yaml").items()
    for name, description in rules.items()
}
# Of keys and values as a format reads them.
READING = {
    "unknown_key": "Every key is one that the framework knows.",
    "bad_value": "Every value is of the kind and in the range of its key.",
    "duplicate_key": "No key is given twice.",
}


def describe(name: str) -> RuleInfo:
    """Return what reports state about a rule; for an unknown one, the words of its name."""
    if name in OWN:
        return OWN[name]
    family, _, short = name.partition(".")
    words = (short or name).replace("_", " ").strip()
    words = words[:1].upper() + words[1:]
    if family == LEGALITY:
        # The rules of the search come with all that they ask of costs: only reports need them.
        from planner.search.space.legality import RULES

        messages = {rule.name: " ".join(rule.message.split()) for rule in RULES}
        return RuleInfo(name, messages.get(short, words))
    if family in formats.format_names():
        for rule in formats.load_format(family).rules:
            if rule.name == short:
                return RuleInfo(name, words, rule.severity, rule.source)
    return RuleInfo(name, READING.get(short, words))

"""Narrowing of the search by the user: options in, values and rules of the space out."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import InputError, Problem
from planner.limits import MAX_CONDITION_CHARACTERS, MAX_LITERAL, MAX_OPTIONS, brief
from planner.search.space.contradictions import Fixed, contradictions
from planner.search.space.expressions import Condition, hinted, parse_expression
from planner.search.space.rule import Rule
from planner.search.space.vocabulary import (
    ALIASES,
    ALWAYS,
    DERIVED,
    DIMENSIONS,
    FEATURES,
    OFF_BY_DEFAULT,
    RECOMPUTE,
    RECOMPUTE_KINDS,
    Dimension,
)
from planner.spec.strategy import LAYER_POLICY_NAMES, OFFLOAD_POLICIES

_NUMBER = re.compile(r"[0-9]{1,10}")
# What ``--allow`` refuses by name: it changes what is trained, and is not modelled.
NOT_COVERED = (
    *("fp16", "bf16", "int8", "topk", "powersgd", "onebit-adam", "onebit-lamb"),
    *("local", "diloco", "async-server", "zenflow"),
)


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """The part of the space to search; without arguments all of it."""

    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Codes a dimension may take from ``--fix``, instead of those it has by itself."""
    rules: tuple[Rule, ...] = ()  # one for every condition; the name is what the user wrote
    kinds: tuple[str, ...] = LAYER_POLICY_NAMES  # every layer takes one of these
    allowed: frozenset[str] = frozenset()  # Names given to ``--allow``
    texts: tuple[str, ...] = ()  # every option as given, comma lists taken apart: ``--fix tp=8``

    @property
    def widening(self) -> tuple[str, ...]:
        """Options in ``texts`` that let more be searched."""
        return tuple(text for text in self.texts if text.partition(" ")[0] == "--allow")

    @property
    def limiting(self) -> tuple[str, ...]:
        """Options in ``texts`` that exclude something from the search."""
        return tuple(text for text in self.texts if text not in self.widening)

    def without(self, text: str) -> "Narrowing":
        """Return the same with one of ``texts`` dropped; raises ValueError where it is none."""
        if text not in self.texts:
            raise ValueError(f"{text!r} is none of {', '.join(self.texts)}")
        return narrowing_of(other for other in self.texts if other != text)


def read_narrowing(
    *,
    fix: Sequence[str] = (),
    limit: Sequence[str] = (),
    where: Sequence[str] = (),
    allow: Sequence[str] = (),
    forbid: Sequence[str] = (),
) -> Narrowing:
    """Read the options of a command; raises one InputError with every problem found."""
    return _read(
        {"--fix": fix, "--limit": limit, "--where": where, "--allow": allow, "--forbid": forbid}
    )


def narrowing_of(texts: Iterable[str]) -> Narrowing:
    """Read options written as in ``Narrowing.texts``; raises InputError where they contradict."""
    given: dict[str, list[str]] = {option: [] for option in _READERS}
    for text in texts:
        option, _, value = text.partition(" ")
        given[option].append(value)
    return _read(given)


def _read(given: Mapping[str, Sequence[str]]) -> Narrowing:
    reader = _Reader()
    for option, texts in given.items():
        for text in texts:
            reader.read(option, text)
    return reader.narrowing()


class _Reader:
    """Reads option after option and keeps the problems of all."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.texts: list[str] = []
        self.fixed: dict[str, Fixed] = {}
        self.conditions: dict[str, Condition] = {}
        self.messages: dict[str, str] = {}
        self.kinds: dict[str, frozenset[str]] = {}
        self.names: dict[str, set[str]] = {"--allow": set(), "--forbid": set()}

    def add(self, option: str, message: str, *, leaves_nothing: bool = False) -> None:
        """Note one problem."""
        self.problems.append(
            Problem(
                where="command line", key=option, message=message, leaves_nothing=leaves_nothing
            )
        )

    def read(self, option: str, given: str) -> None:
        """Read one option, or note what is wrong with it."""
        if len(given) > MAX_CONDITION_CHARACTERS:
            self.add(option, f"at most {MAX_CONDITION_CHARACTERS} characters; given {len(given)}")
            return
        given = " ".join(given.split())
        for item in [given] if option == "--where" else _members(given):
            text = f"{option} {item}"
            if text in self.texts:
                continue
            if len(self.texts) == MAX_OPTIONS:
                self.add(option, f"at most {MAX_OPTIONS} options narrow a search")
                return
            self.texts.append(text)
            try:
                _READERS[option](self, text, item)
            except ValueError as error:
                self.add(option, f"{error}; given {brief(item)}")

    def fix(self, text: str, item: str) -> None:
        """Read ``name=value`` or ``name=value|value``."""
        name, equals, values = (part.strip() for part in item.lower().partition("="))
        name = ALIASES.get(name, name)
        known = (*DIMENSIONS, *ALIASES, *DERIVED, RECOMPUTE)
        if not equals or not values:
            raise ValueError("must be NAME=VALUE or NAME=VALUE|VALUE, such as tp=8 or pp=2|4")
        if name not in known:
            raise ValueError(hinted(f"unknown dimension {brief(name)}", name, known))
        dimension = DIMENSIONS.get(name)
        if dimension is None:  # a derived number, or recomputation
            kinds = RECOMPUTE_KINDS if name == RECOMPUTE else ()
            codes = {word: i for i, word in enumerate(kinds)}
            dimension = Dimension(name=name, largest=MAX_LITERAL, words=codes)
        words = [value.strip() for value in values.split("|")]
        chosen = tuple(sorted({_code(dimension, word) for word in words}))
        earlier = self.fixed.setdefault(name, Fixed(text=text, values=chosen))
        if earlier.values != chosen:
            self.add("--fix", f"{name} is fixed twice; given {earlier.text} and {text}")
        elif name in DERIVED:
            listed = ", ".join(map(str, chosen))
            self.hold(text, f"{name} in ({listed})")
        elif name == RECOMPUTE:
            left = [list(RECOMPUTE_KINDS)[code] for code in chosen]
            self.kinds[text] = frozenset(kind for word in left for kind in RECOMPUTE_KINDS[word])

    def hold(self, text: str, expression: str, *, single: bool = False) -> None:
        """Keep a condition that must hold."""
        condition, kinds = parse_expression(expression, single=single)
        self.messages[text] = "The command line allows no other."
        if condition:
            self.conditions[text] = condition
        if kinds:
            self.kinds[text] = frozenset.intersection(*kinds)

    def limit(self, text: str, item: str) -> None:
        """Read one comparison."""
        self.hold(text, item, single=True)

    def forbid(self, text: str, item: str) -> None:
        """Read the name of a feature that must not be used."""
        name = item.lower()
        if name in OFF_BY_DEFAULT:
            raise ValueError(f"{name} is not searched unless --allow names it")
        if name not in FEATURES:
            raise ValueError(hinted("unknown feature", name, tuple(FEATURES)))
        self.names["--forbid"].add(name)
        self.hold(text, FEATURES[name])
        self.messages[text] = f"The command line forbids {name}."
        if name == "offload":
            self.kinds[text] = frozenset(LAYER_POLICY_NAMES) - {*OFFLOAD_POLICIES}

    def allow(self, _: str, item: str) -> None:
        """Read the name of a feature that may be used."""
        name, known = item.lower(), (*OFF_BY_DEFAULT, *FEATURES)
        if name.partition(":")[0] in NOT_COVERED:
            raise ValueError("ways to train otherwise are not covered")
        if name in ALWAYS:
            raise ValueError(f"{name} is always searched, and needs no --allow")
        if name not in known:
            raise ValueError(hinted("unknown feature", name, known))
        self.names["--allow"].add(name)

    def narrowing(self) -> Narrowing:
        """Return what was read; raises InputError with all problems."""
        for name in sorted(self.names["--allow"] & self.names["--forbid"]):
            text = f"--allow {name} and --forbid {name} contradict each other"
            self.add("--forbid", text, leaves_nothing=True)
        for text, message in contradictions(self.fixed, self.conditions, self.kinds):
            self.add(text.partition(" ")[0], message, leaves_nothing=True)
        if self.problems:
            raise InputError(dict.fromkeys(self.problems))
        rules = tuple(
            Rule(name=text, needs=each.needs, message=self.messages[text], check=each.clauses)
            for text, each in self.conditions.items()
        )
        return Narrowing(
            values={name: self.fixed[name].values for name in DIMENSIONS if name in self.fixed},
            rules=rules,
            kinds=tuple(
                kind for kind in LAYER_POLICY_NAMES if all(kind in s for s in self.kinds.values())
            ),
            allowed=frozenset(self.names["--allow"]),
            texts=tuple(self.texts),
        )


_READERS: Mapping[str, Callable[[_Reader, str, str], None]] = {
    "--fix": _Reader.fix,
    "--limit": _Reader.limit,
    "--where": _Reader.hold,
    "--allow": _Reader.allow,
    "--forbid": _Reader.forbid,
}


def _members(given: str) -> list[str]:
    """The members of a comma list; commas in brackets part nothing."""
    members, depth = [""], 0
    for character in given:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            members.append("")
        else:
            members[-1] += character
    return [member.strip() for member in members]


def _code(dimension: Dimension, word: str) -> int:
    """The code or number a word stands for; raises ValueError where it is none."""
    if dimension.words:
        if word not in dimension.words:
            known = tuple(dimension.words)
            raise ValueError(hinted(f"{dimension.name} cannot be {brief(word)}", word, known))
        return dimension.words[word]
    if not _NUMBER.fullmatch(word) or not dimension.least <= int(word) <= dimension.largest:
        raise ValueError(f"{dimension.name} takes {dimension.allowed}, not {brief(word)}")
    return int(word)

"""Narrowing of the search by the user: options in, values and rules of the space out."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from planner.errors import InputError, Problem
from planner.limits import MAX_CONDITION_CHARACTERS, MAX_LITERAL, MAX_OPTIONS, brief
from planner.search.space.expressions import (
    ALIASES,
    ALWAYS,
    DERIVED,
    DIMENSIONS,
    FEATURES,
    KNOWN_NAMES,
    OFF_BY_DEFAULT,
    RECOMPUTE,
    RECOMPUTE_KINDS,
    Condition,
    Dimension,
    hinted,
    parse_expression,
)
from planner.search.space.rule import Rule
from planner.spec.strategy import LAYER_POLICY_NAMES, OFFLOAD_POLICIES
from planner.units import Array, Mask

_NUMBER = re.compile(r"[0-9]{1,10}")
# What ``--allow`` refuses by name: it changes what is trained, and is not modelled.
NOT_COVERED = (
    *("fp16", "bf16", "int8", "topk", "powersgd", "onebit-adam", "onebit-lamb"),
    *("local", "diloco", "async-server", "zenflow"),
)


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """The values one dimension is fixed to, and the option that says so."""

    text: str
    values: tuple[int, ...]


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
        """Return the narrowing without one of ``texts``; ValueError where it is none of them."""
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
        if not equals or not values:
            raise ValueError("must be NAME=VALUE or NAME=VALUE|VALUE, such as tp=8 or pp=2|4")
        if name not in KNOWN_NAMES:
            raise ValueError(hinted(f"unknown dimension {brief(name)}", name, KNOWN_NAMES))
        dimension = DIMENSIONS.get(name)
        if dimension is None:  # a derived number, or recomputation
            kinds = RECOMPUTE_KINDS if name == RECOMPUTE else ()
            codes = {word: i for i, word in enumerate(kinds)}
            dimension = Dimension(
                name=name,
                largest=MAX_LITERAL,
                words=codes,
            )
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
        InputError.check(self.problems)
        return Narrowing(
            values={name: self.fixed[name].values for name in DIMENSIONS if name in self.fixed},
            rules=tuple(
                Rule(
                    name=text,
                    needs=each.needs,
                    message=self.messages[text],
                    check=each.clauses,
                )
                for text, each in self.conditions.items()
            ),
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


def contradictions(
    fixed: Mapping[str, Fixed],
    conditions: Mapping[str, Condition],
    kinds: Mapping[str, frozenset[str]],
) -> Iterator[tuple[str, str]]:
    """Yield an option of every contradiction, and what is wrong in words.

    ``conditions`` and ``kinds`` are by option.
    """
    masks = {
        text: np.array([kind in left for kind in LAYER_POLICY_NAMES])
        for text, left in kinds.items()
    }
    for culprits in _conflicts(masks):
        yield culprits[0], f"{_leave(culprits)} nothing that may happen to a layer's activations"
    plain = {text: each for text, each in conditions.items() if not each.needs_job}
    for dimension in DIMENSIONS.values():
        yield from _in_one(dimension, fixed.get(dimension.name), plain)
    for text, condition in plain.items():
        if len(condition.needs) > 1 and set(condition.needs) <= fixed.keys():
            yield from _in_several(fixed, text, condition, plain)


def _leave(texts: list[str]) -> str:
    return f"{' and '.join(texts)} {'leave' if len(texts) > 1 else 'leaves'}"


def _all(masks: Mapping[str, Mask]) -> Mask:
    return np.asarray(np.logical_and.reduce(list(masks.values())))


def minimal_conflict(
    limits: Sequence[str], holds: Callable[[tuple[str, ...]], bool]
) -> tuple[str, ...]:
    """Limits that cannot hold together, of which none can be spared; all together they do not.

    Earlier limits are preferred: later ones are in it only where earlier ones alone are in no
    conflict. Without limits where nothing holds at all. ``holds``: some layout keeps the limits.
    By halves: QuickXplain (Junker, AAAI 2004).
    """

    def conflict(kept: tuple[str, ...], left: tuple[str, ...], *, is_new: bool) -> tuple[str, ...]:
        """The limits left that belong to a conflict, beside those kept."""
        if is_new and not holds(kept):
            return ()
        if len(left) <= 1:
            return left
        first, second = left[: len(left) // 2], left[len(left) // 2 :]
        of_second = conflict((*kept, *first), second, is_new=True)
        of_first = conflict((*kept, *of_second), first, is_new=bool(of_second))
        return (*of_first, *of_second)

    return conflict((), tuple(limits), is_new=True)


def _conflicts(masks: Mapping[str, Mask]) -> list[list[str]]:
    """Sets of options that leave nothing, of which none can be spared.

    Each option that leaves nothing by itself; else one set, of earlier options rather than later.
    """

    def holds(kept: Collection[str]) -> bool:
        return bool(_all({text: masks[text] for text in kept}).any())

    if holds(masks):
        return []
    alone = [[text] for text in masks if not holds((text,))]
    return alone or [list(minimal_conflict(tuple(masks), holds))]


def _own(dimension: Dimension, conditions: Mapping[str, Condition]) -> dict[str, Mask]:
    """Return the values that each condition on this dimension alone allows."""
    columns = {dimension.name: dimension.domain}
    return {
        text: condition(None, columns)
        for text, condition in conditions.items()
        if condition.needs == (dimension.name,)
    }


def _in_one(
    dimension: Dimension, fixed: Fixed | None, conditions: Mapping[str, Condition]
) -> Iterator[tuple[str, str]]:
    own = _own(dimension, conditions)
    asked = {fixed.text: np.isin(dimension.domain, fixed.values)} if fixed else {}
    for culprits in _conflicts({**asked, **own}):
        message = f"{_leave(culprits)} no {dimension.name}"
        if not fixed or fixed.text not in culprits:
            yield culprits[0], f"{message} among {dimension.allowed}"
            continue
        left = dimension.domain[_all(own)]
        if len(left) and dimension.words:
            names = "|".join(dimension.shown(int(code)) for code in left)
            message += f"; what would do is {dimension.name}={names}"
        elif len(left):
            nearest = _nearest(left, fixed.values)[1]
            message += f"; the nearest that would do is {dimension.name}={nearest}"
        yield fixed.text, message


def _nearest(candidates: Array, values: tuple[int, ...]) -> tuple[int, int]:
    """The least distance of a candidate from a value, and that candidate."""
    distance = np.abs(candidates[:, None] - np.array(values)[None, :]).min(axis=1)
    position = int(distance.argmin())
    return int(distance[position]), int(candidates[position])


def _in_several(
    fixed: Mapping[str, Fixed], text: str, condition: Condition, conditions: Mapping[str, Condition]
) -> Iterator[tuple[str, str]]:
    values = {name: fixed[name].values for name in condition.needs}
    # More combinations of fixed values are left for the search to try.
    if prod(len(each) for each in values.values()) > 100_000:
        return
    grid = np.meshgrid(*values.values(), indexing="ij")
    columns = {name: column.ravel() for name, column in zip(values, grid, strict=True)}
    if condition(None, columns).any():
        return
    texts = [fixed[name].text for name in condition.needs]
    message = f"{_leave([*texts, text])} nothing"
    found = [
        (distance, f"{name}={value}")
        for name in condition.needs
        for distance, value in _changing(DIMENSIONS[name], values, condition, conditions)
    ]
    hint = f"; the nearest that would do is {min(found)[1]}" if found else ""
    yield texts[0], message + hint


def _changing(
    dimension: Dimension,
    values: Mapping[str, tuple[int, ...]],
    condition: Condition,
    conditions: Mapping[str, Condition],
) -> Iterator[tuple[int, int]]:
    """Yield how far one dimension must go, and where to, while others keep their first value."""
    if dimension.words:
        return
    domain = dimension.domain
    columns = {name: np.full(len(domain), each[0]) for name, each in values.items()}
    columns[dimension.name] = domain
    left = domain[_all({**_own(dimension, conditions), "": condition(None, columns)})]
    if len(left):
        yield _nearest(left, values[dimension.name][:1])

"""Contradictions whatever the space: which options, and the nearest that would do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from planner.search.space.expressions import Condition
from planner.search.space.vocabulary import DIMENSIONS, Dimension
from planner.spec.strategy import LAYER_POLICY_NAMES
from planner.units import Array, Mask


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """The values one dimension is fixed to, and the option that says so."""

    text: str
    values: tuple[int, ...]


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


def _conflicts(masks: Mapping[str, Mask]) -> list[list[str]]:
    """Sets of options that leave nothing, of which none can be spared.

    Each option that leaves nothing by itself; else one set, of earlier options rather than later.
    """
    if not masks or _all(masks).any():
        return []
    alone = [[text] for text, mask in masks.items() if not mask.any()]
    if alone:
        return alone
    kept = dict(masks)
    for text in reversed(list(masks)):
        rest = {other: mask for other, mask in kept.items() if other != text}
        if not _all(rest).any():
            kept = rest
    return [list(kept)]


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

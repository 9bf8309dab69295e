"""Sequences of a step of verl's: how long, how many at once, and how many times."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.formats.format import Value
from planner.formats.settings import Settings, flag, whole


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What an optimizer step trains on."""

    length: Value
    """Tokens of a sequence, at most."""
    is_filled: bool = False
    """Whether every sequence has as many."""
    micro: Value | None = None
    number: Value | None = None
    total: Value | None = None
    """Sequences of the step, where the number of replicas is not known."""
    bound: Value | None = None
    """Tokens of a micro-batch on one GPU, where those bound it."""


def longest(words: Settings) -> Value:
    """Tokens that a sequence has at most: prompt and response."""
    if "length" in words:
        return words["length"]
    prompt, response = words["prompt"], words["response"]
    number = whole(words, "prompt", 0) + whole(words, "response", 0)
    key = " + ".join((prompt.key, response.key))
    return Value(value=number, key=key, line=response.line or prompt.line)


def sequences(words: Settings) -> int:
    """Of an optimizer step: those of the mini-batch, each answered so many times; 0: not known."""
    answers = whole(words, "group", 0) if "group" in words else 1
    return whole(words, "sequences", 0) * answers


def _placed(place: Value, value: Any) -> Value:  # noqa: ANN401 - of a decision
    return Value(value=value, key=place.key, line=place.line)


def batch_of(words: Settings, dp: int | None, *, ranks: int, pieces: int) -> Batch:
    """The batch on ``dp`` replicas, a sequence on so many ``ranks`` and filled up to ``pieces``.

    With a bound on tokens a micro-batch is that many tokens, of as many sequences of equal length
    as it holds of the longest; the step has as many such micro-batches as its tokens need.
    """
    length = longest(words)
    length = _placed(length, -(-int(length.value) // pieces) * pieces)
    if is_dynamic(words):
        return _bounded(words, length, dp, ranks=ranks, pieces=pieces)
    micro, total = micro_batch(words, dp), sequences(words)
    number = None
    if micro and dp and total and total % (dp * micro.value) == 0:
        number = _placed(words["sequences"], total // (dp * micro.value))
    is_filled = words["packed"].line > 0 and not flag(words, "packed")
    whole_batch = _placed(words["sequences"], total) if micro and total and dp is None else None
    return Batch(
        length=length,
        is_filled=is_filled,
        micro=micro,
        number=number,
        total=whole_batch,
        bound=None,
    )


def is_dynamic(words: Settings) -> bool:
    """Whether tokens bound a micro-batch, not sequences."""
    return flag(words, "dynamic")


def micro_batch(words: Settings, dp: int | None) -> Value | None:
    """Sequences of a micro-batch on one replica."""
    own = whole(words, "micro", 0)
    if own > 0:
        return _placed(words["micro"], own)
    of_all = whole(words, "micro_of_all", 0)
    return _placed(words["micro_of_all"], of_all // dp) if dp and of_all >= dp else None


def _bounded(words: Settings, length: Value, dp: int | None, *, ranks: int, pieces: int) -> Batch:
    bound, total = words["tokens"], sequences(words)
    size, each = whole(words, "tokens", 0) * ranks, max(1, int(length.value))
    micro = size // each
    if not micro:
        return Batch(length=length)
    filled = max(each, size // micro // pieces * pieces)
    number = -(-total * each // (dp * micro * filled)) if dp and total else None
    return Batch(
        length=_placed(bound, filled),
        micro=_placed(bound, micro),
        number=_placed(words["sequences"], number) if number else None,
        bound=bound,
    )


def of_batch(batch: Batch) -> Iterator[tuple[str, Value]]:
    """What a batch decides."""
    if batch.is_filled:
        yield "seq_len", batch.length
    if batch.micro:
        yield "micro_batch", batch.micro
    if batch.number:
        yield "num_micro_batches", batch.number
    if batch.total:
        yield "global_batch", batch.total

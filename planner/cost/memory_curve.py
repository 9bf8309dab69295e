"""HBM of a rank over an iteration: what is always there, and what the schedule adds and frees."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.cost.ledger import StageLedger
from planner.cost.ledger_item import LedgerItem
from planner.cost.timeline import Slice
from planner.schedules.operation import Slot

ACTIVATIONS, TRANSIENT, REST = "activations", "transient", "buffers and overhead"
OUTPUTS = "outputs kept"
STATES = {
    "weights": "weights",
    "frozen_weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
}
"""Groups of items that are always there, by the first word of the ledger's names; others: REST."""
GATHERED = ("activations.sent_on", "kept_logits")
"""What some pipelines keep of every micro-batch to the end: then it is a group of its own."""
GROUPS = (*dict.fromkeys(STATES.values()), REST, OUTPUTS, ACTIVATIONS, TRANSIENT)


@dataclass(frozen=True, kw_only=True)
class MemoryCurve:
    """Bytes of one rank of a stage, by group, from each moment to the next."""

    stage: int
    times_s: tuple[float, ...]
    """Where something changes; the last is the iteration's end."""
    bytes_by_group: dict[str, tuple[float, ...]]
    """By GROUPS; one value for every time but the last."""

    @property
    def total_bytes(self) -> tuple[float, ...]:
        """All groups together."""
        return tuple(map(sum, zip(*self.bytes_by_group.values(), strict=True)))


def _group(item: LedgerItem, *, keeps_sent: bool) -> str:
    """The group that an item of a ledger is shown in."""
    head = item.name.partition(".")[0]
    if keeps_sent and item.name in GATHERED:
        return OUTPUTS
    return head if head in (ACTIVATIONS, TRANSIENT) else STATES.get(head, REST)


def _kinds(slot: Slot, kind: str) -> int:
    return sum(operation.kind == kind for operation in slot)


def memory_curve(ledger: StageLedger, slices: Sequence[Slice], *, keeps_sent: bool) -> MemoryCurve:
    """The ledger of a stage's fullest moment, spread over its slices.

    Activations: ``bytes · held / most held``, held chunks being those whose forward began and
    whose weight gradient has not ended; transients while a backward runs; all else is there
    throughout, freed blocks that the allocator keeps with it. With ``keeps_sent`` logits and what
    was sent on gather up to the fullest moment and stay to the last backward. So the highest point
    is the ledger's peak. Chunks are taken to keep the same.
    """
    groups = dict.fromkeys(GROUPS, 0.0)
    for item in ledger.items:
        groups[_group(item, keeps_sent=keeps_sent)] += item.num_bytes
    moments = _moments(slices)
    most = max((held for _, held, _, _ in moments), default=0) or 1
    fullest = [begun for _, held, is_backward, begun in moments if held == most and is_backward]
    forwards = max(fullest, default=1)
    varying = {
        ACTIVATIONS: tuple(groups[ACTIVATIONS] * held / most for _, held, _, _ in moments),
        OUTPUTS: tuple(groups[OUTPUTS] * min(begun / forwards, 1.0) for *_, begun in moments),
        TRANSIENT: tuple(groups[TRANSIENT] * is_backward for _, _, is_backward, _ in moments),
    }
    return MemoryCurve(
        stage=ledger.stage,
        times_s=(*(time for time, *_ in moments), slices[-1].end_s),
        bytes_by_group={
            name: varying.get(name) or (value,) * len(moments) for name, value in groups.items()
        },
    )


def _moments(slices: Sequence[Slice]) -> list[tuple[float, int, bool, int]]:
    """Of every slice its start, the chunks held in it, whether it runs backward, forwards begun.

    The tail holds nothing of a micro-batch any more.
    """
    held = begun = 0
    last = max((place for place, each in enumerate(slices) if each.slot), default=-1)
    moments: list[tuple[float, int, bool, int]] = []
    for place, each in enumerate(slices):
        forwards = _kinds(each.slot, "F")
        held, begun = held + forwards, begun + forwards
        kept = begun if place <= last else 0
        moments.append((each.start_s, held, _kinds(each.slot, "B") > 0, kept))
        held -= _kinds(each.slot, "W")
    return moments

"""One iteration in time: its slices and memory, and as a graph of nodes per pipeline stage."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.answers.base import Plan
from planner.cost.ledger import stage_ledgers
from planner.cost.stage_model import price
from planner.cost.time_items import RECOMPUTE, TRANSFER, chunk_stages
from planner.cost.timeline import WAIT, MemoryCurve, Slice, Timeline, memory_curve, timeline
from planner.cost.traffic import Message, Traffic, traffic_of
from planner.schedules.closed_form import Operation
from planner.schedules.simulate import inputs_of, num_chunks
from planner.spec.cluster import Collective
from planner.spec.strategy import Strategy

MAX_PASSES = 400_000  # of all stages: more are neither drawn nor looked at


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Timeline and memory curve of every stage."""

    timeline: Timeline
    curves: tuple[MemoryCurve, ...]  # one per stage


def too_long(strategy: Strategy) -> str:
    """Return why an iteration is not simulated, or nothing: too many forwards and backwards."""
    chunks = num_chunks(strategy.schedule, strategy.pp, strategy.vpp)
    passes = 2 * chunks * strategy.num_micro_batches
    if passes <= MAX_PASSES:
        return ""
    return (
        f"{passes:,} forwards and backwards ({strategy.num_micro_batches:,} micro-batches through "
        f"{chunks} chunks of layers); at most {MAX_PASSES:,} are drawn"
    )


def iteration(plan: Plan) -> Iteration:
    """Simulate one iteration of a plan that is not :func:`too_long`."""
    subject = price(plan.context, plan.strategy)
    drawn = timeline(subject)
    keeps = subject.model.keeps_all_sent
    stages = zip(stage_ledgers(subject), drawn.stages, strict=True)
    return Iteration(
        timeline=drawn,
        curves=tuple(memory_curve(ledger, own, keeps_sent=keeps) for ledger, own in stages),
    )


NodeKind = Literal["compute", "collective", "send", "receive"]
FLUSH, WORLD = "pipeline flush", "world"  # all stages wait for one another behind the pipeline
FLUSH_BYTES = 4.0  # per rank: a number of the gradient norm


@dataclass(frozen=True, kw_only=True)
class Node:
    """One thing a rank does; edges are whole microseconds, so that lengths add up."""

    id: int
    name: str
    kind: NodeKind
    start_us: int
    duration_us: int
    after: tuple[int, ...]  # nodes of the same rank that end before it starts
    num_bytes: float = 0.0
    collective: Collective | None = None
    axis: str = ""  # of a collective: its group, as :mod:`planner.cost.traffic` names it, or WORLD
    peer: int = 0  # of a transfer: the other stage
    tag: int = 0


Nodes = tuple[Node, ...]


@dataclass(kw_only=True)
class _Stage:
    """Nodes of a stage in the making, and the time up to which they are made."""

    number: int
    num_micro_batches: int
    traffic: Traffic
    stages: Sequence[int]  # of every chunk
    nodes: list[Node] = field(default_factory=list)
    ends: tuple[int, ...] = ()  # what the next node waits for
    now_s: float = 0.0

    def add(
        self,
        kind: NodeKind,
        name: str,
        seconds: float,
        **carried: Any,  # noqa: ANN401 - fields of a node that moves bytes
    ) -> None:
        """Append a node that takes the next ``seconds``; the next one waits for it."""
        start, self.now_s = round(self.now_s * 1e6), self.now_s + seconds
        node = Node(
            id=len(self.nodes),
            name=name,
            kind=kind,
            start_us=start,
            duration_us=round(self.now_s * 1e6) - start,
            after=self.ends,
            **carried,
        )
        self.nodes.append(node)
        self.ends = (node.id,)

    def exchange(self, name: str, seconds: float, one: Message) -> None:
        """Append a collective."""
        carried = {"num_bytes": one.num_bytes, "collective": one.collective, "axis": one.axis}
        self.add("collective", name, seconds, **carried)

    def transfer(self, kind: NodeKind, operation: Operation, seconds: float, stage: int) -> None:
        """Append what a forward or backward of a micro-batch sends to, or gets from, a stage."""
        place = (operation.kind == "B") * len(self.stages) + operation.chunk
        self.add(
            kind,
            f"{kind} {operation.kind}{operation.micro_batch}",
            seconds,
            num_bytes=self.traffic.sent_bytes,
            peer=stage,
            # A number of its own.
            tag=place * self.num_micro_batches + operation.micro_batch,
        )

    def work(
        self,
        name: str,
        seconds: float,
        messages: Sequence[tuple[Message, float]],
    ) -> None:
        """Kernels, and their collectives: those that show behind them, the others beside them."""
        before = self.ends
        for message, shown_s in messages:
            if not shown_s:
                self.exchange(f"{name}: {message.item}", 0.0, message)
        beside, self.ends = self.ends, before
        self.add("compute", name, seconds - sum(shown_s for _, shown_s in messages))
        if beside != before:
            self.ends += beside
        for message, shown_s in messages:
            if shown_s:
                self.exchange(f"{name}: {message.item}", shown_s, message)

    def messages(self, each: Slice) -> list[tuple[Message, float]]:
        """Messages of a slice with what of their item shows, dealt out by their bytes."""
        found: list[Message] = []
        for kind, chunk, _ in each.slot:
            if kind != "W":
                own = self.traffic.chunks[chunk]
                found += own.forward if kind == "F" else own.backward
        if not each.slot:
            found += [one for one in self.traffic.tails[self.number] if one.item == each.kind]
        shown_s = dict(each.seconds)
        if RECOMPUTE in shown_s:
            shown_s[RECOMPUTE] *= self.traffic.recomputed_fraction[self.number]
        total: dict[str, float] = {}
        for one in found:
            total[one.item] = total.get(one.item, 0.0) + one.num_bytes
        per_byte = {item: shown_s.get(item, 0.0) / total[item] for item in total}
        return [(one, per_byte[one.item] * one.num_bytes) for one in found]

    def slot(self, each: Slice) -> None:
        """Receive, gather over tp, compute, collectives, send."""
        self.now_s = each.start_s
        # What other stages have sent, or need.
        inputs = inputs_of(each.slot, len(self.stages))
        received = [one for one in inputs if self.stages[one.chunk] != self.number]
        chunks = [one.chunk + {"F": 1, "B": -1, "W": 0}[one.kind] for one in each.slot]
        sent = [
            (one, self.stages[chunk])
            for one, chunk in zip(each.slot, chunks, strict=True)
            if 0 <= chunk < len(self.stages) and self.stages[chunk] != self.number
        ]
        transfer_s = each.seconds.get(TRANSFER, 0.0)
        on_send = transfer_s if sent else 0.0
        on_receive = transfer_s - on_send if received else 0.0
        for operation in received:
            seconds = on_receive if operation is received[-1] else 0.0
            self.transfer("receive", operation, seconds, self.stages[operation.chunk])
        if received and self.traffic.gathered_bytes:
            gather = Message(
                item=TRANSFER,
                collective="all_gather",
                axis="tp",
                num_bytes=len(received) * self.traffic.gathered_bytes,
            )
            self.exchange("gather received", 0.0, gather)
        numbers = dict.fromkeys(str(operation.micro_batch) for operation in each.slot)
        rest_s = each.end_s - each.start_s - on_send - on_receive
        self.work(f"{each.kind} {'+'.join(numbers)}", rest_s, self.messages(each))
        # Every send waits for the work alone; what follows waits for the one that shows.
        done = last = self.ends
        for operation, target in sent:
            self.ends = done
            self.transfer("send", operation, on_send, target)
            if on_send:
                last, on_send = self.ends, 0.0
        self.ends = last

    def flush(self, at_s: float, num_gpus: int) -> None:
        """Wait for all stages."""
        everyone = Message(
            item=FLUSH,
            collective="all_reduce",
            axis=WORLD,
            num_bytes=FLUSH_BYTES * num_gpus,
        )
        self.now_s = at_s
        self.exchange(FLUSH, 0.0, everyone)

    def tail(self, slices: Sequence[Slice]) -> None:
        """Append the work of a stage after the pipeline; what is hidden runs with the first."""
        named = {each.kind for each in slices}
        hidden = [(one, 0.0) for one in self.traffic.tails[self.number] if one.item not in named]
        for each in slices:
            messages = self.messages(each)
            if messages and not hidden:
                for message, shown_s in messages:
                    self.exchange(each.kind, shown_s, message)
                continue
            seconds = each.end_s - each.start_s
            self.work(each.kind, seconds, [*hidden, *messages])
            hidden = []


def execution(plan: Plan, drawn: Timeline) -> tuple[Nodes, ...]:
    """Nodes of every stage; ranks of a stage do the same, each with its own groups and neighbours.

    A pass of a micro-batch is one node of kernels, a node per collective and group with the bytes
    of all its layers, and a transfer each way. Nodes wait for those before them in the order of
    the schedule: collectives that show are behind the kernels, those that hide altogether beside
    them. Replayed with its own durations it takes the simulation's time where that is not longer
    than the closed form, and then the tails.
    """
    strategy, subject = plan.strategy, price(plan.context, plan.strategy)
    traffic, stages = traffic_of(subject), chunk_stages(subject)
    waits = plan.context.traits.overlap.optimizer_waits_for_all_stages and strategy.pp > 1
    flush_s = max(each.end_s for slices in drawn.stages for each in slices if each.slot)
    found = []
    for number, slices in enumerate(drawn.stages):
        made = _Stage(
            number=number,
            num_micro_batches=strategy.num_micro_batches,
            traffic=traffic,
            stages=stages,
        )
        for each in slices:
            if each.slot:
                made.slot(each)
        # The tail starts when all stages are here, or when the stage's own passes are over.
        if waits:
            made.flush(flush_s, strategy.num_gpus)
        made.tail([each for each in slices if not each.slot and each.kind != WAIT])
        found.append(tuple(made.nodes))
    return tuple(found)

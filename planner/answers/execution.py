"""One iteration in time: its slices and memory, and as a graph of nodes per pipeline stage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.answers.base import Plan
from planner.cost.ledger import stage_ledgers
from planner.cost.passes import RECOMPUTE, TRANSFER, chunk_stages
from planner.cost.stage_model import PricedStrategy, price
from planner.cost.timeline import WAIT, MemoryCurve, Slice, Timeline, memory_curve, timeline
from planner.cost.traffic import Message, Traffic, traffic_of
from planner.schedules.operation import Operation, Slot
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
class _Line:
    """Nodes of a stage in the making, and the time up to which it is made."""

    nodes: list[Node] = field(default_factory=list)
    ends: tuple[int, ...] = ()  # what the next slice waits for
    now_s: float = 0.0

    def add(
        self,
        kind: NodeKind,
        name: str,
        seconds: float,
        after: tuple[int, ...],
        **carried: Any,  # noqa: ANN401 - fields of a node that moves bytes
    ) -> tuple[int, ...]:
        """Append a node that takes the next ``seconds``; return its number."""
        start, self.now_s = round(self.now_s * 1e6), self.now_s + seconds
        node = Node(
            id=len(self.nodes),
            name=name,
            kind=kind,
            start_us=start,
            duration_us=round(self.now_s * 1e6) - start,
            after=after,
            **carried,
        )
        self.nodes.append(node)
        return (node.id,)

    def exchange(
        self, name: str, seconds: float, after: tuple[int, ...], one: Message
    ) -> tuple[int, ...]:
        """Append a collective."""
        carried = {"num_bytes": one.num_bytes, "collective": one.collective, "axis": one.axis}
        return self.add("collective", name, seconds, after, **carried)

    def work(
        self,
        name: str,
        seconds: float,
        messages: Sequence[tuple[Message, float]],
        after: tuple[int, ...],
    ) -> tuple[int, ...]:
        """Kernels, and their collectives: those that show behind them, the others beside them."""
        beside = after
        for message, shown_s in messages:
            if not shown_s:
                beside = self.exchange(f"{name}: {message.item}", 0.0, beside, message)
        kernels = self.add("compute", name, seconds, after)
        last = kernels if beside == after else (*kernels, *beside)
        for message, shown_s in messages:
            if shown_s:
                last = self.exchange(f"{name}: {message.item}", shown_s, last, message)
        return last


@dataclass(frozen=True, kw_only=True)
class _Maker:
    """Converter of slices of any stage into nodes."""

    strategy: Strategy
    traffic: Traffic
    stages: Sequence[int]  # of every chunk

    def tag(self, operation: Operation) -> int:
        """A number of its own for what a forward or a backward of a micro-batch sends."""
        kind, chunk, micro_batch = operation
        number = self.strategy.num_micro_batches
        return ((kind == "B") * len(self.stages) + chunk) * number + micro_batch

    def sent(self, slot: Slot, stage: int) -> Iterator[tuple[Operation, int]]:
        """Operations of a slot whose results another stage needs, and which."""
        for operation in slot:
            target = operation.chunk + {"F": 1, "B": -1, "W": 0}[operation.kind]
            if 0 <= target < len(self.stages) and self.stages[target] != stage:
                yield operation, self.stages[target]

    def messages(self, each: Slice, stage: int) -> list[tuple[Message, float]]:
        """Messages of a slice with what of their item shows, dealt out by their bytes."""
        found: list[Message] = []
        for kind, chunk, _ in each.slot:
            if kind != "W":
                own = self.traffic.chunks[chunk]
                found += own.forward if kind == "F" else own.backward
        if not each.slot:
            found += [one for one in self.traffic.tails[stage] if one.item == each.kind]
        shown = dict(each.seconds)
        if RECOMPUTE in shown:
            shown[RECOMPUTE] *= self.traffic.recomputed_fraction[stage]
        total: dict[str, float] = {}
        for one in found:
            total[one.item] = total.get(one.item, 0.0) + one.num_bytes
        return [(one, shown.get(one.item, 0.0) * one.num_bytes / total[one.item]) for one in found]

    def slot(self, line: _Line, each: Slice, stage: int) -> None:
        """Receive, gather over tp, compute, collectives, send."""
        line.now_s, after = each.start_s, line.ends
        needed = inputs_of(each.slot, len(self.stages))
        # Of other stages, and where they ran.
        received = [(one, source) for one in needed if (source := self.stages[one.chunk]) != stage]
        sent = list(self.sent(each.slot, stage))
        transfer_s = each.seconds.get(TRANSFER, 0.0)
        on_send = transfer_s if sent else 0.0
        on_receive = transfer_s - on_send if received else 0.0
        size = self.traffic.sent_bytes
        for number, (operation, source) in enumerate(received, start=1):
            seconds = on_receive if number == len(received) else 0.0
            name = f"receive {operation.kind}{operation.micro_batch}"
            tag = self.tag(operation)
            after = line.add("receive", name, seconds, after, num_bytes=size, peer=source, tag=tag)
        if received and self.traffic.gathered_bytes:
            gather = Message(
                item=TRANSFER,
                collective="all_gather",
                axis="tp",
                num_bytes=len(received) * self.traffic.gathered_bytes,
            )
            after = line.exchange("gather received", 0.0, after, gather)
        messages = self.messages(each, stage)
        rest_s = each.end_s - each.start_s - on_send - on_receive
        name = " ".join([each.kind, "+".join(dict.fromkeys(str(one[2]) for one in each.slot))])
        after = line.work(name, rest_s - sum(shown for _, shown in messages), messages, after)
        line.ends = after
        for operation, target in sent:
            name = f"send {operation.kind}{operation.micro_batch}"
            tag = self.tag(operation)
            last = line.add("send", name, on_send, after, num_bytes=size, peer=target, tag=tag)
            if on_send:
                line.ends, on_send = last, 0.0

    def tail(self, line: _Line, slices: Sequence[Slice], stage: int) -> None:
        """Append the work of a stage after the pipeline; what is hidden runs with the first."""
        named = {each.kind for each in slices}
        hidden = [(one, 0.0) for one in self.traffic.tails[stage] if one.item not in named]
        for each in slices:
            messages = self.messages(each, stage)
            seconds = each.end_s - each.start_s - sum(shown for _, shown in messages)
            if messages and not hidden:
                for message, shown in messages:
                    line.ends = line.exchange(each.kind, shown, line.ends, message)
                continue
            line.ends = line.work(each.kind, seconds, [*hidden, *messages], line.ends)
            hidden = []

    def stage(self, slices: Sequence[Slice], stage: int, flush_s: float | None) -> Nodes:
        """Nodes of a stage; its tail starts at ``flush_s``, or when its own passes are over."""
        line = _Line()
        for each in slices:
            if each.slot:
                self.slot(line, each, stage)
        if flush_s is not None:
            everyone = Message(
                item=FLUSH,
                collective="all_reduce",
                axis=WORLD,
                num_bytes=FLUSH_BYTES * self.strategy.num_gpus,
            )
            line.now_s = flush_s
            line.ends = line.exchange(FLUSH, 0.0, line.ends, everyone)
        self.tail(line, [one for one in slices if not one.slot and one.kind != WAIT], stage)
        return tuple(line.nodes)


def execution(plan: Plan, drawn: Timeline) -> tuple[Nodes, ...]:
    """Nodes of every stage; ranks of a stage do the same, each with its own groups and neighbours.

    A pass of a micro-batch is one node of kernels, a node per collective and group with the bytes
    of all its layers, and a transfer each way. Nodes wait for those before them in the order of
    the schedule: collectives that show are behind the kernels, those that hide altogether beside
    them. Replayed with its own durations it takes the simulation's time where that is not longer
    than the closed form, and then the tails.
    """
    subject: PricedStrategy = price(plan.context, plan.strategy)
    maker = _Maker(
        strategy=plan.strategy, traffic=traffic_of(subject), stages=chunk_stages(subject)
    )
    ends = [max(each.end_s for each in stage if each.slot) for stage in drawn.stages]
    waits = plan.context.traits.overlap.optimizer_waits_for_all_stages and plan.strategy.pp > 1
    flush_s = max(ends) if waits else None
    return tuple(maker.stage(slices, stage, flush_s) for stage, slices in enumerate(drawn.stages))

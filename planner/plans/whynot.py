"""When nothing fits: which limits bind, by how much, and the nearest change that would fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.stage import StageModel, stage_host_bytes, stage_peak_bytes
from planner.errors import NothingFitsError
from planner.frameworks.registry import CURRENT, FRAMEWORKS, load_traits
from planner.plans.plan import Answer
from planner.search.candidates import screen
from planner.search.rules import RULES
from planner.search.space import enumerate_space
from planner.spec.strategy import OFFLOAD_CODES
from planner.units import Array, format_bytes

MAX_NODE_FACTOR = 64
SEQUENCE_DIVISORS = (2, 4, 8, 16)
SHOWN_RULES = 4


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """The legal strategy that misses by least, even with everything recomputed."""

    layout: str
    missing_bytes: float
    stage: int
    limit: str


def _even_split(model: StageModel, num_stages: int, num_layers: int) -> Array:
    base, extra = divmod(num_layers, num_stages)
    row = np.full(num_stages, float(base))
    row[num_stages - extra :] += 1.0
    return np.broadcast_to(row, (len(model), num_stages))


def shortfall(context: Context) -> Shortfall | None:
    """Find the legal strategy nearest to fitting, all layers recomputed; None if none is legal."""
    strategy = enumerate_space(context).strategy
    best: Shortfall | None = None
    for num_stages in np.unique(strategy.pp).tolist():
        model = stage_model(context, strategy.take(strategy.pp == num_stages))
        layers = _even_split(model, num_stages, context.model.num_blocks)
        peaks = stage_peak_bytes(model, layers, 0.0 * layers, layers)
        missing = peaks - model.usable_bytes
        host = stage_host_bytes(model, layers) - model.host_limit_bytes[:, None]
        worst = np.maximum(missing, host).max(axis=1)
        row = int(worst.argmin())
        if best is not None and worst[row] >= best.missing_bytes:
            continue
        stage = int(np.maximum(missing, host)[row].argmax())
        chosen = model.strategy
        best = Shortfall(
            layout=f"dp={chosen.dp[row]} tp={chosen.tp[row]} pp={num_stages} "
            f"ZeRO-{chosen.zero_stage[row]} micro-batch {chosen.micro_batch[row]} "
            f"offload {OFFLOAD_CODES[chosen.offload[row]]}",
            missing_bytes=float(worst[row]),
            stage=stage,
            limit="HBM" if missing[row, stage] >= host[row, stage] else "host memory",
        )
    return best


def _fits(context: Context) -> bool:
    strategy = enumerate_space(context).strategy
    return bool(len(strategy)) and bool(screen(context, strategy)[0].any())


def _with_nodes(context: Context, num_nodes: int) -> Context:
    cluster = context.cluster
    num_accelerators = num_nodes * cluster.node.num_accelerators
    fabric = replace(cluster.fabric, num_accelerators=num_accelerators)
    return replace(context, cluster=replace(cluster, num_nodes=num_nodes, fabric=fabric))


def _fewest_nodes(context: Context) -> str | None:
    """Smallest number of nodes that fits, by doubling and bisection."""
    low, high = context.cluster.num_nodes, 2 * context.cluster.num_nodes
    while not _fits(_with_nodes(context, high)):
        low, high = high, 2 * high
        if high > MAX_NODE_FACTOR * context.cluster.num_nodes:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(_with_nodes(context, middle)) else (middle, high)
    node = context.cluster.node
    return f"{high} x {node.name} ({high * node.num_accelerators:,} GPUs) fit"


def _other_frameworks(context: Context) -> Iterator[tuple[str, Context]]:
    asked = context.traits
    back = "" if asked.profile == CURRENT else f" --profile {CURRENT}"
    for name in FRAMEWORKS:
        if name != asked.name:
            traits = load_traits(name, CURRENT, asked.settings)
            yield f"--framework {name}{back} fits", replace(context, traits=traits)


def _shorter_sequences(context: Context) -> Iterator[tuple[str, Context]]:
    for divisor in SEQUENCE_DIVISORS:
        seq_len = context.job.seq_len // divisor
        if seq_len:
            job = replace(context.job, seq_len=seq_len)
            yield f"--seq-len {seq_len} fits", replace(context, job=job)


def _rounder_batches(context: Context) -> Iterator[tuple[str, Context]]:
    for step in (8, 64, 512):
        batch = -(-context.job.global_batch // step) * step
        if batch != context.job.global_batch:
            job = replace(context.job, global_batch=batch)
            yield f"--global-batch {batch} fits", replace(context, job=job)


def _no_margin(context: Context) -> Iterator[tuple[str, Context]]:
    if context.margin_fraction:
        yield "--margin 0 fits", replace(context, margin_fraction=0.0)


def relaxations(context: Context) -> list[str]:
    """The smallest change of each kind that makes at least one strategy fit."""
    kinds = (_no_margin, _other_frameworks, _shorter_sequences, _rounder_batches)
    first = [
        next((text for text, changed in kind(context) if _fits(changed)), None) for kind in kinds
    ]
    return [text for text in (_fewest_nodes(context), *first) if text is not None]


def _legal_line(result: Answer) -> str:
    messages = {rule.name: rule.message for rule in RULES}
    lines = [
        f"  {name} ({count:,} dropped): {messages[name]}"
        for name, count in list(result.dropped().items())[:SHOWN_RULES]
        if name in messages
    ]
    return "\n".join(["no layout is legal; the rules that dropped most:", *lines])


def nothing_fits(contexts: Sequence[Context], result: Answer) -> NothingFitsError:
    """Explain an empty answer: the binding limit, the bytes missing, and what would fit."""
    context = contexts[0]
    cluster = context.cluster
    head = (
        f"nothing fits: {context.model.name} on {cluster.num_accelerators:,} x "
        f"{cluster.accelerator.name}, batch {context.job.global_batch} x {context.job.seq_len}"
    )
    nearest = shortfall(context)
    if nearest is None:
        body = _legal_line(result)
    else:
        body = (
            f"limit: {nearest.limit}; the nearest layout ({nearest.layout}, everything "
            f"recomputed) needs {format_bytes(nearest.missing_bytes)} more per GPU on stage "
            f"{nearest.stage}"
        )
    changes = relaxations(context)
    tail = "nearest changes: " + ("; ".join(changes) if changes else "none of those tried fits")
    return NothingFitsError("\n".join((head, body, tail)))

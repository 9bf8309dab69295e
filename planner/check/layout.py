"""Problems of a layout: rules of the search, memory, groups on the network, a faster plan."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from planner.answers.base import Deadline
from planner.answers.layout import differences
from planner.answers.repair import memory_deficits, repair
from planner.check.check import legality_findings, not_said_yet
from planner.check.result import Figures
from planner.check.start import ASSUMED, Start, at_least
from planner.cost.estimate import Estimate, estimate
from planner.formats.format import Finding, Format
from planner.query.from_file import Request
from planner.query.layout import Layout
from planner.query.values import NOWHERE
from planner.search.near import Accepts
from planner.search.ranking.penalties import penalties_of
from planner.search.search import search
from planner.search.space.narrow import read_narrowing
from planner.spec.strategy import SEARCHED_FIELDS
from planner.units import format_bytes, format_count, format_seconds, format_stage

LEAST_ADVICE_FRACTION = 0.02  # plans that are less faster than this are not worth a change
# Where a deficit is shown: the first of them that the file states.
DECISIONS = ("micro_batch", "zero_stage", "tp", "pp", "recompute_layers_per_stage", "num_gpus")


def network_findings(layout: Layout) -> Iterator[Finding]:
    """Groups that talk often and leave the scale-up domain, and nodes that are used in part."""
    cluster, strategy, places = layout.context.cluster, layout.strategy, layout.places
    domain, size = cluster.domain.name, cluster.domain.num_accelerators
    tp, cp = strategy.tp, strategy.cp
    # How much slower the next level is.
    outer = cluster.levels[min(cluster.num_inner_levels + 1, len(cluster.levels) - 1)]
    inner, beyond = cluster.domain.achieved_bytes_per_s, outer.achieved_bytes_per_s
    slow = f" (beyond it {format_count(inner / beyond)} times slower)" if inner > beyond else ""
    groups = (
        ("tp", tp, f"tp {tp}", "; it talks in every layer"),
        ("cp", tp * cp, f"tp x cp = {tp} x {cp}", ""),
        (
            "ep",
            strategy.etp * strategy.ep,
            f"etp x ep = {strategy.etp} x {strategy.ep}",
            "; experts exchange tokens in every layer",
        ),
    )
    for name, span, words, talks in groups:
        leaves = span > size or size % span != 0
        if strategy.num_gpus > size and leaves and getattr(strategy, name) > 1:
            text = f"{words} leaves the {domain} domain of {size} GPUs{slow}{talks}"
            yield places.finding(f"network.{name}_in_domain", text, name)
            break
    per_node = cluster.node.num_accelerators
    rest = strategy.num_gpus % per_node
    if strategy.num_gpus > per_node and rest:
        text = f"{strategy.num_gpus} GPUs are no whole number of nodes of {per_node}; {rest} left"
        yield places.finding("network.whole_nodes", text, "num_gpus", "dp", "tp", "pp")


def layout_findings(
    layout: Layout, request: Request, said: Sequence[Finding], start: Start | None = None
) -> tuple[list[Finding], Figures | None]:
    """Legality, then network, memory and advice of what is legal.

    Without a ``start`` of repairs it is a plan's. Where advice was looked for and no plan is
    clearly better, there is nothing to note about where groups lie.
    """
    limit_s, kind = request.time_limit_s, start.kind if start else None
    illegal = list(legality_findings(layout, is_plan=start is None))
    # Whole replicas where plans always shard: their memory is known all the same.
    has_known_memory = {one.rule for one in illegal} == {"legality.zero_stage_offered"}
    if illegal and not (has_known_memory and layout.strategy.zero_stage == 0):
        return not_said_yet(illegal, said), None
    made = estimate(layout.context, layout.strategy)
    memory = list(memory_findings(layout, made, said, start, limit_s))
    if illegal:
        return [*not_said_yet(illegal, said), *memory], None
    network = not_said_yet(list(network_findings(layout)), said)
    advice: list[Finding] = []
    if request.with_advice and not any(
        finding.severity == "error" for finding in (*said, *network, *memory)
    ):
        advice = list(advice_findings(layout, made.iter_time_s, limit_s, kind))
        network = network if advice else [one for one in network if one.severity != "note"]
    return [*network, *memory, *advice], Figures.of(made)


def memory_findings(
    layout: Layout,
    made: Estimate,
    said: Sequence[Finding],
    start: Start | None,
    time_limit_s: float | None,
) -> Iterator[Finding]:
    """An error per stage that does not fit, with one way out; a warning where it is tight.

    A note where it may fit, depending on what is assumed of the training script. The way out is one
    that the file can hold, where there is one.
    """
    memory = made.memory
    if memory.verdict == "tight":
        gpus = format_stage(memory.stage, layout.strategy.pp)
        text = f"{gpus} needs {format_bytes(memory.peak_bytes)} of {format_bytes(memory.hbm_bytes)}"
        if memory.free_bytes < 0.0:
            text += (
                f", {format_bytes(memory.ledger.released_bytes)} of it cached blocks that the "
                "allocator frees, which takes time"
            )
        else:
            text += (
                f"; estimates of {layout.context.traits.name} were off by "
                f"{format_bytes(memory.uncertainty_bytes)} on published runs"
            )
        yield layout.places.finding("memory.tight", text, *DECISIONS)
    if memory.verdict != "does not fit":
        return

    def assumed(part: str) -> str:
        return " and ".join(ASSUMED[name][part] for name in layout.assumes)

    least = at_least(layout)
    found = list(memory_deficits(layout.context, layout.strategy))
    leanest = estimate(least.context, least.strategy).memory
    if layout.assumes and leanest.fits and leanest.free_bytes >= 0.0:
        text = (
            f"{found[0].words}, where {assumed('usual').format(layout.context.job.seq_len)}, "
            f"which is assumed: {assumed('stated by')} "
            f"{'say' if layout.assumes[1:] else 'says'} what is so"
        )
        yield layout.places.finding("memory.fits", text, *DECISIONS, severity="note")
        return
    found = list(memory_deficits(least.context, least.strategy))
    of_what = " of HBM" * any(deficit.limit != "HBM" for deficit in found)
    accepts = None
    if start is not None:
        allowed = frozenset((one.rule, one.key) for one in said)
        accepts = partial(start.accepts, least, layout.context, allowed, [])
    fix = _fix(least, of_what, accepts, Deadline(time_limit_s))
    even = f" even where {assumed('least')}" * bool(layout.assumes)
    for number, deficit in enumerate(found):
        text = deficit.words + even
        yield layout.places.finding("memory.fits", text if number else f"{text}; {fix}", *DECISIONS)


def _fix(layout: Layout, of_what: str, accepts: Accepts | None, deadline: Deadline) -> str:
    """The smallest repair in words, one that leaves a margin before one that does not."""
    most, is_complete = 0, True
    deadline.num_left = 4 if accepts else 2
    for accepted in (accepts, None) if accepts else (None,):
        for context in (layout.cautious, layout.context):
            answer = repair(
                context,
                layout.strategy,
                top=1,
                num_gpus=layout.strategy.num_gpus,
                accepts=accepted,
                time_limit_s=deadline.share_s(),
            )
            is_complete &= answer.near.is_complete
            most = max(most, answer.near.num_changes)
            if answer.repaired:
                best = answer.repaired[0].plan
                made = in_words(differences(layout.strategy, best.strategy))
                size = format_bytes(best.estimate.memory.peak_bytes)
                pairs = ((n, getattr(layout.strategy, n)) for n in SEARCHED_FIELDS)
                changed = [n for n, old in pairs if getattr(best.strategy, n) != old]
                has_keys = all(layout.places.of.get(name, NOWHERE).line for name in changed)
                is_kept = accepts is not None and accepted is None and not has_keys
                limit = " (this file has no keys for it)" * is_kept
                return f"nearest that fits, {size}{of_what}: {made}{limit}"
    if not is_complete:
        return "no change that makes it fit was found within the time limit"
    return f"no change of at most {most} fields makes it fit on these GPUs"


def in_words(changes: dict[str, tuple[str, str]]) -> str:
    """``tp 2 to 4, recompute none to full``."""
    return ", ".join(f"{name} {old} to {new}" for name, (old, new) in changes.items())


def advice_findings(
    layout: Layout, iter_time_s: float, time_limit_s: float | None, kind: Format | None = None
) -> Iterator[Finding]:
    """A note with the best plan found, where it is faster by LEAST_ADVICE_FRACTION or more.

    It is the one that a search ranks first, of those that the file's format can say, without
    ``kind`` of all that the framework can; and it is ranked before the file's own as clearly.
    """
    context = replace(layout.cautious, ranking="simplicity")
    context = kind.narrowed(context) if kind else context
    # On as many GPUs, and leaving the framework's uncertainty free.
    narrowing = read_narrowing(where=(f"gpus == {layout.strategy.num_gpus}",))
    result = search(
        context, top=1, narrowing=narrowing, with_frontier=False, time_limit_s=time_limit_s
    )
    if not result.plans:
        return
    best = result.plans[0]
    weighed_s = iter_time_s * prod(penalties_of(context, layout.strategy).values())
    faster = iter_time_s / best.iteration_s - 1.0
    if min(faster, weighed_s / best.weighed_s - 1.0) < LEAST_ADVICE_FRACTION:
        return
    changes = in_words(differences(layout.strategy, best.strategy))
    yield layout.places.finding(
        "advice.better_plan",
        f"{faster:.0%} faster for the same batch on the same GPUs "
        f"({format_seconds(iter_time_s)} to {format_seconds(best.iteration_s)}): {changes}",
    )

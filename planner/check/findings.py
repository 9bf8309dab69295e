"""Problems of a layout: rules of the search, groups on the network, a faster plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from planner.formats.format import SEVERITIES, CheckContext, Finding, Format, ParsedConfig
from planner.query.rules import LEGALITY
from planner.query.values import Values, batch_of, gpus_of, known_of
from planner.spec.strategy import MODEL_PARALLEL_DEGREES, gpus_of_replica
from planner.units import format_count, format_seconds

if TYPE_CHECKING:
    from planner.query.layout import Layout

BATCH, STAGES = "batch.arithmetic", "legality.stages"
# Broken by whole replicas where plans always shard: their memory is known all the same.
NO_SHARDS = "legality.zero_stage_offered"
# Replicas that a job of unknown size may have.
REPLICAS = (*range(1, 33), 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
LEAST_ADVICE_FRACTION = 0.02  # plans that are less faster than this are not worth a change


def legality_findings(layout: "Layout", *, is_plan: bool) -> Iterator[Finding]:
    """Every broken rule of the search, at the decision that breaks it.

    What a framework offers its format knows better than the traits of plans: where a file other
    than a plan uses what they lack, that is a warning.
    """
    from planner.search.space.legality import violations

    broken = list(violations(layout.context, layout.strategy))
    names = {one.rule for one in broken}
    for one in broken:
        if not one.rule:
            rule = BATCH if one.key == "num_micro_batches" else STAGES
            yield layout.places.finding(rule, one.text, one.key)
            continue
        # It says nothing more where the other one is broken.
        if one.rule == "optimizer_runs_under_zero" and "zero_stage_offered" in names:
            continue
        # Decisions that are neutral come at the end.
        neutral = (0, 1, "none", "1f1b")
        last_first = tuple(reversed(one.needs))
        needs = sorted(last_first, key=lambda name: getattr(layout.strategy, name) in neutral)
        text, severity = " ".join(one.text.split()), SEVERITIES[0]
        if one.offered_by == "framework" and not is_plan:
            severity = "warning"
            text = f"Plans do not model it: {text}. Memory, network and time are not checked."
        yield layout.places.finding(f"{LEGALITY}.{one.rule}", text, *needs, severity=severity)


def not_said_yet(findings: Sequence[Finding], said: Sequence[Finding]) -> list[Finding]:
    """Findings at keys of which the format's own rules report no error: theirs come first."""
    keys = {finding.key for finding in said if finding.severity == "error" and finding.key}
    return [finding for finding in findings if finding.key not in keys]


def network_findings(layout: "Layout") -> Iterator[Finding]:
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


def lint_cases(
    reading: ParsedConfig,
    *,
    num_gpus: int | None,
    of_cluster: int | None,
    global_batch: int | None,
    shape: Mapping[str, Any],
) -> Iterator[tuple[CheckContext, Sequence[Finding]]]:
    """Yield the inputs of rules for a file, and its contradictions, on every number of GPUs.

    The number is the file's, the job's (``num_gpus``) or the cluster's, else any that the file may
    be for: what is wrong on all of them is wrong.
    """
    is_open = any(name in reading.left_open for name in (*MODEL_PARALLEL_DEGREES, "num_gpus"))
    values = Values(reading)
    gpus = gpus_of(values, asked=num_gpus, of_cluster=of_cluster or 1)
    counts = [gpus.num_gpus]
    if not (of_cluster or num_gpus or values.whole("num_gpus") or values.whole("dp")):
        counts = [gpus_of_replica(gpus.degrees) * count for count in REPLICAS]
    for count in counts:
        values = Values(reading)
        gpus = gpus_of(values, asked=num_gpus, of_cluster=count)
        gpus = replace(gpus, dp=None) if is_open else gpus
        batch = None if gpus.dp is None else batch_of(values, gpus.dp, asked=global_batch)
        world = CheckContext(
            num_gpus=gpus.num_gpus, decisions=known_of(reading, shape, gpus, batch)
        )
        yield world, () if is_open else values.findings


def advice_findings(
    layout: "Layout", iter_time_s: float, time_limit_s: float | None, kind: Format | None = None
) -> Iterator[Finding]:
    """A note with the best plan found, where it is faster by LEAST_ADVICE_FRACTION or more.

    It is the one that a search ranks first, of those that the file's format can say, without
    ``kind`` of all that the framework can; and it is ranked before the file's own as clearly.
    """
    from planner.answers.layout import differences
    from planner.check.memory import in_words
    from planner.search.ranking.penalties import penalties_of
    from planner.search.search import search
    from planner.search.space.narrow import read_narrowing

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
    text = (
        f"{faster:.0%} faster for the same batch on the same GPUs "
        f"({format_seconds(iter_time_s)} to {format_seconds(best.iteration_s)}): {changes}"
    )
    yield layout.places.finding("advice.better_plan", text)

"""The search's own rules, asked of a layout that no search produced."""

from collections.abc import Iterator, Sequence

from planner.check.layout import Layout
from planner.check.rules import LEGALITY
from planner.formats.finding import SEVERITIES, Finding
from planner.search.space.legality import violations

BATCH, STAGES = "batch.arithmetic", "legality.stages"
NO_SHARDS = "legality.zero_stage_offered"
"""Violation by whole replicas where plans always shard: their memory is known all the same."""
NOT_MODELLED = "Plans do not model it: {}. Memory, network and time are not checked."
_IMPLIED = {"optimizer_runs_under_zero": "zero_stage_offered"}
"""Rules that say nothing more where another is broken."""
_NEUTRAL = (0, 1, "none", "1f1b")


def legality_findings(layout: Layout, *, is_plan: bool) -> Iterator[Finding]:
    """Every broken rule at the decision that breaks it.

    What a framework offers its format knows better than the traits of plans: where a file other
    than a plan uses what they lack, that is a warning.
    """
    broken = list(violations(layout.context, layout.strategy))
    names = {one.rule for one in broken}
    for one in broken:
        if not one.rule:
            rule = BATCH if one.key == "num_micro_batches" else STAGES
            yield layout.places.finding(rule, one.text, one.key)
            continue
        if _IMPLIED.get(one.rule) in names:
            continue
        needs = _chosen_first(layout, one.needs)
        text, severity = " ".join(one.text.split()), SEVERITIES[0]
        if one.offered_by == "framework" and not is_plan:
            text, severity = NOT_MODELLED.format(text), "warning"
        yield layout.places.finding(f"{LEGALITY}.{one.rule}", text, *needs, severity=severity)


def _chosen_first(layout: Layout, needs: tuple[str, ...]) -> list[str]:
    """The rule's decisions, the last one first, but those that are neutral at the end."""
    last_first = tuple(reversed(needs))
    return sorted(last_first, key=lambda name: getattr(layout.strategy, name) in _NEUTRAL)


def not_said_yet(findings: Sequence[Finding], said: Sequence[Finding]) -> list[Finding]:
    """Findings at keys of which the format's own rules report no error: theirs come first."""
    keys = {finding.key for finding in said if finding.severity == "error" and finding.key}
    return [finding for finding in findings if finding.key not in keys]

"""What is wrong with one complete strategy that no search produced."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.search.rules import RULES
from planner.spec.strategy import Strategy

Violation = tuple[str, str]
"""The strategy's key, and what is wrong with it."""


def violations(context: Context, strategy: Strategy) -> Iterator[Violation]:
    """Yield every broken rule, then every inconsistency of batch and stages."""
    yield from _broken_rules(context, strategy)
    batch = strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    expected = context.job.global_batch
    if batch != expected:
        message = f"dp x micro_batch x num_micro_batches must be {expected}; given {batch}"
        yield "num_micro_batches", message
    if strategy.sequence_parallel and strategy.tp == 1:
        yield "sequence_parallel", "needs tp > 1; given tp=1"
    yield from _stage_violations(context, strategy)


def _broken_rules(context: Context, strategy: Strategy) -> Iterator[Violation]:
    columns = strategy.columns()
    values = {name: getattr(columns, name) for rule in RULES for name in rule.needs}
    for rule in RULES:
        if rule.only_prunes or rule.is_legal(context, values)[0]:
            continue
        given = ", ".join(f"{name}={getattr(strategy, name)}" for name in rule.needs)
        allowed = f"; {rule.allowed(context)}" if rule.allowed else ""
        yield rule.needs[-1], f"{rule.name}: {rule.message} Given: {given}{allowed}"


def _stage_violations(context: Context, strategy: Strategy) -> Iterator[Violation]:
    names = ("layers_per_stage", "selective_layers_per_stage", "recompute_layers_per_stage")
    layers, selective, full = (getattr(strategy, name) for name in names)
    for name, values in zip(names, (layers, selective, full), strict=True):
        if len(values) != strategy.pp:
            yield name, f"needs one number per stage: {strategy.pp}; given {len(values)}"
    num_layers = context.model.num_blocks
    if min(layers) < 1:
        yield "layers_per_stage", f"every stage needs a layer; given {min(layers)}"
    if sum(layers) != num_layers:
        yield "layers_per_stage", f"must add up to {num_layers} layers; given {sum(layers)}"
    if any(c + f > n for n, c, f in zip(layers, selective, full, strict=False)):
        yield "recompute_layers_per_stage", "a stage recomputes more layers than it holds"

"""Violations of one complete strategy that no search produced."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context
from planner.cost.policies import offers_activation_offload
from planner.documents.tree import load_own
from planner.search.space.interleaving import chunk_size, fits_chunks, has_equal_chunks
from planner.search.space.rule import Offerer, Rule, stated_rule
from planner.spec.strategy import LAYER_POLICIES, POLICY_COUNT_FIELDS, Strategy

LAYERS = "layers_per_stage"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Error in one key of a strategy."""

    key: str
    text: str
    rule: str = ""  # Its name; empty where the strategy's own numbers do not add up
    needs: tuple[str, ...] = ()  # Decisions that the rule is about
    offered_by: Offerer | None = None  # Party that does not offer it, where that is the error

    @property
    def message(self) -> str:
        """The text, behind the rule's name where it has one."""
        return f"{self.rule}: {self.text}" if self.rule else self.text


def violations(context: Context, strategy: Strategy) -> Iterator[Violation]:
    """Yield every broken rule, then every inconsistency of batch and stages."""
    columns = strategy.columns()
    values = {name: getattr(columns, name) for asked in RULES for name in asked.needs}
    for asked in RULES:
        if asked.only_prunes or asked.is_legal(context, values)[0]:
            continue
        row = {name: int(getattr(columns, name)[0]) for name in asked.needs}
        yield Violation(
            key=asked.needs[-1],
            text=asked.words(context, row),
            rule=asked.name,
            needs=asked.needs,
            offered_by=asked.offered_by,
        )
    batch = strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    expected = context.job.global_batch
    if batch != expected:
        yield Violation(
            key="num_micro_batches",
            text=f"dp x micro_batch x num_micro_batches must be {expected}; given {batch}",
        )
    yield from _stage_violations(context, strategy)


def _stage_violations(context: Context, strategy: Strategy) -> Iterator[Violation]:
    layers, counts = strategy.layers_per_stage, strategy.policy_counts
    for name, values in zip((LAYERS, *POLICY_COUNT_FIELDS), (layers, *counts), strict=True):
        if len(values) != strategy.pp:
            text = f"needs one number per stage: {strategy.pp}; given {len(values)}"
            yield Violation(key=name, text=text)
    num_layers = context.model.num_blocks
    more = any(sum(chosen) > n for n, *chosen in zip(layers, *counts, strict=False))
    broken = {
        f"every stage needs a layer; given {min(layers)}": min(layers) < 1,
        f"must add up to {num_layers} layers; given {sum(layers)}": sum(layers) != num_layers,
        "a stage recomputes and offloads more layers than it holds": more,
    }
    keys = (LAYERS, LAYERS, LAYER_POLICIES["full"].counts)
    for key, (text, is_broken) in zip(keys, broken.items(), strict=True):
        if is_broken:
            yield Violation(key=key, text=text)
    offered = bool(offers_activation_offload(context, strategy.columns())[0])
    if strategy.layers_under["offloaded"] and not offered:
        is_offered = "offloaded" in context.traits.support.policies
        reason = f"{context.traits.name} offers it: {'without pipelining' if is_offered else 'no'}"
        if is_offered and not context.cluster.node.host_memory_bytes:
            reason = f"the host memory of {context.cluster.node.name} is not known"
        yield Violation(
            key=LAYER_POLICIES["offloaded"].counts,
            text=f"saved activations to the host: {reason}",
            rule="activation_offload_offered",
            needs=(LAYER_POLICIES["offloaded"].counts,),
            offered_by="framework",
        )
    if len(layers) == strategy.pp > 1 and strategy.vpp > 1:
        yield from _chunk_violations(strategy)


def _chunk_violations(strategy: Strategy) -> Iterator[Violation]:
    layers = np.array([strategy.layers_per_stage], dtype=float)
    columns = strategy.columns()
    text = ""
    if has_equal_chunks(columns)[0]:
        if len(set(strategy.layers_per_stage)) > 1 or strategy.layers_per_stage[0] % strategy.vpp:
            text = "this schedule needs equal chunks on all stages"
    elif not fits_chunks(layers, columns.vpp)[0]:
        size = int(chunk_size(sum(strategy.layers_per_stage), columns.pp, columns.vpp)[0])
        text = (
            f"chunks of {size} layers: some stage needs {strategy.vpp} full ones, the first and "
            "the last stage may lack one, and every chunk between needs a layer; given "
            f"{', '.join(map(str, strategy.layers_per_stage))}"
        )
    if text:
        yield Violation(
            key=LAYERS,
            text=text,
            rule="chunks_offered",  # what plans model of uneven ones; a framework may take more
            needs=(LAYERS,),
            offered_by="framework",
        )


# In the order of the table, which is that in which they are asked.
RULES: tuple[Rule, ...] = tuple(
    stated_rule(name, row) for name, row in load_own(__package__, "rules.yaml").items()
)


# Asked beside RULES where plans for a part of the cluster are of no interest.
whole_cluster = stated_rule(
    "whole_cluster",
    {
        "needs": ["gpus"],
        "only_prunes": True,
        "message": "The layout uses all GPUs of the cluster.",
        "holds": {"": "gpus == cluster.num_accelerators"},
    },
)

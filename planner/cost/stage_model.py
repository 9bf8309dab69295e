"""Builds the StageModel of a column of strategies, and prices single ones with their parts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from planner.cost.context import Context, with_modules
from planner.cost.layer_time import scale_items
from planner.cost.memory_terms import STATES, STATIC, bytes_per
from planner.cost.overlap import straggler_slowdown
from planner.cost.pipeline import bubble_filled_s
from planner.cost.policies import layer_times, policy_costs, with_recomputed_mtp
from planner.cost.stage import FULL, OFFLOADED, SELECTIVE, StageModel, all_stages
from planner.cost.stage_parts import Per, StageParameters, stage_parameters
from planner.cost.states import offloads
from planner.cost.step_terms import PER_ITERATION, step_end_terms
from planner.cost.time_terms import TimeTerm, seconds_per, work_terms
from planner.layers.op import ZERO
from planner.spec.strategy import POLICIES, Strategy, StrategyColumns
from planner.units import Array

# Of host memory; the rest is left to the operating system and data loading.
HOST_USABLE_FRACTION = 0.9


def stage_model(
    context: Context, strategy: StrategyColumns, parts: StageParameters | None = None
) -> StageModel:
    """Build the affine stage model of every strategy, from its parts where they are at hand."""
    parts = parts or stage_parameters(context, strategy)
    costs = parts.costs
    times = layer_times(parts)
    work, tail = work_terms(parts, times), step_end_terms(parts, times)
    pace = straggler_slowdown(strategy.num_gpus)

    def seconds(per: Per) -> Array:
        return pace * seconds_per(per, work, costs)

    memory = partial(bytes_per, parts=parts)
    in_step = [0.0 * pace] * 4
    if (parts.states.optimizer_step > 0).any():
        added = [(term.per, term.of(parts, "optimizer_step")) for term in STATES]
        in_step = [sum((size for at, size in added if at == per), memory(per)) for per in STATIC]
    saved = costs.at(costs.body.saved_bytes)
    at_loss = costs.at(costs.last.saved_bytes + costs.mtp.saved_bytes)
    added_s = np.stack([seconds("selective"), seconds("full"), seconds("offloaded")])
    fill_s = np.stack([0.0 * pace, 0.0 * pace, seconds("offloading")])
    forward_s, backward_s = times.forward.whole_s, times.backward.whole_s
    node, on_nvme = context.cluster.node, offloads(strategy, "nvme") > 0
    away = np.where(on_nvme, node.nvme_bytes or 0.0, node.host_memory_bytes or 0.0)
    return StageModel(
        strategy=strategy,
        num_layers=context.model.num_blocks,
        layer_s=seconds("layer"),
        policies=policy_costs(parts, added_s, fill_s),
        first_s=seconds("first"),
        last_s=seconds("last"),
        bubble_filled_s=pace * bubble_filled_s(context, strategy, forward_s, backward_s),
        link_s=seconds("stage"),
        tail_layer_s=seconds_per("layer", tail, costs),
        tail_first_s=seconds_per("first", tail, costs),
        tail_last_s=seconds_per("last", tail, costs),
        constant_s=ZERO + sum(price(parts) for price in PER_ITERATION.values()),
        stage_static_bytes=memory("stage"),
        layer_static_bytes=memory("layer"),
        first_static_bytes=memory("first"),
        last_static_bytes=memory("last"),
        step_bytes=np.stack(in_step),
        saved_bytes=saved,
        num_mtp_layers=context.job.mtp_layers,
        num_leading=costs.num_leading,
        lead_saved_bytes=costs.at(costs.lead.saved_bytes) - saved,
        first_saved_bytes=costs.at(costs.first.saved_bytes),
        part_saved_bytes=np.zeros(len(strategy)),
        least_chunk_layers=np.zeros(len(strategy)),
        receive_buffer_bytes=memory("received"),
        keeps_all_sent=context.traits.states.pipeline_engine == "torch",
        sent_saved_bytes=memory("sent"),
        layer_transient_bytes=memory("backward"),
        last_transient_bytes=at_loss + memory("loss"),
        overhead_bytes=memory("device"),
        fragmentation_fraction=context.traits.overheads.fragmentation_fraction,
        layer_host_bytes=memory("layer", place="host"),
        first_host_bytes=memory("first", place="host"),
        last_host_bytes=memory("last", place="host"),
        usable_bytes=context.usable_bytes,
        host_limit_bytes=HOST_USABLE_FRACTION * away / node.num_accelerators,
    )


@dataclass(frozen=True, kw_only=True)
class PricedStrategy:
    """A strategy as a column of one, its split as 1 x P matrices, its costs."""

    strategy: Strategy
    layers: Array
    counts: Array  # Layers under each of POLICIES, K x 1 x P
    parts: StageParameters
    model: StageModel

    @property
    def context(self) -> Context:
        """Context under which it is priced: with its own recomputed modules."""
        return self.parts.context

    @property
    def columns(self) -> StrategyColumns:
        """The strategy as columns of one row."""
        return self.parts.strategy

    @property
    def split(self) -> tuple[Array, Array]:
        """Layers per stage, and how many of them are under each policy."""
        return self.layers, self.counts

    @property
    def mtp_policy(self) -> int | None:
        """The policy of all layers, which those of multi-token prediction share."""
        alike = [k for k in (SELECTIVE, FULL) if (self.counts[k] == self.layers).all()]
        return alike[0] if alike and self.model.num_mtp_layers else None

    @cached_property
    def work(self) -> tuple[TimeTerm, ...]:
        """Terms of a stage's work on a micro-batch."""
        terms = work_terms(self.parts, layer_times(self.parts))
        if self.mtp_policy is None:
            return terms
        number, policy = float(self.model.num_mtp_layers), POLICIES[self.mtp_policy]
        repeated = [
            replace(term, per="last", items=scale_items(term.items, number))
            for term in terms
            if term.per == policy
        ]
        return (*terms, *repeated)

    @cached_property
    def step_end(self) -> tuple[TimeTerm, ...]:
        """Terms of a stage behind its micro-batches."""
        return step_end_terms(self.parts, layer_times(self.parts))

    def numbers(self, stage: int) -> dict[Per, float]:
        """How often a stage has each unit that items are counted per: its layers, its ends, ..."""
        is_last = 1.0 * (stage == self.strategy.head_stage)
        stages = all_stages(self.strategy.pp)
        received, sent = self.model.buffers_held(stages, self.model.in_flight(stages))
        counts = self.counts[:, 0, stage]
        each: tuple[Per, ...] = ("selective", "full", "offloaded")
        return {
            "stage": 1.0,
            "backward": 1.0,
            "loss": 1.0,
            "device": 1.0,
            "layer": float(self.layers[0, stage]),
            "first": 1.0 * (stage == 0),
            "last": is_last,
            **dict(zip(each, counts.tolist(), strict=True)),
            "offloading": 1.0 * (counts[OFFLOADED] > 0),
            "received": float(received[0, stage]),
            "sent": float(sent[0, stage]),
        }


def price(context: Context, strategy: Strategy) -> PricedStrategy:
    """Build the parts and the stage model of one strategy."""
    return price_all(context, [strategy])[0]


def price_all(context: Context, strategies: Sequence[Strategy]) -> list[PricedStrategy]:
    """Build the subjects of many strategies at once, those that recompute the same together."""
    found: dict[int, PricedStrategy] = {}
    for modules in dict.fromkeys(strategy.recompute_modules for strategy in strategies):
        rows = [i for i, one in enumerate(strategies) if one.recompute_modules == modules]
        here = with_modules(context, modules)
        columns = StrategyColumns.concatenate([strategies[i].columns() for i in rows])
        parts = stage_parameters(here, columns)
        model = stage_model(here, columns, parts)
        for position, row in enumerate(rows):
            index = np.array([position])
            strategy = strategies[row]
            subject = PricedStrategy(
                strategy=strategy,
                layers=np.array([strategy.layers_per_stage], dtype=float),
                counts=np.array(strategy.policy_counts, dtype=float)[:, None, :],
                parts=parts.take(index),
                model=model.take(index),
            )
            # Multi-token prediction is under the policy of all layers.
            if subject.mtp_policy is not None:
                emitted = with_recomputed_mtp(subject.model, subject.mtp_policy)
                subject = replace(subject, model=emitted)
            found[row] = subject
    return [found[row] for row in range(len(strategies))]


def iteration_time_s(subject: PricedStrategy) -> float:
    """Seconds per iteration."""
    return float(subject.model.iteration_s(*subject.split)[0])

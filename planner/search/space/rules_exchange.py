"""Rules of how replicas keep in step where not by plain all-reduces of gradients."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.rule import GPUS, Columns, Row, rule, software
from planner.spec.exchange import ONE_BIT, PERIODIC
from planner.spec.strategy import REPLICA_DEGREES, gpus_of_replica
from planner.units import Mask


def _not_so(context: Context, row: Row) -> str:
    exchange = context.traits.exchange
    given = f"{exchange.text} under ZeRO {row['zero_stage']} with dp {row['dp']}"
    allowed = f"ZeRO 0 and {', '.join(REPLICA_DEGREES)} 1"
    if exchange.name in PERIODIC:
        allowed += ", or dp_replicate above 1"
    return (
        f"{given}, dp_replicate {row['dp_replicate']}: {software(context)} runs it with {allowed}"
    )


@rule(*GPUS, "zero_stage", "dp_replicate", says=_not_so)
def exchange_between_whole_replicas(context: Context, columns: Columns) -> Mask:
    """Replicas that keep in step otherwise are whole ones, or each a sharding group of its own.

    Communication hooks are those of DistributedDataParallel, and DeepSpeed's 1-bit optimizers
    refuse ZeRO; weights of replicas can be averaged whatever is sharded inside one.
    """
    exchange = context.traits.exchange
    if exchange.is_plain:
        return np.ones(len(columns["dp"]), dtype=bool)
    whole = (columns["zero_stage"] == 0) & (gpus_of_replica(columns) == 1) & (columns["dp"] > 1)
    sharded = (columns["zero_stage"] >= 1) & (columns["dp_replicate"] > 1)
    return np.asarray(whole | (sharded & (exchange.name in PERIODIC)))


def _other_numbers(context: Context, _: Row) -> str:
    name, precision = context.traits.exchange.name, context.job.precision
    return f"{name} in {precision}: DeepSpeed's 1-bit optimizers step fp16 or fp32 gradients"


@rule("tp", says=_other_numbers)
def one_bit_in_fp16(context: Context, columns: Columns) -> Mask:
    """1-bit optimizers run in fp16 and fp32: deepspeed/runtime/engine.py of release 0.14."""
    is_one_bit = context.traits.exchange.name in ONE_BIT
    legal = not is_one_bit or context.job.precision in ("fp16", "fp32")
    return np.full(len(columns["tp"]), fill_value=legal)


def _experts(context: Context, row: Row) -> str:
    return f"{context.traits.exchange.text} with ep {row['ep']}: experts are not exchanged so here"


@rule("ep", says=_experts)
def exchange_without_expert_parallelism(context: Context, columns: Columns) -> Mask:
    """Experts that are split over ranks have replicas of their own, whose exchange is plain."""
    return np.asarray((columns["ep"] == 1) | context.traits.exchange.is_plain)

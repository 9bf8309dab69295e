"""Rules of ZenFlow: what of a layout its optimizers of DeepSpeed can step."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.rule import Columns, Row, rule
from planner.spec.strategy import OFFLOAD_CODES
from planner.units import Mask

ON_HOST = tuple(code for code in OFFLOAD_CODES if "optimizer" in code and "host" in code)


def _no_states(_: Context, row: Row) -> str:
    percent, code = row["offload_percent"], OFFLOAD_CODES[row["offload"]]
    allowed = " or ".join(ON_HOST)
    return (
        f"offload {code} at {percent} % under ZeRO {row['zero_stage']}: ZenFlow steps states that "
        f"are on the host; allowed is {allowed} at 100 %, under ZeRO 1, 2 or 3"
    )


@rule("zero_stage", "offload", "offload_percent", says=_no_states)
def zenflow_steps_offloaded_states(context: Context, columns: Columns) -> Mask:
    """ZenFlow needs all of the optimizer's states in host memory, and sharding.

    deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py refuses others; parts of them and NVMe are
    not looked at by engine_stage3.py.
    """
    if context.traits.zenflow.is_plain:
        return np.ones(len(columns["offload"]), dtype=bool)
    codes = [OFFLOAD_CODES.index(code) for code in ON_HOST]
    is_whole = columns["offload_percent"] == 100
    return np.asarray(np.isin(columns["offload"], codes) & is_whole & (columns["zero_stage"] > 0))


def _accumulated(context: Context, row: Row) -> str:
    job = context.job
    number = job.global_batch // (row["dp"] * row["micro_batch"])
    return (
        f"{number} micro-batches an iteration: ZenFlow steps at every one, and sets "
        f"gradient_accumulation_steps to its update_interval; allowed is 1, "
        f"a batch of dp {row['dp']} times micro-batch {row['micro_batch']}"
    )


@rule("dp", "micro_batch", says=_accumulated)
def zenflow_steps_every_micro_batch(context: Context, columns: Columns) -> Mask:
    """Under ZenFlow an iteration is one micro-batch.

    configure_zenflow of deepspeed/runtime/zenflow/engine.py takes accumulation for itself.
    """
    if context.traits.zenflow.is_plain:
        return np.ones(len(columns["dp"]), dtype=bool)
    return np.asarray(columns["dp"] * columns["micro_batch"] == context.job.global_batch)


def _other_axes(context: Context, row: Row) -> str:
    mixture = "a mixture's experts are stacks of matrices; " if context.model.moe else ""
    return (
        f"pp {row['pp']}, tp {row['tp']}, ep {row['ep']}, dp_replicate {row['dp_replicate']}: "
        f"{mixture}ZenFlow chooses columns of whole matrices that one group shards; allowed are "
        "dense models and 1 of each"
    )


@rule("pp", "tp", "ep", "dp_replicate", says=_other_axes)
def zenflow_shards_matrices(context: Context, columns: Columns) -> Mask:
    """ZenFlow runs without pipeline, split matrices, experts and replicas of the sharding group.

    Under AutoTP it is not tried by anybody here.
    """
    if context.traits.zenflow.is_plain:
        return np.ones(len(columns["pp"]), dtype=bool)
    alone = columns["pp"] * columns["tp"] * columns["ep"] * columns["dp_replicate"] == 1
    return np.asarray(alone & (context.model.moe is None))

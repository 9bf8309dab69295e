"""Megatron-LM's table: every decision with its options, what it says there, and what it cannot."""

from collections.abc import Iterable, Iterator
from typing import Any

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.formats import decision as engine
from planner.formats.decision import Decision, Line, Table, decided_in, stated
from planner.formats.format import DECISIONS, Value
from planner.formats.megatron import decisions_layout, decisions_states
from planner.formats.megatron.decisions_layout import BATCH, MICRO
from planner.formats.megatron.decisions_states import optimizer_problems
from planner.formats.megatron.options import load_options
from planner.formats.megatron.runtime import gradient_reasons, of_runtime, runtime_choices
from planner.formats.megatron.settings import PP, TP, is_on, number, whole
from planner.formats.megatron.shape import shape_choices, shape_reasons
from planner.formats.refusals import wrong_profile
from planner.formats.settings import Settings, decided, given
from planner.spec.strategy import Strategy

TABLE: Table = (*decisions_layout.ROWS, *decisions_states.ROWS)
"""Decisions: what a repair of a file changes."""
RUNTIME = Decision(
    names=("gradient_bytes", "expert_exchange"),
    keys=(),
    to=runtime_choices,
    of=of_runtime,
    cannot=gradient_reasons,
)
SIZES = {
    "model.num_layers": "--num-layers",
    "model.hidden_size": "--hidden-size",
    "model.num_heads": "--num-attention-heads",
    "model.ffn_size": "--ffn-hidden-size",
    "model.vocab_size": "--vocab-size",
    "model.num_experts": "--num-experts",
}


def _of_groups(settings: Settings) -> Iterator[tuple[str, Value]]:
    heads = number(settings, "--num-attention-heads")
    if is_on(settings, "--group-query-attention"):
        groups = whole(settings, "--num-query-groups")
        yield "model.num_kv_heads", decided(settings, "--num-query-groups", groups)
    elif heads is not None:
        yield "model.num_kv_heads", decided(settings, "--group-query-attention", heads)


MODEL: Table = (
    Decision(
        names=(),
        keys=(),
        to=lambda context, _: shape_choices(context),
        cannot=lambda context, _: shape_reasons(context),
    ),
    *(Decision(names=(name,), keys=(key,), of=stated(name, key)) for name, key in SIZES.items()),
    Decision(
        names=("model.num_kv_heads",),
        keys=("--group-query-attention", "--num-query-groups"),
        of=_of_groups,
    ),
)
FILE: Table = (*MODEL, *TABLE, RUNTIME)
"""All that an args file says, in its order."""
OWNED = frozenset(key for row in (*MODEL, *TABLE) for key in row.keys)
"""Options that say how a job is cut up, and what it is."""


def problems(context: Context) -> Iterator[str]:
    """What no option of Megatron-LM expresses whatever the layout: the model, the optimizer."""
    yield from shape_reasons(context)
    yield from optimizer_problems(context)
    yield from wrong_profile(context, ("nanotron", "llm.c"), "Megatron-LM")


def reasons(table: Table, context: Context, strategy: Strategy) -> list[str]:
    """Every part of a plan that no option expresses; of numbers that contradict only these."""
    return list(_numbers(context, strategy)) or engine.reasons(table, context, strategy)


def _numbers(context: Context, strategy: Strategy) -> Iterator[str]:
    """Numbers that contradict each other, which no search makes."""
    layers, counts = strategy.layers_per_stage, strategy.policy_counts
    if any(len(each) != strategy.pp for each in (layers, *counts)):
        yield f"layers_per_stage: {list(layers)} and policies need {strategy.pp} numbers each"
    if sum(layers) != context.model.num_blocks:
        yield f"layers_per_stage: {list(layers)} do not add up to {context.model.num_blocks}"
    batch = strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    if batch != context.job.global_batch:
        yield f"global_batch: {context.job.global_batch}; the strategy makes {batch}"


def left_open(settings: Settings) -> dict[str, Value]:
    """Decisions that are stated as numbers, nobody knows which."""
    return {
        row.names[0]: settings[row.keys[0]]
        for row in FILE
        if row.keys
        and row.keys[0] in settings
        and given(settings, row.keys[0]) is None
        and load_options()[row.keys[0]].kind == "int"
    }


def decisions_of(settings: Settings, num_gpus: Value | None = None) -> dict[str, Value]:
    """Everything the options decide; what a default of Megatron decides stands in line 0."""
    found = {name: each for name, each in decided_in(FILE, settings).items() if name in DECISIONS}
    if num_gpus is not None:
        found["num_gpus"] = num_gpus
        found |= _data_parallel(settings, num_gpus)
    return found


def _data_parallel(settings: Settings, num_gpus: Value) -> dict[str, Value]:
    inner = whole(settings, TP) * whole(settings, PP) * whole(settings, "--context-parallel-size")
    if left_open(settings) or num_gpus.value % inner:
        return {}
    dp = num_gpus.value // inner
    found = {"dp": Value(value=dp, key=num_gpus.key, line=num_gpus.line)}
    micro = whole(settings, MICRO, 0)
    if not micro:
        return found
    batch = whole(settings, BATCH, micro * dp)
    if BATCH not in settings:
        found["global_batch"] = Value(value=batch, key=BATCH)
    if batch % (micro * dp) == 0:
        found["num_micro_batches"] = decided(settings, BATCH, batch // (micro * dp))
    return found


def edits(table: Table, settings: Settings, lines: Iterable[Line]) -> dict[str, Any]:
    """The options of a file that change, and to what; REMOVED: the option goes.

    One that says what Megatron does without it counts as not given, and is not added.
    """
    keys = {key for row in table for key in row.keys}
    others = [
        Line(key=key, value=each.value, is_assumed=True)
        for key, each in settings.items()
        if key not in keys
    ]
    said = {key: each for key, each in settings.items() if not _is_default(key, each.value)}
    found = engine.changes(table, said, [*others, *lines])
    return {key: value for key, value in found.items() if not _is_said(settings, key, value)}


def _is_said(settings: Settings, key: str, value: object) -> bool:
    if key in settings and value is not REMOVED:
        return bool(given(settings, key) == value)
    return key not in settings and _is_default(key, value)


def _is_default(key: str, value: object) -> bool:
    """Whether Megatron does the same without the option."""
    option = load_options().get(key)
    return option is not None and option.takes_values and str(value) == option.default

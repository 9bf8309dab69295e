"""Megatron-LM's table: every decision with its options, what it says there, and what it cannot."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.formats.decision import (
    Decided,
    KeyMapping,
    KeyValue,
    Table,
    changes,
    decided_in,
    nothing,
    stated,
    unless,
    which,
    wrong_profile,
)
from planner.formats.format import DECISIONS, Located
from planner.formats.megatron import decisions_layout
from planner.formats.megatron.model import SIZES, shape_choices, shape_reasons
from planner.formats.megatron.options import (
    BATCH,
    CP,
    MICRO,
    PP,
    TP,
    Choices,
    alike,
    choices,
    degree,
    load_options,
    number,
    row,
    whole,
    with_open,
)
from planner.formats.megatron.runtime import gradient_reasons, of_runtime, runtime_choices
from planner.formats.rules import Refused
from planner.formats.settings import Settings, as_number, decided, flag, given, word
from planner.spec.strategy import Strategy

PRECISIONS: Mapping[str, Mapping[str, object]] = {
    "bf16": {"--bf16": True},
    "fp16": {"--fp16": True},
    "fp8": {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
    "fp8_block": {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": "blockwise"},
    "mxfp8": {"--bf16": True, "--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"},
    "fp4": {"--bf16": True, "--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"},
}
OPTIMIZERS: Mapping[str, Mapping[str, object]] = {
    "adam": {"--optimizer": "adam"},
    "adam-bf16": {
        "--optimizer": "adam",
        "--use-precision-aware-optimizer": True,
        "--exp-avg-dtype": "bf16",
        "--exp-avg-sq-dtype": "bf16",
    },
    "sgd": {"--optimizer": "sgd", "--sgd-momentum": "0"},
    "sgd-momentum": {"--optimizer": "sgd", "--sgd-momentum": "0.9"},
    "lion": {"--optimizer": "lion"},
    "muon": {"--optimizer": "muon"},
}
# Optimizers that share out whole tensors under --use-distributed-optimizer.
LAYER_WISE = ("lion", "muon")
OFFLOADS = ("none", "optimizer:host")
AWARE = "--use-precision-aware-optimizer"
SHARDING = "--data-parallel-sharding-strategy"
# The form of checkpoints that Megatron-FSDP has.
DTENSOR = "fsdp_dtensor"
# ZeRO stages by Megatron-FSDP's names; plans use it from stage 2 on.
FSDP_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _of_optimizer(settings: Settings) -> Decided:
    name = word(settings, "--optimizer", "adam")
    # Megatron's own default is 0.9.
    if name == "sgd" and as_number(given(settings, "--sgd-momentum")) != 0:
        name = "sgd-momentum"
    states = [given(settings, key) for key in ("--exp-avg-dtype", "--exp-avg-sq-dtype")]
    if name == "adam" and flag(settings, AWARE) and states == ["bf16", "bf16"]:
        name = "adam-bf16"
    yield "optimizer", "--optimizer", "muon" if name == "dist_muon" else name


def optimizer_problems(context: Context) -> Iterator[str]:
    """An optimizer that no option names."""
    name = context.traits.optimizer.name
    return which(
        {f"optimizer: {name}; allowed are {', '.join(OPTIMIZERS)}": name not in OPTIMIZERS}
    )


def _to_sharding(_: Context, strategy: Strategy) -> Iterator[KeyValue]:
    stage = strategy.zero_stage
    sharded = (
        "nothing",
        "optimizer states (ZeRO 1)",
        "optimizer states and gradients (ZeRO 2)",
        "optimizer states, gradients and weights (ZeRO 3)",
    )
    over = f"sharded over the data-parallel ranks: {sharded[stage]}"
    yield from alike({"--use-distributed-optimizer": stage > 0}, over)
    if stage > 1:
        kind = f"ZeRO {stage} is Megatron-FSDP"
        meta = "no rank holds the whole model, not even at the start"
        options: Choices = {
            "--use-megatron-fsdp": (True, kind),
            SHARDING: (list(FSDP_STAGES)[stage], kind),
            "--ckpt-format": (DTENSOR, "the checkpoints Megatron-FSDP has"),
            "--init-model-with-meta-device": (stage == 3, meta),
        }
        yield from choices(options)


def _of_sharding(settings: Settings) -> Decided:
    if flag(settings, "--use-megatron-fsdp"):
        yield "zero_stage", SHARDING, FSDP_STAGES[word(settings, SHARDING, "optim_grads_params")]
    elif flag(settings, "--use-torch-fsdp2"):
        reshards = "--torch-fsdp2-no-reshard-after-forward" not in settings
        yield "zero_stage", "--use-torch-fsdp2", 3 if reshards else 2
    elif flag(settings, "--use-distributed-optimizer"):
        yield "zero_stage", "--use-distributed-optimizer", 1


def _to_offload(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    if strategy.offload == "none":
        return
    percent, is_adam = strategy.offload_percent, context.traits.optimizer.name == "adam"
    own = {"--optimizer-cpu-offload": True, "--optimizer-offload-fraction": percent / 100}
    yield from alike(own, f"{percent} % of the optimizer's states live on the host")
    yield from alike({AWARE: is_adam}, "Megatron offloads the optimizer only together with it")


def _of_offload(settings: Settings) -> Decided:
    if flag(settings, "--optimizer-cpu-offload"):
        yield "offload", "--optimizer-cpu-offload", OFFLOADS[1]
        key = "--optimizer-offload-fraction"
        share = as_number(given(settings, key))
        if share is None:
            share = 1.0
        yield "offload_percent", key, round(100 * min(max(share, 0.0), 1.0))


def _no_offload(context: Context, strategy: Strategy) -> Refused:
    offload, name = strategy.offload, context.traits.optimizer.name
    is_adam = OPTIMIZERS.get(name, {}).get("--optimizer") == "adam"
    only_adam = f"offload: {offload} with optimizer {name}; only adam can be offloaded"
    return {
        f"offload: {offload}; allowed are {', '.join(OFFLOADS)}": offload not in OFFLOADS,
        only_adam: offload != "none" and not is_adam,
    }


def _of_precision(settings: Settings) -> Decided:
    recipes = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
    recipe = recipes.get(word(settings, "--fp8-recipe", "delayed"), "")
    named = {"--fp4-format": "fp4", "--fp8-format": recipe, "--bf16": "bf16", "--fp16": "fp16"}
    key = next((option for option in named if given(settings, option)), "")
    if named.get(key):
        yield "precision", key, named[key]


_CHECKPOINTS = KeyMapping(
    names=("zero_stage",),
    keys=("--ckpt-format",),
    # Which other checkpoints a file asks for, known or not, is none of the planner's.
    of=stated("--ckpt-format", "--ckpt-format", lambda given: given if given == DTENSOR else None),
)
# Decisions: what a repair of a file changes.
ROWS: Table = (
    *decisions_layout.ROWS,
    row(
        "optimizer",
        "--optimizer --sgd-momentum --use-precision-aware-optimizer "
        "--exp-avg-dtype --exp-avg-sq-dtype",
        lambda c, _: alike(
            OPTIMIZERS[c.traits.optimizer.name], f"planned with optimizer {c.traits.optimizer.name}"
        ),
        _of_optimizer,
        lambda context, _: optimizer_problems(context),
    ),
    row(
        "zero_stage",
        "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy "
        "--init-model-with-meta-device --use-torch-fsdp2",
        _to_sharding,
        _of_sharding,
        unless(
            lambda _, s: s.zero_stage > 1 and s.pp > 1,
            "zero_stage: {s.zero_stage} with pp {s.pp}; Megatron-FSDP has no stages",
        ),
    ),
    _CHECKPOINTS,
    degree(
        "dp_replicate",
        "--num-distributed-optimizer-instances",
        "the sharding group is replicated {s.dp_replicate} times",
        unless(
            lambda c, s: s.dp_replicate > 1 and c.traits.optimizer.name in LAYER_WISE,
            "dp_replicate: {s.dp_replicate} with optimizer {c.traits.optimizer.name}; "
            "it has no instances",
        ),
    ),
    row(
        "offload offload_percent",
        "--optimizer-cpu-offload --optimizer-offload-fraction --use-precision-aware-optimizer",
        _to_offload,
        _of_offload,
        _no_offload,
    ),
    row(
        "precision",
        "--bf16 --fp16 --fp8-format --fp8-recipe --fp4-format --fp4-recipe",
        lambda c, _: alike(PRECISIONS[c.job.precision], f"planned in {c.job.precision}"),
        _of_precision,
    ),
)
TABLE: Table = [own if own is _CHECKPOINTS else with_open(own) for own in ROWS]


def _of_groups(settings: Settings) -> Decided:
    heads = number(settings, "--num-attention-heads")
    if flag(settings, "--group-query-attention"):
        yield "model.num_kv_heads", "--num-query-groups", whole(settings, "--num-query-groups")
    elif heads is not None:
        yield "model.num_kv_heads", "--group-query-attention", heads


MODEL: Table = (
    row(
        "",
        "",
        lambda c, _: shape_choices(c),
        nothing,
        lambda c, _: shape_reasons(c),
    ),
    *(row(name, key, nothing, stated(name, key)) for name, key in SIZES.items()),
    row("model.num_kv_heads", "--group-query-attention --num-query-groups", nothing, _of_groups),
)
# All that an args file says, in its order.
FILE: Table = (
    *MODEL,
    *TABLE,
    row("gradient_bytes expert_exchange", "", runtime_choices, of_runtime, gradient_reasons),
)
# Options that say how a job is parallelized, and what it is.
OWNED = frozenset(key for row in (*MODEL, *TABLE) for key in row.keys)


def problems(context: Context) -> Iterator[str]:
    """Yield what no option of Megatron-LM expresses for any layout: the model, the optimizer."""
    yield from shape_reasons(context)
    yield from optimizer_problems(context)
    yield from wrong_profile(context, ("nanotron", "llm.c"), "Megatron-LM")


def left_open(settings: Settings) -> dict[str, Located]:
    """Decisions that are stated as numbers, nobody knows which."""
    return {
        row.names[0]: settings[row.keys[0]]
        for row in FILE
        if row.keys
        and row.keys[0] in settings
        and given(settings, row.keys[0]) is None
        and load_options()[row.keys[0]].kind == "int"
    }


def decisions_of(settings: Settings, num_gpus: Located | None = None) -> dict[str, Located]:
    """Everything the options decide; what a default of Megatron decides stands in line 0."""
    found = decided_in(FILE, settings)
    for name in found.keys() - set(DECISIONS):
        del found[name]
    if num_gpus is None:
        return found
    found["num_gpus"] = num_gpus
    inner = whole(settings, TP) * whole(settings, PP) * whole(settings, CP)
    if left_open(settings) or num_gpus.value % inner:
        return found
    dp, micro = num_gpus.value // inner, whole(settings, MICRO, 0)
    found["dp"] = replace(num_gpus, value=dp)
    if not micro:
        return found
    batch = whole(settings, BATCH, micro * dp)
    if BATCH not in settings:
        found["global_batch"] = Located(value=batch, key=BATCH)
    if batch % (micro * dp) == 0:
        found["num_micro_batches"] = decided(settings, BATCH, batch // (micro * dp))
    return found


def edits(table: Table, settings: Settings, lines: Iterable[KeyValue]) -> dict[str, Any]:
    """The options of a file that change, and to what; REMOVED: the option goes.

    One that says what Megatron does without it counts as not given, and is not added.
    """
    keys = {key for row in table for key in row.keys}
    others = [
        KeyValue(key=key, value=each.value, is_assumed=True)
        for key, each in settings.items()
        if key not in keys
    ]
    said = {key: each for key, each in settings.items() if not _is_default(key, each.value)}
    found = changes(table, said, [*others, *lines])
    for key, value in list(found.items()):
        if key not in settings:
            is_said = _is_default(key, value)
        else:
            is_said = value is not REMOVED and given(settings, key) == value
        if is_said:
            del found[key]
    return found


def _is_default(key: str, value: object) -> bool:
    """Return True if Megatron does the same without the option."""
    option = load_options().get(key)
    return option is not None and option.takes_values and str(value) == option.default

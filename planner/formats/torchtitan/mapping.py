"""Decisions of a plan in torchtitan's words: a row each, with keys and refusals."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from planner.cost.context import Context
from planner.formats.decision import (
    Cannot,
    Decided,
    KeyMapping,
    KeyValue,
    Table,
    decided_in,
    derived,
    nothing,
    of_key,
    says,
    several,
    stated,
    unless,
)
from planner.formats.format import ALL, DECISIONS, Located
from planner.formats.settings import Settings, decided, flag, whole, word
from planner.formats.torchtitan import keys as option
from planner.formats.torchtitan.keys import NAME, POLICY, SELECTORS, config_of, filled
from planner.formats.torchtitan.layout import PIPELINE, of_pipeline, splits_backward
from planner.spec.strategy import PLACEMENT_NAMES, Strategy

OFFLOADS = ("none", "optimizer+parameters:host")
IMPLEMENTATIONS = {"adam": "fused", "adam-bf16": "fused_opt_states_bf16"}
# What selective checkpointing repeats, compiled and not, by the profiles of the release.
MODULE_SETS = {
    "current": "every_second_matmul_fused_qkv_compiled",
    "eager": "every_second_matmul_fused_qkv",
}
_EXPERTS = (
    "etp {s.etp} with ep {s.ep} and tp {s.tp}: torchtitan's experts are whole under expert "
    "parallelism, else split as other layers are; needs "
)
POLICIES = {"selective": "selective_layers_per_stage", "full": "recompute_layers_per_stage"}


def _degree(name: str, why: str, cannot: Cannot = nothing, *more: str) -> KeyMapping:
    """A degree, which is 1 where the file says nothing of it."""
    key = option.DEGREES[name]

    def read(settings: Settings) -> int | None:
        degree = whole(settings, key, 0)
        is_stated = degree > 1 or (degree == 1 and settings[key].line)
        return degree if is_stated else None

    return of_key(
        name,
        key,
        lambda _, s: getattr(s, name),
        why,
        follows=read,
        cannot=cannot,
        more=more,
    )


def _batch_lines(_: Context, strategy: Strategy) -> Iterator[KeyValue]:
    number, why = strategy.num_micro_batches, "sequences per micro-batch"
    local, total = strategy.micro_batch, strategy.dp * strategy.micro_batch * number
    if strategy.pp > 1:
        local, why = local * number, f"{number} micro-batches for the pipeline"
    yield KeyValue(key=option.LOCAL_BATCH, value=local, why=why)
    yield KeyValue(key=option.GLOBAL_BATCH, value=total, why="sequences per iteration")


def _of_batch(settings: Settings) -> Decided:
    """A global batch below 1 is the local one of every rank."""
    local = whole(settings, option.LOCAL_BATCH, 0)
    total = whole(settings, option.GLOBAL_BATCH, 0)
    shards = max(0, whole(settings, option.SHARD, 0))
    dp = shards * option.degree(settings, "dp_replicate")
    key = option.MICRO_BATCH if option.degree(settings, "pp") > 1 else option.LOCAL_BATCH
    micro = whole(settings, key, 0)
    if micro < 1 or local < 1:
        return
    yield "micro_batch", key, micro
    at = option.LOCAL_BATCH if total < 0 else option.GLOBAL_BATCH
    batch, step = (local, micro) if total < 0 else (total, dp * micro)
    if batch > 0 and step > 0 and batch % step == 0:
        yield "num_micro_batches", at, batch // step
    if total > 0 or dp > 0:
        batch = total if total > 0 else local * dp
        yield "global_batch", option.GLOBAL_BATCH, batch


def _unlike_heads(context: Context, strategy: Strategy) -> Iterator[str]:
    model, tp = context.model, strategy.tp
    kv_heads = model.num_heads if model.mla else model.num_kv_heads
    if kv_heads % tp:
        yield f"tp {tp}: torchtitan splits the {kv_heads} key and value heads whole"


def _of_shards(settings: Settings) -> Decided:
    shards = whole(settings, option.SHARD, 0)
    replicas, *others = (
        option.degree(settings, name) for name in ("dp_replicate", "tp", "pp", "cp")
    )
    ranks = replicas * prod(others)
    if shards > 0 and ranks > 0:
        yield "dp", option.SHARD, shards * replicas
        yield "num_gpus", option.SHARD, shards * ranks


def _stage(settings: Settings) -> int:
    policy = word(settings, option.RESHARD)
    if policy == "default":
        return 2 if option.degree(settings, "pp") > 1 else 3
    return 2 if policy == "never" else 3


def _of_precision(settings: Settings) -> Decided:
    precision = config_of(settings).precision
    key = option.PRECISION if precision == "bf16" else "config"
    if word(settings, option.PRECISION) == "bfloat16" and precision in ("bf16", "mxfp8"):
        yield "precision", key, precision


def unlike_software(context: Context, _: Strategy | None = None) -> Iterator[str]:
    """Yield why the words do not fit a plan's profile, or cannot choose its optimizer."""
    traits, optimizer = context.traits, context.traits.optimizer.name
    if traits.name != NAME or traits.profile not in MODULE_SETS:
        profiles = " and ".join(MODULE_SETS)
        yield f"profile {traits.name} {traits.profile}: release 0.3 is {profiles} of torchtitan"
    if optimizer not in IMPLEMENTATIONS:
        yield f"optimizer {optimizer}: words can choose {', '.join(IMPLEMENTATIONS)}"


def _software_lines(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    is_on = context.traits.profile == "current"
    profile = f"profile {context.traits.profile}"
    is_ring = context.traits.overlap.tensor_parallel_overlap == "ring"
    is_split = splits_backward(strategy.schedule)
    yield KeyValue(key="compile.enable", value=is_on, why=profile, is_assumed=not is_split)
    if is_on:
        yield KeyValue(
            key="compile.components",
            value=["model", "loss"],
            why=f"{profile}: blocks and loss",
            is_assumed=True,
        )
    yield KeyValue(
        key=option.ASYNC_TP,
        value=is_on and is_ring and strategy.tp > 1,
        why="products in chunks beside the transfers of tensor parallelism",
        is_assumed=not is_split,
    )
    yield KeyValue(
        key=option.SPMD_BACKEND,
        value="partial_dtensor",
        why="torch 2.13 cannot shard what the default backend makes",
        is_assumed=True,
    )


def policy_of(strategy: Strategy) -> str:
    """The one policy of all layers; empty where layers differ."""
    for name, counts in POLICIES.items():
        if getattr(strategy, counts) == strategy.layers_per_stage:
            return name
    return "" if any(map(sum, strategy.policy_counts)) else "none"


def _of_policy(settings: Settings) -> Decided:
    pipeline = {name: value for name, _, value in of_pipeline(settings)}
    layers, policy = pipeline.get("layers_per_stage"), word(settings, POLICY)
    if layers is not None and policy in ("none", *POLICIES):
        none = (0,) * len(layers)
        for name, decision in POLICIES.items():
            yield decision, POLICY, layers if policy == name else none
    elif policy in POLICIES:
        yield POLICIES[policy], POLICY, ALL


def _unlike_policy(context: Context, strategy: Strategy) -> Iterator[str]:
    if any(strategy.offloaded_layers_per_stage):
        yield "activations on the host: torchtitan 0.3 has no such policy"
    elif not policy_of(strategy):
        of_policy = "one policy for all layers, none, selective or full"
        yield f"recomputation {strategy.recompute}: torchtitan has {of_policy}"
    if any(strategy.selective_layers_per_stage):
        yield from unlike_modules(context, strategy.recompute_modules)


def unlike_modules(context: Context, modules: tuple[str, ...] | None = None) -> Iterator[str]:
    """Yield why the selective policy does not repeat what the plan repeats."""
    repeated = modules or context.traits.recompute.selected
    allowed = MODULE_SETS.get(context.traits.profile, "")
    if allowed and repeated != (allowed,):
        names = ", ".join(repeated) or "nothing"
        yield f"recomputation of {names}: its selective policy repeats {allowed}"


# In the order of the lines: the policy's word ends torchtitan's own options.
TABLE: Table = (
    KeyMapping(
        names=("micro_batch", "num_micro_batches", "global_batch"),
        keys=(option.LOCAL_BATCH, option.GLOBAL_BATCH, option.MICRO_BATCH),
        to=_batch_lines,
        of=_of_batch,
    ),
    of_key("seq_len", "training.seq_len", lambda c, _: c.job.seq_len, "tokens per sequence"),
    _degree("tp", "tensor parallelism", _unlike_heads),
    _degree("pp", "pipeline stages"),
    _degree("cp", "context parallelism"),
    _degree(
        "ep",
        "expert parallelism, over the ranks of tp, cp and the shards",
        several(
            unless(lambda _, s: s.ep > 1 and s.etp != 1, f"{_EXPERTS}1"),
            unless(lambda _, s: s.ep == 1 and s.etp != s.tp, f"{_EXPERTS}{{s.tp}}"),
        ),
        option.CUDA_GRAPHS,
    ),
    KeyMapping(
        names=("etp",),
        keys=(),
        of=derived(
            "etp",
            option.DEGREES["ep"],
            lambda found: (
                1 if option.degree(found, "ep") > 1 and option.degree(found, "tp") > 1 else None
            ),
        ),
    ),
    _degree("dp_replicate", "replicas of the sharding group"),
    KeyMapping(
        names=("dp", "num_gpus"),
        keys=(option.SHARD,),
        to=says(
            option.SHARD,
            lambda _, s: s.dp // s.dp_replicate,
            "states are sharded over them, and over context parallelism",
        ),
        of=_of_shards,
    ),
    of_key(
        "sequence_parallel",
        option.SEQUENCE_PARALLEL,
        lambda _, s: s.sequence_parallel if s.tp > 1 else None,
        "norms split over tensor parallelism",
        follows=lambda found: (
            flag(found, option.SEQUENCE_PARALLEL) and option.degree(found, "tp") > 1
        ),
    ),
    of_key(
        "zero_stage",
        option.RESHARD,
        lambda _, s: "always" if s.zero_stage == 3 else "never",
        "ZeRO stage {s.zero_stage}",
        follows=_stage,
        cannot=unless(
            lambda _, s: s.zero_stage not in (2, 3),
            "ZeRO stage {s.zero_stage}: torchtitan shards gradients (2) and weights (3)",
        ),
    ),
    of_key(
        "offload",
        option.OFFLOAD,
        lambda _, s: s.offload != "none",
        "offload: {s.offload}",
        of=stated("offload", option.OFFLOAD, lambda is_on: OFFLOADS[1] if is_on else None),
        cannot=several(
            unless(
                lambda _, s: s.offload not in OFFLOADS,
                "offload {s.offload}: torchtitan offloads all states to the host, or none",
            ),
            unless(
                lambda _, s: s.offload == OFFLOADS[1] and s.offload_percent != 100,
                "offload of {s.offload_percent} %: torchtitan offloads all states",
            ),
        ),
    ),
    of_key(
        "precision",
        option.PRECISION,
        lambda *_: "bfloat16",
        "precision {c.job.precision}",
        of=_of_precision,
    ),
    of_key(
        "optimizer",
        "optimizer.implementation",
        lambda c, _: IMPLEMENTATIONS[c.traits.optimizer.name],
        "optimizer {c.traits.optimizer.name}",
        read=lambda given: next((n for n, own in IMPLEMENTATIONS.items() if own == given), "adam"),
        cannot=unlike_software,
    ),
    KeyMapping(
        names=("placement",),
        keys=(),
        cannot=unless(
            lambda _, s: s.placement != PLACEMENT_NAMES[0],
            "placement {s.placement}: torchtitan's mesh is " + PLACEMENT_NAMES[0],
        ),
    ),
    PIPELINE,
    KeyMapping(
        names=(),
        keys=("compile.enable", "compile.components", option.ASYNC_TP, option.SPMD_BACKEND),
        to=_software_lines,
    ),
    KeyMapping(
        names=tuple(POLICIES.values()),
        keys=(POLICY,),
        to=says(POLICY, lambda _, s: policy_of(s), "activations of every layer: {s.recompute}"),
        of=_of_policy,
        cannot=_unlike_policy,
    ),
)
# Options whose value must be known for what the file decides to be known.
DECIDING = {*SELECTORS, *(key for row in TABLE for key in row.keys)}


def decisions_of(
    settings: Settings, num_gpus: Located | None = None, shape: Mapping[str, Any] | None = None
) -> dict[str, Located]:
    """Everything that a file, or a default that is not neutral, decides.

    ``num_gpus`` are the processes that the launcher's words start, ``shape`` the model's where
    it is not that of the config.
    """
    model = config_of(settings).model if shape is None else shape
    sizes = {f"model.{name.removeprefix('moe.')}": value for name, value in model.items()}
    found = decided_in(TABLE, filled(settings)) | {
        name: decided(settings, "config", value)
        for name, value in sizes.items()
        if value and name in DECISIONS
    }
    return found if num_gpus is None else found | {"num_gpus": num_gpus}

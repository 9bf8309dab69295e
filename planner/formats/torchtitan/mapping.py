"""Decisions of a plan in torchtitan's words: a row each, with keys and refusals."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.cost.context import Context
from planner.formats.decision import (
    Cannot,
    Decided,
    KeyMapping,
    Table,
    decided_in,
    nothing,
    of_key,
    reads,
    reads_key,
    refusals,
    several,
    writes,
)
from planner.formats.format import ALL, DECISIONS, Located
from planner.formats.settings import Settings, decided, flag, whole, word
from planner.formats.torchtitan.keys import (
    ASYNC_TP,
    CUDA_GRAPHS,
    DEGREES,
    FIRST_LESS,
    GLOBAL_BATCH,
    LAST_LESS,
    LAYERS,
    LOCAL_BATCH,
    MICRO_BATCH,
    OFFLOAD,
    PARTS,
    POLICY,
    PRECISION,
    RESHARD,
    SCHEDULE,
    SCHEDULE_CSV,
    SCHEDULE_NAMES,
    SELECTORS,
    SEQUENCE_PARALLEL,
    SHARD,
    SPMD_BACKEND,
    TorchtitanView,
    config_of,
    default_counts,
    filled,
    layers_in,
    parts_of,
)
from planner.spec.strategy import V_SHAPED, Strategy

REFUSALS = refusals(__package__)
unlike_software = REFUSALS["software"]
OFFLOADED = "optimizer+parameters:host"
IMPLEMENTATIONS = {"adam": "fused", "adam-bf16": "fused_opt_states_bf16"}
PROFILES = ("current", "eager")  # of the release: compiled and not
POLICIES = {"selective": "selective_layers_per_stage", "full": "recompute_layers_per_stage"}


def _degree(name: str, why: str, cannot: Cannot = nothing, *more: str) -> KeyMapping:
    """A degree, which is 1 where the file says nothing of it."""
    key = DEGREES[name]

    def read(settings: Settings) -> int | None:
        degree = whole(settings, key, 0)
        is_stated = degree > 1 or (degree == 1 and settings[key].line)
        return degree if is_stated else None

    return of_key(name, key, name, why, follows=read, cannot=cannot, more=more)


def _of_batch(settings: Settings) -> Decided:
    """A global batch below 1 is the local one of every rank."""
    file = TorchtitanView(settings=settings)
    local, total = file.whole(LOCAL_BATCH, 0), file.whole(GLOBAL_BATCH, 0)
    dp = max(0, file.whole(SHARD, 0)) * file.dp_replicate
    key = MICRO_BATCH if file.pp > 1 else LOCAL_BATCH
    micro = file.whole(key, 0)
    if micro < 1 or local < 1:
        return
    yield "micro_batch", key, micro
    at = LOCAL_BATCH if total < 0 else GLOBAL_BATCH
    batch, step = (local, micro) if total < 0 else (total, dp * micro)
    if batch > 0 and step > 0 and batch % step == 0:
        yield "num_micro_batches", at, batch // step
    if total > 0 or dp > 0:
        yield "global_batch", GLOBAL_BATCH, total if total > 0 else local * dp


def _of_shards(settings: Settings) -> Decided:
    file = TorchtitanView(settings=settings)
    shards = whole(settings, SHARD, 0)
    if shards > 0 and file.others > 0:
        yield "dp", SHARD, shards * file.dp_replicate
        yield "num_gpus", SHARD, shards * file.others


def _stage(settings: Settings) -> int:
    policy, pp = word(settings, RESHARD), TorchtitanView(settings=settings).pp
    return 2 if policy == "never" or (policy == "default" and pp > 1) else 3


def _of_precision(settings: Settings) -> Decided:
    precision = config_of(settings).precision
    key = PRECISION if precision == "bf16" else "config"
    if word(settings, PRECISION) == "bfloat16" and precision in ("bf16", "mxfp8"):
        yield "precision", key, precision


def _policy(_: Context, strategy: Strategy) -> str:
    """The one policy of all layers; empty where layers differ."""
    for name, counts in POLICIES.items():
        if getattr(strategy, counts) == strategy.layers_per_stage:
            return name
    return "" if any(map(sum, strategy.policy_counts)) else "none"


def _of_policy(settings: Settings) -> Decided:
    pipeline = {name: value for name, _, value in _of_pipeline(settings)}
    layers, policy = pipeline.get("layers_per_stage"), word(settings, POLICY)
    if layers is not None and policy in ("none", *POLICIES):
        none = (0,) * len(layers)
        for name, decision in POLICIES.items():
            yield decision, POLICY, layers if policy == name else none
    elif policy in POLICIES:
        yield POLICIES[policy], POLICY, ALL


def unlike_modules(context: Context, modules: tuple[str, ...] | None = None) -> Iterator[str]:
    """Yield why the selective policy does not repeat what the plan repeats."""
    repeated = modules or context.traits.recompute.selected
    if context.traits.profile in PROFILES and repeated != ("every_second_matmul",):
        names = ", ".join(repeated) or "nothing"
        yield f"recomputation of {names}: its selective policy repeats every_second_matmul"


def _of_pipeline(settings: Settings) -> Decided:
    """Yield the decisions of settings on schedule, chunks and layers."""
    file = TorchtitanView(settings=settings)
    pp, num_layers = file.pp, file.decided("model.num_layers")
    if pp == 1 and num_layers:
        yield "layers_per_stage", "config", (num_layers,)
    if pp < 2 or file.schedule in ("", "other"):
        return
    ours = "1f1b" if file.schedule == "interleaved" else file.schedule
    yield "schedule", SCHEDULE, ours
    # Layers of every model part, and the key that says so.
    listed, key = file[PARTS], PARTS
    counts = [len(layers_in(part)) for part in listed or ()]
    if listed is None and num_layers:
        ends = file.whole(FIRST_LESS, 0), file.whole(LAST_LESS, 0)
        counts, key = default_counts(num_layers, file.parts, *ends) or [], LAYERS
    if not counts or len(counts) % pp:
        return
    if len(counts) > pp:
        yield "vpp", key, len(counts) // pp
    # The second parts of a V-shaped schedule go back from the last rank to the first.
    if ours in V_SHAPED:
        counts = [*counts[:pp], *reversed(counts[pp:])]
    yield "layers_per_stage", key, tuple(sum(counts[rank::pp]) for rank in range(pp))


def _schedule(_: Context, strategy: Strategy) -> str | None:
    is_interleaved = strategy.schedule == "1f1b" and strategy.vpp > 1
    name = "interleaved" if is_interleaved else strategy.schedule
    return SCHEDULE_NAMES[name] if strategy.pp > 1 else None


# Schedules that torch runs only without compiled blocks.
_SPLITS_BACKWARD = "(schedule in ('zb-interleaved', 'zb-v', 'dualpipe-v'))"
# In the order of the lines: the policy's word ends torchtitan's own options.
TABLE: Table = (
    KeyMapping(
        names=("micro_batch", "num_micro_batches", "global_batch"),
        keys=(LOCAL_BATCH, GLOBAL_BATCH, MICRO_BATCH),
        to=writes(
            {
                LOCAL_BATCH: (
                    "micro_batch * (num_micro_batches if pp > 1 else 1)",
                    (
                        "{'sequences per micro-batch' if pp == 1 "
                        "else str(num_micro_batches) + ' micro-batches for the pipeline'}"
                    ),
                ),
                GLOBAL_BATCH: (
                    "dp * micro_batch * num_micro_batches",
                    "sequences per iteration",
                ),
            }
        ),
        of=_of_batch,
    ),
    of_key("seq_len", "training.seq_len", "job.seq_len", "tokens per sequence"),
    _degree(
        "tp",
        "tensor parallelism",
        REFUSALS["heads"],
    ),
    _degree("pp", "pipeline stages"),
    _degree("cp", "context parallelism"),
    _degree(
        "ep",
        "expert parallelism, over the ranks of tp, cp and the shards",
        REFUSALS["experts"],
        CUDA_GRAPHS,
    ),
    KeyMapping(
        names=("etp",),
        keys=(),
        of=reads(
            "etp",
            DEGREES["ep"],
            lambda found: (
                1 if min(whole(found, DEGREES[each], 0) for each in ("ep", "tp")) > 1 else None
            ),
        ),
    ),
    _degree("dp_replicate", "replicas of the sharding group"),
    KeyMapping(
        names=("dp", "num_gpus"),
        keys=(SHARD,),
        to=writes(
            {
                SHARD: (
                    "dp // dp_replicate",
                    "states are sharded over them, and over context parallelism",
                )
            }
        ),
        of=_of_shards,
    ),
    of_key(
        "sequence_parallel",
        SEQUENCE_PARALLEL,
        "sequence_parallel if tp > 1 else None",
        "norms split over tensor parallelism",
        follows=lambda found: (
            flag(found, SEQUENCE_PARALLEL) and TorchtitanView(settings=found).tp > 1
        ),
    ),
    of_key(
        "zero_stage",
        RESHARD,
        "'always' if zero_stage == 3 else 'never'",
        "ZeRO stage {zero_stage}",
        follows=_stage,
        cannot=REFUSALS["stage"],
    ),
    of_key(
        "offload",
        OFFLOAD,
        "offload != 'none'",
        "offload: {offload}",
        of=reads_key("offload", OFFLOAD, lambda is_on: OFFLOADED if is_on else None),
        cannot=REFUSALS["offload"],
    ),
    of_key(
        "precision",
        PRECISION,
        "'bfloat16'",
        "precision {job.precision}",
        of=_of_precision,
    ),
    of_key(
        "optimizer",
        "optimizer.implementation",
        lambda c, _: IMPLEMENTATIONS[c.traits.optimizer.name],
        "optimizer {traits.optimizer.name}",
        read=lambda given: next((n for n, own in IMPLEMENTATIONS.items() if own == given), "adam"),
        cannot=unlike_software,
    ),
    KeyMapping(
        names=("placement",),
        keys=(),
        cannot=REFUSALS["placement"],
    ),
    KeyMapping(
        names=("schedule", "vpp", "layers_per_stage"),
        keys=(
            *(SCHEDULE, SCHEDULE_CSV, MICRO_BATCH, PARTS),
            *(LAYERS, FIRST_LESS, LAST_LESS, CUDA_GRAPHS),
        ),
        to=several(
            writes(
                {
                    CUDA_GRAPHS: (
                        "True",
                        (
                            "the plan's time holds without them; refused with pipelining and most "
                            "expert parallelism"
                        ),
                    )
                },
                assumed="pp == 1 and ep == 1",
            ),
            writes(
                {
                    SCHEDULE: (
                        _schedule,
                        "schedule {schedule}",
                    ),
                    MICRO_BATCH: (
                        "micro_batch if pp > 1 else None",
                        "sequences per micro-batch",
                    ),
                    PARTS: (
                        lambda _, s: parts_of(s) if s.pp > 1 else None,
                        "layers per stage: {layers_per_stage}",
                    ),
                }
            ),
        ),
        of=_of_pipeline,
        cannot=REFUSALS["pipeline"],
    ),
    KeyMapping(
        names=("profile",),
        keys=("compile.enable", "compile.components", ASYNC_TP, SPMD_BACKEND),
        to=several(
            writes(
                {"compile.enable": ("traits.profile == 'current'", "profile {traits.profile}")},
                assumed=f"not {_SPLITS_BACKWARD}",
            ),
            writes(
                {
                    "compile.components": (
                        "('model', 'loss') if traits.profile == 'current' else None",
                        "profile {traits.profile}: blocks and loss",
                    )
                },
                assumed="True",
            ),
            writes(
                {
                    ASYNC_TP: (
                        (
                            "traits.profile == 'current' and tp > 1 "
                            "and traits.overlap.tensor_parallel_overlap == 'ring'"
                        ),
                        "products in chunks beside the transfers of tensor parallelism",
                    )
                },
                assumed=f"not {_SPLITS_BACKWARD}",
            ),
            writes(
                {
                    SPMD_BACKEND: (
                        "'partial_dtensor'",
                        "torch 2.13 cannot shard what the default backend makes",
                    )
                },
                assumed="True",
            ),
        ),
        of=reads(
            "profile",
            "compile.enable",
            lambda found: None if TorchtitanView(settings=found).compiles_blocks else "eager",
        ),
    ),
    KeyMapping(
        names=tuple(POLICIES.values()),
        keys=(POLICY,),
        to=writes({POLICY: (_policy, "activations of every layer: {recompute}")}),
        of=_of_policy,
        cannot=several(
            REFUSALS["policy"],
            lambda c, s: (
                unlike_modules(c, s.recompute_modules) if any(s.selective_layers_per_stage) else ()
            ),
        ),
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

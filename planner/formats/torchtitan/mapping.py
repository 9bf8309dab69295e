"""Decisions of a plan in torchtitan's words: a row each, with keys and refusals."""

from collections.abc import Iterator, Mapping
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
    refusals,
    says,
    several,
    stated,
    told,
    unless,
)
from planner.formats.format import ALL, DECISIONS, Located
from planner.formats.settings import Settings, decided, flag, given, whole, word
from planner.formats.torchtitan import keys as option
from planner.formats.torchtitan.keys import (
    POLICY,
    SELECTORS,
    TorchtitanView,
    config_of,
    filled,
)
from planner.spec.strategy import PLACEMENT_NAMES, V_SHAPED, Strategy

_REFUSALS = refusals(__package__)
unlike_software = _REFUSALS["software"]
OFFLOADS = ("none", "optimizer+parameters:host")
IMPLEMENTATIONS = {"adam": "fused", "adam-bf16": "fused_opt_states_bf16"}
PROFILES = ("current", "eager")  # of the release: compiled and not
POLICIES = {"selective": "selective_layers_per_stage", "full": "recompute_layers_per_stage"}


def _degree(name: str, why: str, cannot: Cannot = nothing, *more: str) -> KeyMapping:
    """A degree, which is 1 where the file says nothing of it."""
    key = option.DEGREES[name]

    def read(settings: Settings) -> int | None:
        degree = whole(settings, key, 0)
        is_stated = degree > 1 or (degree == 1 and settings[key].line)
        return degree if is_stated else None

    return of_key(
        name, key, lambda _, s: getattr(s, name), why, follows=read, cannot=cannot, more=more
    )


def _batch_lines(_: Context, strategy: Strategy) -> Iterator[KeyValue]:
    number, why = strategy.num_micro_batches, "sequences per micro-batch"
    local, total = strategy.micro_batch, strategy.dp * strategy.micro_batch * number
    if strategy.pp > 1:
        local, why = local * number, f"{number} micro-batches for the pipeline"
    yield KeyValue(key=option.LOCAL_BATCH, value=local, why=why)
    yield KeyValue(
        key=option.GLOBAL_BATCH,
        value=total,
        why="sequences per iteration",
    )


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


def _of_shards(settings: Settings) -> Decided:
    file = TorchtitanView(settings=settings)
    shards = whole(settings, option.SHARD, 0)
    if shards > 0 and file.others > 0:
        yield "dp", option.SHARD, shards * file.dp_replicate
        yield "num_gpus", option.SHARD, shards * file.others


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


def _software_lines(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    is_on = context.traits.profile == "current"
    profile = f"profile {context.traits.profile}"
    is_ring = context.traits.overlap.tensor_parallel_overlap == "ring"
    is_split = option.splits_backward(strategy.schedule)
    beside = "products in chunks beside the transfers of tensor parallelism"
    backend = "torch 2.13 cannot shard what the default backend makes"
    parts = ["model", "loss"] if is_on else None
    lines: dict[str, tuple[object, str, bool]] = {
        "compile.enable": (is_on, profile, not is_split),
        "compile.components": (parts, f"{profile}: blocks and loss", True),
        option.ASYNC_TP: (is_on and is_ring and strategy.tp > 1, beside, not is_split),
        option.SPMD_BACKEND: ("partial_dtensor", backend, True),
    }
    for key, (value, why, is_assumed) in lines.items():
        if value is not None:
            yield KeyValue(key=key, value=value, why=why, is_assumed=is_assumed)


def policy_of(strategy: Strategy) -> str:
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


def _pipeline_lines(_: Context, strategy: Strategy) -> Iterator[KeyValue]:
    why = "the plan's time holds without them; refused with pipelining and most expert parallelism"
    is_free = strategy.pp == 1 and strategy.ep == 1
    yield KeyValue(
        key=option.CUDA_GRAPHS,
        value=True,
        why=why,
        is_assumed=is_free,
    )
    if strategy.pp > 1:
        layers = ", ".join(map(str, strategy.layers_per_stage))
        is_interleaved = strategy.schedule == "1f1b" and strategy.vpp > 1
        schedule = option.SCHEDULE_NAMES["interleaved" if is_interleaved else strategy.schedule]
        yield from told(
            {
                option.SCHEDULE: (schedule, f"schedule {strategy.schedule}"),
                option.MICRO_BATCH: (strategy.micro_batch, "sequences per micro-batch"),
                option.PARTS: (option.parts_of(strategy), f"layers per stage: {layers}"),
            }
        )


def _of_pipeline(settings: Settings) -> Decided:
    """Yield the decisions of settings on schedule, chunks and layers."""
    pp = option.degree(settings, "pp")
    num_layers = config_of(settings).model.get("num_layers", 0)
    if pp == 1 and num_layers:
        yield "layers_per_stage", "config", (num_layers,)
    schedule = option.schedule_named(word(settings, option.SCHEDULE))
    if pp < 2 or schedule in ("", "other"):
        return
    ours = "1f1b" if schedule == "interleaved" else schedule
    yield "schedule", option.SCHEDULE, ours
    # Layers of every model part, and the key that says so.
    parts = given(settings, option.PARTS)
    per_part = given(settings, option.LAYERS)
    counts = [len(option.layers_in(part)) for part in parts or ()]
    key = option.PARTS
    if parts is None and num_layers and pp <= option.MAX_PARTS and (per_part or 1) > 0:
        first = whole(settings, option.FIRST_LESS, 0)
        last = whole(settings, option.LAST_LESS, 0)
        count = option.num_parts(num_layers, pp, schedule, per_part, first, last)
        counts = option.default_counts(num_layers, count, first, last) or []
        key = option.LAYERS
    if not counts or len(counts) % pp:
        return
    if len(counts) > pp:
        yield "vpp", key, len(counts) // pp
    # The second parts of a V-shaped schedule go back from the last rank to the first.
    if ours in V_SHAPED:
        counts = [*counts[:pp], *reversed(counts[pp:])]
    yield "layers_per_stage", key, tuple(sum(counts[rank::pp]) for rank in range(pp))


# In the order of the lines: the policy's word ends torchtitan's own options.
TABLE: Table = (
    KeyMapping(
        names=("micro_batch", "num_micro_batches", "global_batch"),
        keys=(option.LOCAL_BATCH, option.GLOBAL_BATCH, option.MICRO_BATCH),
        to=_batch_lines,
        of=_of_batch,
    ),
    of_key("seq_len", "training.seq_len", lambda c, _: c.job.seq_len, "tokens per sequence"),
    _degree(
        "tp",
        "tensor parallelism",
        unless(
            lambda c, s: (c.model.num_heads if c.model.mla else c.model.num_kv_heads) % s.tp,
            "tp {s.tp}: torchtitan splits key and value heads whole, and does not divide them",
        ),
    ),
    _degree("pp", "pipeline stages"),
    _degree("cp", "context parallelism"),
    _degree(
        "ep",
        "expert parallelism, over the ranks of tp, cp and the shards",
        unless(
            lambda _, s: s.etp != (1 if s.ep > 1 else s.tp),
            "etp {s.etp} with ep {s.ep} and tp {s.tp}: torchtitan's experts are whole under expert "
            "parallelism, else split as other layers are",
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
                1 if min(option.degree(found, each) for each in ("ep", "tp")) > 1 else None
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
    KeyMapping(
        names=("schedule", "vpp", "layers_per_stage"),
        keys=(
            *(option.SCHEDULE, option.SCHEDULE_CSV, option.MICRO_BATCH, option.PARTS),
            *(option.LAYERS, option.FIRST_LESS, option.LAST_LESS, option.CUDA_GRAPHS),
        ),
        to=_pipeline_lines,
        of=_of_pipeline,
        cannot=_REFUSALS["pipeline"],
    ),
    KeyMapping(
        names=("profile",),
        keys=("compile.enable", "compile.components", option.ASYNC_TP, option.SPMD_BACKEND),
        to=_software_lines,
        of=derived(
            "profile",
            "compile.enable",
            lambda found: None if TorchtitanView(settings=found).compiles_blocks else "eager",
        ),
    ),
    KeyMapping(
        names=tuple(POLICIES.values()),
        keys=(POLICY,),
        to=says(POLICY, lambda _, s: policy_of(s), "activations of every layer: {s.recompute}"),
        of=_of_policy,
        cannot=several(
            _REFUSALS["policy"],
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

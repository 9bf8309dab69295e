"""What torchtitan's settings decide, by the names of DECISIONS."""

from collections.abc import Iterator, Mapping

from planner.formats.format import Value
from planner.formats.torchtitan.known import POLICY, Setting, config_of, effective
from planner.formats.torchtitan.layout import (
    MAX_PARTS,
    default_counts,
    layers_in,
    num_parts,
    per_rank,
    schedule_named,
)

DEGREES = {
    "tp": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
}
SHARD = "parallelism.data_parallel_shard_degree"
RESHARD = "parallelism.fsdp_reshard_after_forward"
SEQUENCE_PARALLEL = "parallelism.enable_sequence_parallel"
SCHEDULE = "parallelism.pipeline_parallel_schedule"
MICRO_BATCH = "parallelism.pipeline_parallel_microbatch_size"
PARTS = "parallelism.module_fqns_per_model_part"
LAYERS = "parallelism.pipeline_parallel_layers_per_stage"
FIRST_LESS = "parallelism.pipeline_parallel_first_stage_less_layers"
LAST_LESS = "parallelism.pipeline_parallel_last_stage_less_layers"
LOCAL_BATCH = "training.local_batch_size"
GLOBAL_BATCH = "training.global_batch_size"
SEQ_LEN = "training.seq_len"
OFFLOAD = "training.enable_cpu_offload"
PRECISION = "training.mixed_precision_param"
OPTIMIZER = "optimizer.implementation"
BF16_STATES = "fused_opt_states_bf16"

DECIDING = {
    *(*DEGREES.values(), SHARD, RESHARD, SEQUENCE_PARALLEL, SCHEDULE, MICRO_BATCH, PARTS),
    *(LAYERS, FIRST_LESS, LAST_LESS, LOCAL_BATCH, GLOBAL_BATCH, SEQ_LEN, OFFLOAD, PRECISION),
    *(OPTIMIZER, POLICY, "module", "config", "compile.enable"),
}
"""Options whose value must be known for what the file decides to be known."""

Settings = Mapping[str, Value]
MODEL_NAMES = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_heads",
    "num_kv_heads": "num_kv_heads",
    "ffn_size": "ffn_size",
    "vocab_size": "vocab_size",
    "moe.num_experts": "num_experts",
}


def decisions_of(settings: Settings, num_gpus: Value | None = None) -> dict[str, Value]:
    """Everything that a file, or a default that is not neutral, decides.

    ``num_gpus`` are the processes that the launcher's words start.
    """
    decisions: dict[str, Value] = {}
    for part in (_degrees, _batch, _states, _pipeline, _policies, _model):
        decisions.update(part(settings))
    return decisions if num_gpus is None else decisions | {"num_gpus": num_gpus}


def _place(settings: Settings, key: str, value: Setting) -> Value:
    """A decision with the place of the key that carries it; line 0 for a default."""
    given = settings.get(key)
    spelled = given.key if given else f"--{key}"
    return Value(value=value, key=spelled, line=given.line if given else 0)


def _whole(settings: Settings, key: str) -> int:
    value = effective(settings, key)
    return value if isinstance(value, int) else 0


def _degrees(settings: Settings) -> Iterator[tuple[str, Value]]:
    product = 1
    for name, key in DEGREES.items():
        degree = _whole(settings, key)
        product *= 1 if name == "ep" else degree
        if degree > 1 or (degree == 1 and key in settings):
            yield name, _place(settings, key, degree)
    if _whole(settings, DEGREES["ep"]) > 1 and _whole(settings, DEGREES["tp"]) > 1:
        yield "etp", _place(settings, DEGREES["ep"], 1)
    shard, replicas = _whole(settings, SHARD), _whole(settings, DEGREES["dp_replicate"])
    if shard > 0 and product > 0:
        yield "dp", _place(settings, SHARD, shard * replicas)
        yield "num_gpus", _place(settings, SHARD, shard * product)


def _batch(settings: Settings) -> Iterator[tuple[str, Value]]:
    local, total = _whole(settings, LOCAL_BATCH), _whole(settings, GLOBAL_BATCH)
    pp, shard = _whole(settings, DEGREES["pp"]), _whole(settings, SHARD)
    dp = shard * _whole(settings, DEGREES["dp_replicate"]) if shard > 0 else 0
    key = MICRO_BATCH if pp > 1 else LOCAL_BATCH
    micro = _whole(settings, key)
    if micro < 1 or local < 1:
        return
    yield "micro_batch", _place(settings, key, micro)
    if total < 0 and local % micro == 0:
        yield "num_micro_batches", _place(settings, LOCAL_BATCH, local // micro)
    if total > 0 and dp > 0 and total % (dp * micro) == 0:
        number = total // (dp * micro)
        yield "num_micro_batches", _place(settings, GLOBAL_BATCH, number)
    if total > 0 or dp > 0:
        yield "global_batch", _place(settings, GLOBAL_BATCH, total if total > 0 else local * dp)


def _states(settings: Settings) -> Iterator[tuple[str, Value]]:
    is_piped = _whole(settings, DEGREES["pp"]) > 1
    stages = {"always": 3, "never": 2, "default": 2 if is_piped else 3}
    yield "zero_stage", _place(settings, RESHARD, stages[str(effective(settings, RESHARD))])
    yield "seq_len", _place(settings, SEQ_LEN, _whole(settings, SEQ_LEN))
    splits = bool(effective(settings, SEQUENCE_PARALLEL)) and _whole(settings, DEGREES["tp"]) > 1
    yield "sequence_parallel", _place(settings, SEQUENCE_PARALLEL, splits)
    if effective(settings, OFFLOAD):
        yield "offload", _place(settings, OFFLOAD, "optimizer+parameters:host")
    precision = config_of(settings).precision
    if effective(settings, PRECISION) == "bfloat16" and precision in ("bf16", "mxfp8"):
        key = PRECISION if precision == "bf16" else "config"
        yield "precision", _place(settings, key, precision)
    states = "adam-bf16" if effective(settings, OPTIMIZER) == BF16_STATES else "adam"
    yield "optimizer", _place(settings, OPTIMIZER, states)


def _pipeline(settings: Settings) -> Iterator[tuple[str, Value]]:
    pp, num_layers = _whole(settings, DEGREES["pp"]), config_of(settings).model.get("num_layers", 0)
    if pp == 1 and num_layers:
        yield "layers_per_stage", _place(settings, "config", (num_layers,))
    if pp < 2:
        return
    schedule = schedule_named(str(effective(settings, SCHEDULE)))
    if schedule in ("", "other"):
        return
    ours = "1f1b" if schedule == "interleaved" else schedule
    yield "schedule", _place(settings, SCHEDULE, ours)
    counts, key = part_counts(settings)
    if counts is None or len(counts) % pp:
        return
    if len(counts) > pp:
        yield "vpp", _place(settings, key, len(counts) // pp)
    yield "layers_per_stage", _place(settings, key, per_rank(counts, pp, ours))


def part_counts(settings: Settings) -> tuple[list[int] | None, str]:
    """Layers of every model part, None where they are not known, and the key that says so."""
    parts = effective(settings, PARTS)
    if parts is not None:
        return [len(layers_in(part)) for part in parts], PARTS
    num_layers = config_of(settings).model.get("num_layers", 0)
    pp = _whole(settings, DEGREES["pp"])
    schedule = schedule_named(str(effective(settings, SCHEDULE)))
    first, last = _whole(settings, FIRST_LESS), _whole(settings, LAST_LESS)
    per_part = effective(settings, LAYERS)
    if not num_layers or not 1 <= pp <= MAX_PARTS or (per_part or 1) < 1:
        return None, LAYERS
    count = num_parts(num_layers, pp, schedule, per_part, first, last)
    return default_counts(num_layers, count, first, last), LAYERS


def _policies(settings: Settings) -> Iterator[tuple[str, Value]]:
    layers = dict(_pipeline(settings)).get("layers_per_stage")
    if layers is None:
        return
    policy = effective(settings, POLICY)
    none = (0,) * len(layers.value)
    chosen = {"selective": "selective_layers_per_stage", "full": "recompute_layers_per_stage"}
    for name, decision in chosen.items():
        if policy in ("none", *chosen):
            counts = layers.value if policy == name else none
            yield decision, _place(settings, POLICY, counts)


def _model(settings: Settings) -> Iterator[tuple[str, Value]]:
    for theirs, ours in MODEL_NAMES.items():
        value = config_of(settings).model.get(theirs)
        if value:
            yield f"model.{ours}", _place(settings, "config", value)

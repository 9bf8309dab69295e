"""Rules that torchtitan's configuration, trainer and mesh enforce, and those they miss."""

from collections.abc import Iterator

from planner.formats.format import Broken, FormatRule, World, rule
from planner.formats.torchtitan import decisions as key
from planner.formats.torchtitan.known import config_of, degree, effective
from planner.formats.torchtitan.pipeline_rules import PIPELINE_RULES, Settings, broken

CUDA_GRAPHS = "training.disable_cuda_graphs"
COMPILE = "compile.enable"
SYNCHRONOUS = ("AllToAllTokenDispatcher", "DeepEPTokenDispatcher", "HybridEPTokenDispatcher")
BALANCERS = ("headtail", "ptrr")
_SHARD = "data_parallel_shard"
_OTHERS = ("data_parallel_replicate", "context_parallel", "tensor_parallel", "pipeline_parallel")
"""Degrees that make the processes with that of the shards."""


def shard_degree(settings: Settings, world: World) -> int:
    """Shards of data parallelism: what is given, or what the other degrees leave."""
    given = degree(settings, _SHARD)
    if given != -1:
        return given
    return world.num_gpus // max(1, _others(settings))


def _are_known(settings: Settings) -> bool:
    """Whether the degrees are stated, or are those of a config that is known."""
    names = (_SHARD, *_OTHERS)
    stated = all(f"parallelism.{name}_degree" in settings for name in names)
    return stated or config_of(settings).is_known


def _others(settings: Settings) -> int:
    product = 1
    for name in _OTHERS:
        product *= degree(settings, name)
    return product


def _data_parallel(settings: Settings, world: World) -> int:
    return degree(settings, "data_parallel_replicate") * shard_degree(settings, world)


def _model(settings: Settings, world: World, name: str) -> int:
    value = world.decisions.get(f"model.{name}")
    config = config_of(settings).model
    return int(value or config.get(name) or config.get(f"moe.{name}") or 0)


def degrees_are_positive(settings: Settings, _: World) -> Iterator[Broken]:
    """Every degree is at least 1; that of the shards may be -1 for what the others leave."""
    for name in key.DEGREES.values():
        value = effective(settings, name)
        if value < 1:
            yield broken(settings, name, f"{value} given; needs 1 or more")
    shard = effective(settings, key.SHARD)
    if shard < 1 and shard != -1:
        yield broken(settings, key.SHARD, f"{shard} given; needs 1 or more, or -1")


def degrees_make_world(settings: Settings, world: World) -> Iterator[Broken]:
    """Replicas x shards x cp x tp x pp are the processes."""
    if not _are_known(settings):
        return
    shard, others = shard_degree(settings, world), _others(settings)
    if others > 0 and shard * others != world.num_gpus and effective(settings, key.SHARD) != 0:
        given = f"{shard} shards x {others} of the other degrees = {shard * others}"
        yield broken(settings, key.SHARD, f"{given}; needs {world.num_gpus} processes")


def experts_fit_shards(settings: Settings, world: World) -> Iterator[Broken]:
    """Expert parallelism divides shards x cp x tp, whose ranks it takes."""
    ep, shard = degree(settings, "expert_parallel"), shard_degree(settings, world)
    inner = shard * degree(settings, "context_parallel") * degree(settings, "tensor_parallel")
    if ep > 1 and inner % ep:
        message = f"{ep} given; needs a divisor of shards x cp x tp = {inner}"
        yield broken(settings, key.DEGREES["ep"], message)


def experts_are_whole(settings: Settings, world: World) -> Iterator[Broken]:
    """Expert parallelism divides the experts."""
    ep, experts = degree(settings, "expert_parallel"), _model(settings, world, "num_experts")
    if ep > 1 and experts and experts % ep:
        message = f"{ep} given; needs a divisor of {experts} experts"
        yield broken(settings, key.DEGREES["ep"], message)


def experts_exist(settings: Settings, world: World) -> Iterator[Broken]:
    """Expert parallelism needs a mixture: torchtitan ignores it for other models."""
    ep, experts = degree(settings, "expert_parallel"), _model(settings, world, "num_experts")
    if ep > 1 and not experts and _model(settings, world, "num_layers"):
        yield broken(settings, key.DEGREES["ep"], f"{ep} given; the model has no experts")


def tp_divides_heads(settings: Settings, world: World) -> Iterator[Broken]:
    """Tensor parallelism divides query heads and heads of keys and values."""
    tp = degree(settings, "tensor_parallel")
    for name, what in (("num_heads", "heads"), ("num_kv_heads", "key and value heads")):
        heads = _model(settings, world, name)
        if tp > 1 and heads % tp:
            yield broken(
                settings, key.DEGREES["tp"], f"{tp} given; needs a divisor of {heads} {what}"
            )


def sequence_is_divided(settings: Settings, _: World) -> Iterator[Broken]:
    """The sequence is cut into tp pieces under sequence parallelism, 2 x cp under cp."""
    cp, tp = degree(settings, "context_parallel"), degree(settings, "tensor_parallel")
    pieces = (tp if effective(settings, key.SEQUENCE_PARALLEL) else 1) * (2 * cp if cp > 1 else 1)
    length = effective(settings, key.SEQ_LEN)
    if pieces > 1 and length % pieces:
        yield broken(settings, key.SEQ_LEN, f"{length} given; needs a multiple of {pieces}")


def sequence_fits_rotary(settings: Settings, _: World) -> Iterator[Broken]:
    """The sequence is no longer than the config's rotary embedding."""
    most, length = config_of(settings).max_seq_len, effective(settings, key.SEQ_LEN)
    if most and length > most:
        yield broken(settings, key.SEQ_LEN, f"{length} given; the config allows {most}")


def batch_is_divided(settings: Settings, world: World) -> Iterator[Broken]:
    """The global batch is a multiple of the local one times data parallelism."""
    total, local = effective(settings, key.GLOBAL_BATCH), effective(settings, key.LOCAL_BATCH)
    step = local * _data_parallel(settings, world)
    if total >= 0 and step > 0 and (total == 0 or total % step):
        message = f"{total} given; needs a multiple of {local} x data parallelism = {step}"
        yield broken(settings, key.GLOBAL_BATCH, message)


def graphs_without_pipeline(settings: Settings, _: World) -> Iterator[Broken]:
    """CUDA graphs are switched off under pipelining."""
    pp = degree(settings, "pipeline_parallel")
    if pp > 1 and not effective(settings, CUDA_GRAPHS):
        yield broken(settings, CUDA_GRAPHS, f"not set with {pp} pipeline stages; needs to be")


def graphs_without_experts(settings: Settings, _: World) -> Iterator[Broken]:
    """CUDA graphs are switched off where expert parallelism waits for the host."""
    ep, dispatcher = degree(settings, "expert_parallel"), config_of(settings).dispatcher
    if ep > 1 and dispatcher in SYNCHRONOUS and not effective(settings, CUDA_GRAPHS):
        message = f"not set with expert parallelism {ep} over {dispatcher}; needs to be"
        yield broken(settings, CUDA_GRAPHS, message)


def _compiles_model(settings: Settings) -> bool:
    return bool(effective(settings, COMPILE)) and "model" in effective(
        settings, "compile.components"
    )


def async_tp_is_compiled(settings: Settings, _: World) -> Iterator[Broken]:
    """Asynchronous tensor parallelism needs compiled blocks."""
    name = "compile.enable_async_tensor_parallel"
    if effective(settings, name) and not _compiles_model(settings):
        yield broken(settings, name, "set; needs --compile.enable and model among its components")


def budget_is_compiled(settings: Settings, _: World) -> Iterator[Broken]:
    """A memory budget for activations needs compiled blocks."""
    name = "activation_checkpoint"
    if effective(settings, name) == "memory_budget" and not _compiles_model(settings):
        message = "memory-budget given; needs --compile.enable and model among its components"
        yield broken(settings, name, message)


def type_checks_without_pipeline(settings: Settings, _: World) -> Iterator[Broken]:
    """Type checks of sharding cannot run under pipelining."""
    name, pp = "debug.spmd_typechecking", degree(settings, "pipeline_parallel")
    spmd = effective(settings, "parallelism.spmd_backend") == "spmd_types"
    if pp > 1 and spmd and effective(settings, name):
        yield broken(settings, name, f"set with {pp} pipeline stages; needs one stage")


def batches_may_vary(settings: Settings, _: World) -> Iterator[Broken]:
    """Batch-invariant mode is not for pre-training."""
    if effective(settings, "debug.batch_invariant"):
        yield broken(settings, "debug.batch_invariant", "set; training needs it to be off")


def context_needs_flex(settings: Settings, _: World) -> Iterator[Broken]:
    """Context parallelism does not run with attention over variable lengths."""
    cp, attention = degree(settings, "context_parallel"), config_of(settings).attention
    if cp > 1 and attention == "VarlenAttention":
        message = f"{cp} given; the config's attention ({attention}) allows 1"
        yield broken(settings, key.DEGREES["cp"], message)


def balancer_is_known(settings: Settings, _: World) -> Iterator[Broken]:
    """The load balancer of context parallelism is one of torch's."""
    name = "parallelism.context_parallel_load_balancer"
    value, cp = effective(settings, name), degree(settings, "context_parallel")
    if cp > 1 and value is not None and value != "" and value not in BALANCERS:
        yield broken(settings, name, f"{value!r} given; allowed are {', '.join(BALANCERS)}, None")


def balancer_is_named(settings: Settings, _: World) -> Iterator[Broken]:
    """No load balancer is spelled None, not as an empty word."""
    name = "parallelism.context_parallel_load_balancer"
    if effective(settings, name) == "":
        yield broken(settings, name, f"empty; allowed are {', '.join(BALANCERS)}, None")


def config_is_named(settings: Settings, _: World) -> Iterator[Broken]:
    """A module and one of its configs are named."""
    missing = [name for name in ("module", "config") if name not in settings]
    if missing:
        both = ", as is --config" if len(missing) > 1 else ""
        yield broken(settings, missing[0], f"missing{both}; torchtitan needs --module and --config")


_DIMS = "torchtitan/distributed/parallel_dims.py"
_TRAINER = "torchtitan/trainer.py"
_DECODER = "torchtitan/models/common/decoder.py"
RULES: tuple[FormatRule, ...] = (
    rule(config_is_named, "torchtitan/config/manager.py"),
    rule(degrees_are_positive, _DIMS),
    rule(degrees_make_world, _DIMS),
    rule(experts_fit_shards, _DIMS),
    rule(
        experts_are_whole,
        "not checked: torchtitan/models/common/moe_sharding.py splits experts over the ranks",
        enforced=False,
    ),
    rule(
        experts_exist,
        "not checked: torchtitan/config/configs.py says no effect for other models",
        enforced=False,
        severity="warning",
    ),
    rule(tp_divides_heads, _DECODER),
    rule(sequence_is_divided, _TRAINER),
    rule(sequence_fits_rotary, _DECODER),
    rule(batch_is_divided, _TRAINER),
    rule(graphs_without_pipeline, _TRAINER),
    rule(graphs_without_experts, _TRAINER),
    rule(async_tp_is_compiled, "torchtitan/config/configs.py"),
    rule(budget_is_compiled, _TRAINER),
    rule(type_checks_without_pipeline, _TRAINER),
    rule(batches_may_vary, _TRAINER),
    rule(context_needs_flex, "torchtitan/models/*/model.py"),
    rule(
        balancer_is_known,
        "not checked at the start: torchtitan/distributed/context_parallel/api.py, first step",
        enforced=False,
    ),
    rule(balancer_is_named, "torchtitan/config/configs.py"),
    *PIPELINE_RULES,
)

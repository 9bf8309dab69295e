"""Rules of the parallel axes: pipeline, AutoTP, Ulysses, AutoEP; activation checkpointing."""

from collections.abc import Iterator

from planner.formats.deepspeed.decisions import (
    Settings,
    autotp,
    given,
    size,
    stage,
    stages,
)
from planner.formats.deepspeed.known import SCRIPT, whole
from planner.formats.format import Broken, World, rule

_TP, _PP, _SP = "tensor_parallel.autotp_size", "pipeline.stages", "sequence_parallel_size"
_EP = "expert_parallel.autoep_size"
_REPLICAS = "data_parallel_size"


def _whole_decision(world: World, name: str) -> int | None:
    return whole(world.decisions.get(name))


def pipeline_below_stage_2(settings: Settings, _: World) -> Iterator[Broken]:
    """A pipeline runs under stage 0 or 1."""
    if stages(settings) > 1 and stage(settings) > 1:
        message = f"a pipeline runs under stage 0 or 1; given {stage(settings)}"
        yield Broken(key="zero_optimization.stage", message=message)


def pipeline_divides_ranks(settings: Settings, world: World) -> Iterator[Broken]:
    """Pipeline stages (times tensor-parallel ranks) divide the ranks."""
    script = size(settings, f"{SCRIPT}.tensor_parallel_size") or 1
    ranks = stages(settings) * script
    if stages(settings) > 1 and world.num_gpus % ranks:
        times = f" x {script} tensor-parallel ranks" if script > 1 else ""
        message = f"{stages(settings)} stages{times} must divide the ranks; given {world.num_gpus}"
        yield Broken(key=_PP, message=message)


def stages_have_layers(settings: Settings, world: World) -> Iterator[Broken]:
    """training_script.layers_per_stage has a count per stage, and all layers."""
    key = f"{SCRIPT}.layers_per_stage"
    counts = given(settings, key)
    if not isinstance(counts, list) or any(whole(count) is None for count in counts):
        return
    if len(counts) != stages(settings):
        yield Broken(
            key=key,
            message=f"one count per stage is needed: {stages(settings)}; given {len(counts)}",
        )
    layers = _whole_decision(world, "model.num_layers")
    if layers is not None and sum(counts) != layers:
        yield Broken(
            key=key, message=f"must add up to the model's {layers} layers; given {sum(counts)}"
        )
    if any(count < 1 for count in counts):
        yield Broken(key=key, message=f"every stage needs a layer; given {min(counts)}")


def autotp_without_pipeline(settings: Settings, _: World) -> Iterator[Broken]:
    """AutoTP does not go with a pipeline."""
    if autotp(settings) > 1 and stages(settings) > 1:
        message = "AutoTP builds groups without stages; layers of a pipeline split themselves"
        yield Broken(key=_TP, message=f"{message}; given {autotp(settings)}, allowed is 1")


def autotp_divides_ranks(settings: Settings, world: World) -> Iterator[Broken]:
    """autotp_size divides the ranks."""
    if world.num_gpus % autotp(settings):
        yield Broken(
            key=_TP, message=f"must divide the ranks; given {autotp(settings)} of {world.num_gpus}"
        )


def _kv_heads(world: World) -> int | None:
    return _whole_decision(world, "model.num_kv_heads") or _whole_decision(world, "model.num_heads")


def autotp_divides_kv_heads(settings: Settings, world: World) -> Iterator[Broken]:
    """autotp_size divides the key-value heads, along which AutoTP splits attention."""
    heads, ranks = _kv_heads(world), autotp(settings)
    if heads is not None and ranks <= heads and heads % ranks:
        message = f"ranks get unequal shares of the {heads} key-value heads"
        yield Broken(key=_TP, message=f"{message}; given {ranks}, allowed are divisors of {heads}")


def autotp_fits_kv_heads(settings: Settings, world: World) -> Iterator[Broken]:
    """autotp_size is at most the number of key-value heads."""
    heads = _kv_heads(world)
    if heads is not None and autotp(settings) > heads:
        message = f"ranks beyond the {heads} key-value heads do no attention"
        yield Broken(
            key=_TP, message=f"{message}; given {autotp(settings)}, allowed are up to {heads}"
        )


def autotp_sizes_agree(settings: Settings, _: World) -> Iterator[Broken]:
    """tensor_parallel.tp.tp_size is autotp_size."""
    for section in ("tp", "tensor_parallel"):
        key = f"tensor_parallel.{section}.tp_size"
        inner = size(settings, key) or 1
        if inner not in (1, autotp(settings)) and autotp(settings) > 1:
            yield Broken(key=key, message=f"must be autotp_size {autotp(settings)}; given {inner}")


def sequence_parallel_without_autotp(settings: Settings, _: World) -> Iterator[Broken]:
    """Ulysses goes with neither AutoTP nor a pipeline."""
    if (size(settings, _SP) or 1) > 1 and autotp(settings) * stages(settings) > 1:
        yield Broken(
            key=_SP, message="Ulysses goes with neither AutoTP nor a pipeline; allowed is 1"
        )


def sequence_parallel_divides_ranks(settings: Settings, world: World) -> Iterator[Broken]:
    """sequence_parallel_size divides the ranks."""
    sequence = size(settings, _SP) or 1
    if world.num_gpus % sequence:
        yield Broken(
            key=_SP, message=f"must divide the ranks; given {sequence} of {world.num_gpus}"
        )


def sequence_parallel_divides_heads(settings: Settings, world: World) -> Iterator[Broken]:
    """sequence_parallel_size divides the heads, and the key-value heads or they it."""
    sequence, heads = size(settings, _SP) or 1, _whole_decision(world, "model.num_heads")
    shared = _kv_heads(world)
    if heads is not None and heads % sequence:
        yield Broken(key=_SP, message=f"must divide the {heads} heads; given {sequence}")
    elif shared and shared % sequence and sequence % shared:
        message = f"must divide the {shared} key-value heads or be a multiple"
        yield Broken(key=_SP, message=f"{message}; given {sequence}")


def sequence_parallel_divides_sequence(settings: Settings, world: World) -> Iterator[Broken]:
    """sequence_parallel_size divides the sequence."""
    sequence, length = size(settings, _SP) or 1, _whole_decision(world, "seq_len")
    if length is not None and length % sequence:
        yield Broken(
            key=_SP, message=f"must divide the {length} tokens of a sequence; given {sequence}"
        )


def mesh_fills_ranks(settings: Settings, world: World) -> Iterator[Broken]:
    """data_parallel_size times sequence_parallel_size is the number of ranks."""
    count, sequence = size(settings, _REPLICAS), size(settings, _SP)
    if count and sequence and count * sequence != world.num_gpus:
        product = f"{count} x {sequence}"
        message = f"{_REPLICAS} x {_SP} must be {world.num_gpus} ranks; given {product}"
        yield Broken(key=_REPLICAS, message=message)


def experts_divide(settings: Settings, world: World) -> Iterator[Broken]:
    """autoep_size divides the experts and the ranks."""
    ranks = size(settings, _EP) or 1
    if given(settings, "expert_parallel.enabled") is not True or ranks == 1:
        return
    experts = _whole_decision(world, "model.num_experts")
    if experts is not None and experts % ranks:
        yield Broken(key=_EP, message=f"must divide the {experts} experts; given {ranks}")
    if world.num_gpus % ranks:
        yield Broken(key=_EP, message=f"must divide the ranks; given {ranks} of {world.num_gpus}")


def expert_balance_is_not_set(settings: Settings, _: World) -> Iterator[Broken]:
    """expert_parallel.load_balance_coeff is not set."""
    key = "expert_parallel.load_balance_coeff"
    if given(settings, key) is not None:
        yield Broken(key=key, message="AutoEP cannot balance yet and refuses it; allowed is null")


def contiguous_checkpoints_are_split(settings: Settings, _: World) -> Iterator[Broken]:
    """Contiguous checkpoints are partitioned, and their number is given."""
    section = "activation_checkpointing"
    key = f"{section}.contiguous_memory_optimization"
    if given(settings, key) is not True:
        return
    if given(settings, f"{section}.partition_activations") is not True:
        yield Broken(key=key, message="needs partition_activations true; given without")
    if size(settings, f"{section}.number_checkpoints") is None:
        yield Broken(key=key, message="needs number_checkpoints; given without")


_PIPE = "deepspeed/runtime/pipe/engine.py"
_AUTOTP = "deepspeed/runtime/engine.py"
_SEQUENCE = "deepspeed/runtime/sequence_parallel"
_ULYSSES = f"{_SEQUENCE}/ulysses_sp.py"
_FOLDING = "deepspeed/module_inject/auto_ep_folding.py"
_CHECKPOINTS = "deepspeed/runtime/activation_checkpointing/checkpointing.py"
AXIS_RULES = (
    rule(pipeline_below_stage_2, f"{_PIPE} asserts it at start", enforced=False),
    rule(
        pipeline_divides_ranks,
        "deepspeed/runtime/pipe/module.py raises when it is built",
        enforced=False,
    ),
    rule(stages_have_layers, "our own block, for the script", enforced=False),
    rule(
        autotp_without_pipeline,
        f"{_PIPE} asserts equal data-parallel sizes at start",
        enforced=False,
    ),
    rule(autotp_divides_ranks, "deepspeed/utils/groups.py _init_tp_mesh_device", enforced=False),
    rule(
        autotp_divides_kv_heads,
        "deepspeed/module_inject/tp_shard.py get_shard_size deals the rest out",
        severity="warning",
        enforced=False,
    ),
    rule(autotp_fits_kv_heads, f"{_AUTOTP} only warns", severity="warning", enforced=False),
    rule(autotp_sizes_agree, f"{_AUTOTP} raises at start", enforced=False),
    rule(sequence_parallel_without_autotp, f"{_FOLDING}: mutually exclusive", enforced=False),
    rule(
        sequence_parallel_divides_ranks, f"{_SEQUENCE}/parallel_state_sp.py raises", enforced=False
    ),
    rule(sequence_parallel_divides_heads, f"{_ULYSSES} raises at start", enforced=False),
    rule(
        sequence_parallel_divides_sequence, f"{_ULYSSES} raises at the first batch", enforced=False
    ),
    rule(mesh_fills_ranks, "deepspeed/__init__.py: the mesh of the ranks", enforced=False),
    rule(experts_divide, f"{_FOLDING} raises at start", enforced=False),
    rule(expert_balance_is_not_set, "deepspeed/module_inject/auto_ep_config.py"),
    rule(
        contiguous_checkpoints_are_split,
        f"{_CHECKPOINTS} asserts it when configured",
        enforced=False,
    ),
)

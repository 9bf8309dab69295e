"""Rules of the parallel axes: pipeline, AutoTP, Ulysses, AutoEP; activation checkpointing."""

from planner.formats.deepspeed import keys
from planner.formats.format import World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, as_whole, given

rule = Rules()
_PIPE = "deepspeed/runtime/pipe/engine.py"
_AUTOTP = "deepspeed/runtime/engine.py"
_SEQUENCE = "deepspeed/runtime/sequence_parallel"
_ULYSSES = f"{_SEQUENCE}/ulysses_sp.py"
_FOLDING = "deepspeed/module_inject/auto_ep_folding.py"
_CHECKPOINTS = "deepspeed/runtime/activation_checkpointing/checkpointing.py"


def _whole_decision(world: World, name: str) -> int | None:
    return as_whole(world.decisions.get(name))


@rule(f"{_PIPE} asserts it at start", enforced=False)
def pipeline_below_stage_2(settings: Settings, _: World) -> Said:
    """A pipeline runs under stage 0 or 1."""
    if keys.stages(settings) > 1 and keys.stage(settings) > 1:
        message = f"a pipeline runs under stage 0 or 1; given {keys.stage(settings)}"
        yield keys.STAGE, message


@rule("deepspeed/runtime/pipe/module.py raises when it is built", enforced=False)
def pipeline_divides_ranks(settings: Settings, world: World) -> Said:
    """Pipeline stages (times tensor-parallel ranks) divide the ranks."""
    script = keys.size(settings, keys.SCRIPT_TP) or 1
    ranks = keys.stages(settings) * script
    if keys.stages(settings) > 1 and world.num_gpus % ranks:
        times = f" x {script} tensor-parallel ranks" if script > 1 else ""
        message = (
            f"{keys.stages(settings)} stages{times} must divide the ranks; given {world.num_gpus}"
        )
        yield keys.PP, message


@rule("our own block, for the script", enforced=False)
def stages_have_layers(settings: Settings, world: World) -> Said:
    """training_script.layers_per_stage has a count per stage, and all layers."""
    key = keys.LAYERS
    counts = given(settings, key)
    if not isinstance(counts, list) or any(as_whole(count) is None for count in counts):
        return
    if len(counts) != keys.stages(settings):
        yield key, f"one count per stage is needed: {keys.stages(settings)}; given {len(counts)}"
    layers = _whole_decision(world, "model.num_layers")
    if layers is not None and sum(counts) != layers:
        yield key, f"must add up to the model's {layers} layers; given {sum(counts)}"
    if any(count < 1 for count in counts):
        yield key, f"every stage needs a layer; given {min(counts)}"


@rule(f"{_PIPE} asserts equal data-parallel sizes at start", enforced=False)
def autotp_without_pipeline(settings: Settings, _: World) -> Said:
    """AutoTP does not go with a pipeline."""
    if keys.autotp(settings) > 1 and keys.stages(settings) > 1:
        message = "AutoTP builds groups without stages; layers of a pipeline split themselves"
        yield keys.TP, f"{message}; given {keys.autotp(settings)}, allowed is 1"


@rule("deepspeed/utils/groups.py _init_tp_mesh_device", enforced=False)
def autotp_divides_ranks(settings: Settings, world: World) -> Said:
    """autotp_size divides the ranks."""
    if world.num_gpus % keys.autotp(settings):
        yield keys.TP, f"must divide the ranks; given {keys.autotp(settings)} of {world.num_gpus}"


def _kv_heads(world: World) -> int | None:
    return _whole_decision(world, "model.num_kv_heads") or _whole_decision(world, "model.num_heads")


@rule(
    "deepspeed/module_inject/tp_shard.py get_shard_size deals the rest out",
    severity="warning",
    enforced=False,
)
def autotp_divides_kv_heads(settings: Settings, world: World) -> Said:
    """autotp_size divides the key-value heads, along which AutoTP splits attention."""
    heads, ranks = _kv_heads(world), keys.autotp(settings)
    if heads is not None and ranks <= heads and heads % ranks:
        message = f"ranks get unequal shares of the {heads} key-value heads"
        yield keys.TP, f"{message}; given {ranks}, allowed are divisors of {heads}"


@rule(f"{_AUTOTP} only warns", severity="warning", enforced=False)
def autotp_fits_kv_heads(settings: Settings, world: World) -> Said:
    """autotp_size is at most the number of key-value heads."""
    heads = _kv_heads(world)
    if heads is not None and keys.autotp(settings) > heads:
        message = f"ranks beyond the {heads} key-value heads do no attention"
        yield keys.TP, f"{message}; given {keys.autotp(settings)}, allowed are up to {heads}"


@rule(f"{_AUTOTP} raises at start", enforced=False)
def autotp_sizes_agree(settings: Settings, _: World) -> Said:
    """tensor_parallel.tp.tp_size is autotp_size."""
    for section in ("tp", "tensor_parallel"):
        key = f"tensor_parallel.{section}.tp_size"
        inner = keys.size(settings, key) or 1
        if inner not in (1, keys.autotp(settings)) and keys.autotp(settings) > 1:
            yield key, f"must be autotp_size {keys.autotp(settings)}; given {inner}"


@rule(f"{_FOLDING}: mutually exclusive", enforced=False)
def sequence_parallel_without_autotp(settings: Settings, _: World) -> Said:
    """Ulysses goes with neither AutoTP nor a pipeline."""
    if (keys.size(settings, keys.SP) or 1) > 1 and keys.autotp(settings) * keys.stages(
        settings
    ) > 1:
        yield keys.SP, "Ulysses goes with neither AutoTP nor a pipeline; allowed is 1"


@rule(f"{_SEQUENCE}/parallel_state_sp.py raises", enforced=False)
def sequence_parallel_divides_ranks(settings: Settings, world: World) -> Said:
    """sequence_parallel_size divides the ranks."""
    sequence = keys.size(settings, keys.SP) or 1
    if world.num_gpus % sequence:
        yield keys.SP, f"must divide the ranks; given {sequence} of {world.num_gpus}"


@rule(f"{_ULYSSES} raises at start", enforced=False)
def sequence_parallel_divides_heads(settings: Settings, world: World) -> Said:
    """sequence_parallel_size divides the heads, and the key-value heads or they it."""
    sequence, heads = keys.size(settings, keys.SP) or 1, _whole_decision(world, "model.num_heads")
    shared = _kv_heads(world)
    if heads is not None and heads % sequence:
        yield keys.SP, f"must divide the {heads} heads; given {sequence}"
    elif shared and shared % sequence and sequence % shared:
        message = f"must divide the {shared} key-value heads or be a multiple"
        yield keys.SP, f"{message}; given {sequence}"


@rule(f"{_ULYSSES} raises at the first batch", enforced=False)
def sequence_parallel_divides_sequence(settings: Settings, world: World) -> Said:
    """sequence_parallel_size divides the sequence."""
    sequence, length = keys.size(settings, keys.SP) or 1, _whole_decision(world, "seq_len")
    if length is not None and length % sequence:
        yield keys.SP, f"must divide the {length} tokens of a sequence; given {sequence}"


@rule("deepspeed/__init__.py: the mesh of the ranks", enforced=False)
def mesh_fills_ranks(settings: Settings, world: World) -> Said:
    """data_parallel_size times sequence_parallel_size is the number of ranks."""
    count, sequence = keys.size(settings, keys.REPLICAS), keys.size(settings, keys.SP)
    if count and sequence and count * sequence != world.num_gpus:
        product = f"{count} x {sequence}"
        message = f"{keys.REPLICAS} x {keys.SP} must be {world.num_gpus} ranks; given {product}"
        yield keys.REPLICAS, message


@rule(f"{_FOLDING} raises at start", enforced=False)
def experts_divide(settings: Settings, world: World) -> Said:
    """autoep_size divides the experts and the ranks."""
    ranks = keys.size(settings, keys.EP) or 1
    if given(settings, keys.EP_ON) is not True or ranks == 1:
        return
    experts = _whole_decision(world, "model.num_experts")
    if experts is not None and experts % ranks:
        yield keys.EP, f"must divide the {experts} experts; given {ranks}"
    if world.num_gpus % ranks:
        yield keys.EP, f"must divide the ranks; given {ranks} of {world.num_gpus}"


@rule("deepspeed/module_inject/auto_ep_config.py")
def expert_balance_is_not_set(settings: Settings, _: World) -> Said:
    """expert_parallel.load_balance_coeff is not set."""
    key = "expert_parallel.load_balance_coeff"
    if given(settings, key) is not None:
        yield key, "AutoEP cannot balance yet and refuses it; allowed is null"


@rule(f"{_CHECKPOINTS} asserts it when configured", enforced=False)
def contiguous_checkpoints_are_split(settings: Settings, _: World) -> Said:
    """Contiguous checkpoints are partitioned, and their number is given."""
    section = "activation_checkpointing"
    key = f"{section}.contiguous_memory_optimization"
    if given(settings, key) is not True:
        return
    if given(settings, f"{section}.partition_activations") is not True:
        yield key, "needs partition_activations true; given without"
    if keys.size(settings, f"{section}.number_checkpoints") is None:
        yield key, "needs number_checkpoints; given without"

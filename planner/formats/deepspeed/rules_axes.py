"""Rules of the parallel axes: pipeline, AutoTP, Ulysses, AutoEP; activation checkpointing."""

from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.format import World
from planner.formats.rules import Rules, Violations
from planner.formats.settings import as_whole

rule = Rules(DeepspeedView)
_PIPE = "deepspeed/runtime/pipe/engine.py"
_AUTOTP = "deepspeed/runtime/engine.py"
_SEQUENCE = "deepspeed/runtime/sequence_parallel"
_ULYSSES = f"{_SEQUENCE}/ulysses_sp.py"
_FOLDING = "deepspeed/module_inject/auto_ep_folding.py"
_CHECKPOINTS = "deepspeed/runtime/activation_checkpointing/checkpointing.py"


def _whole_decision(world: World, name: str) -> int | None:
    return as_whole(world.decisions.get(name))


@rule(
    f"{_PIPE} asserts it at start",
    key=keys.STAGE,
    says="a pipeline runs under stage 0 or 1; given {file.stage}",
    enforced=False,
)
def pipeline_below_stage_2(file: DeepspeedView) -> bool:
    """A pipeline runs under stage 0 or 1."""
    return file.stages > 1 and file.stage > 1


@rule("deepspeed/runtime/pipe/module.py raises when it is built", enforced=False)
def pipeline_divides_ranks(file: DeepspeedView) -> Violations:
    """Pipeline stages (times tensor-parallel ranks) divide the ranks."""
    script = keys.size(file.settings, keys.SCRIPT_TP) or 1
    ranks = file.stages * script
    if file.stages > 1 and file.world.num_gpus % ranks:
        times = f" x {script} tensor-parallel ranks" if script > 1 else ""
        message = f"{file.stages} stages{times} must divide the ranks; given {file.world.num_gpus}"
        yield keys.PP, message


@rule("our own block, for the script", enforced=False)
def stages_have_layers(file: DeepspeedView) -> Violations:
    """training_script.layers_per_stage has a count per stage, and all layers."""
    key = keys.LAYERS
    counts = file[key]
    if not isinstance(counts, list) or any(as_whole(count) is None for count in counts):
        return
    if len(counts) != file.stages:
        yield key, f"one count per stage is needed: {file.stages}; given {len(counts)}"
    layers = _whole_decision(file.world, "model.num_layers")
    if layers is not None and sum(counts) != layers:
        yield key, f"must add up to the model's {layers} layers; given {sum(counts)}"
    if any(count < 1 for count in counts):
        yield key, f"every stage needs a layer; given {min(counts)}"


@rule(
    f"{_PIPE} asserts equal data-parallel sizes at start",
    key=keys.TP,
    says=(
        "AutoTP builds groups without stages; layers of a pipeline split themselves; given "
        "{file.autotp}, allowed is 1"
    ),
    enforced=False,
)
def autotp_without_pipeline(file: DeepspeedView) -> bool:
    """AutoTP does not go with a pipeline."""
    return file.autotp > 1 and file.stages > 1


@rule(
    "deepspeed/utils/groups.py _init_tp_mesh_device",
    key=keys.TP,
    says="must divide the ranks; given {file.autotp} of {file.world.num_gpus}",
    enforced=False,
)
def autotp_divides_ranks(file: DeepspeedView) -> bool:
    """autotp_size divides the ranks."""
    return bool(file.world.num_gpus % file.autotp)


def _kv_heads(world: World) -> int | None:
    return _whole_decision(world, "model.num_kv_heads") or _whole_decision(world, "model.num_heads")


@rule(
    "deepspeed/module_inject/tp_shard.py get_shard_size deals the rest out",
    severity="warning",
    enforced=False,
)
def autotp_divides_kv_heads(file: DeepspeedView) -> Violations:
    """autotp_size divides the key-value heads, along which AutoTP splits attention."""
    heads, ranks = _kv_heads(file.world), file.autotp
    if heads is not None and ranks <= heads and heads % ranks:
        message = f"ranks get unequal shares of the {heads} key-value heads"
        yield keys.TP, f"{message}; given {ranks}, allowed are divisors of {heads}"


@rule(f"{_AUTOTP} only warns", severity="warning", enforced=False)
def autotp_fits_kv_heads(file: DeepspeedView) -> Violations:
    """autotp_size is at most the number of key-value heads."""
    heads = _kv_heads(file.world)
    if heads is not None and file.autotp > heads:
        message = f"ranks beyond the {heads} key-value heads do no attention"
        yield keys.TP, f"{message}; given {file.autotp}, allowed are up to {heads}"


@rule(f"{_AUTOTP} raises at start", enforced=False)
def autotp_sizes_agree(file: DeepspeedView) -> Violations:
    """tensor_parallel.tp.tp_size is autotp_size."""
    for section in ("tp", "tensor_parallel"):
        key = f"tensor_parallel.{section}.tp_size"
        inner = keys.size(file.settings, key) or 1
        if inner not in (1, file.autotp) and file.autotp > 1:
            yield key, f"must be autotp_size {file.autotp}; given {inner}"


@rule(
    f"{_FOLDING}: mutually exclusive",
    key=keys.SP,
    says="Ulysses goes with neither AutoTP nor a pipeline; allowed is 1",
    enforced=False,
)
def sequence_parallel_without_autotp(file: DeepspeedView) -> bool:
    """Ulysses goes with neither AutoTP nor a pipeline."""
    return (keys.size(file.settings, keys.SP) or 1) > 1 and file.autotp * keys.stages(
        file.settings
    ) > 1


@rule(f"{_SEQUENCE}/parallel_state_sp.py raises", enforced=False)
def sequence_parallel_divides_ranks(file: DeepspeedView) -> Violations:
    """sequence_parallel_size divides the ranks."""
    sequence = keys.size(file.settings, keys.SP) or 1
    if file.world.num_gpus % sequence:
        yield keys.SP, f"must divide the ranks; given {sequence} of {file.world.num_gpus}"


@rule(f"{_ULYSSES} raises at start", enforced=False)
def sequence_parallel_divides_heads(file: DeepspeedView) -> Violations:
    """sequence_parallel_size divides the heads, and the key-value heads or they it."""
    sequence, heads = (
        keys.size(file.settings, keys.SP) or 1,
        _whole_decision(file.world, "model.num_heads"),
    )
    shared = _kv_heads(file.world)
    if heads is not None and heads % sequence:
        yield keys.SP, f"must divide the {heads} heads; given {sequence}"
    elif shared and shared % sequence and sequence % shared:
        message = f"must divide the {shared} key-value heads or be a multiple"
        yield keys.SP, f"{message}; given {sequence}"


@rule(f"{_ULYSSES} raises at the first batch", enforced=False)
def sequence_parallel_divides_sequence(file: DeepspeedView) -> Violations:
    """sequence_parallel_size divides the sequence."""
    sequence, length = (
        keys.size(file.settings, keys.SP) or 1,
        _whole_decision(file.world, "seq_len"),
    )
    if length is not None and length % sequence:
        yield keys.SP, f"must divide the {length} tokens of a sequence; given {sequence}"


@rule("deepspeed/__init__.py: the mesh of the ranks", enforced=False)
def mesh_fills_ranks(file: DeepspeedView) -> Violations:
    """data_parallel_size times sequence_parallel_size is the number of ranks."""
    count, sequence = keys.size(file.settings, keys.REPLICAS), keys.size(file.settings, keys.SP)
    if count and sequence and count * sequence != file.world.num_gpus:
        product = f"{count} x {sequence}"
        message = (
            f"{keys.REPLICAS} x {keys.SP} must be {file.world.num_gpus} ranks; given {product}"
        )
        yield keys.REPLICAS, message


@rule(f"{_FOLDING} raises at start", enforced=False)
def experts_divide(file: DeepspeedView) -> Violations:
    """autoep_size divides the experts and the ranks."""
    ranks = keys.size(file.settings, keys.EP) or 1
    if file[keys.EP_ON] is not True or ranks == 1:
        return
    experts = _whole_decision(file.world, "model.num_experts")
    if experts is not None and experts % ranks:
        yield keys.EP, f"must divide the {experts} experts; given {ranks}"
    if file.world.num_gpus % ranks:
        yield keys.EP, f"must divide the ranks; given {ranks} of {file.world.num_gpus}"


@rule(
    "deepspeed/module_inject/auto_ep_config.py",
    key="expert_parallel.load_balance_coeff",
    says="AutoEP cannot balance yet and refuses it; allowed is null",
)
def expert_balance_is_not_set(file: DeepspeedView) -> bool:
    """expert_parallel.load_balance_coeff is not set."""
    return file["expert_parallel.load_balance_coeff"] is not None


@rule(f"{_CHECKPOINTS} asserts it when configured", enforced=False)
def contiguous_checkpoints_are_split(file: DeepspeedView) -> Violations:
    """Contiguous checkpoints are partitioned, and their number is given."""
    section = "activation_checkpointing"
    key = f"{section}.contiguous_memory_optimization"
    if file[key] is not True:
        return
    if file[f"{section}.partition_activations"] is not True:
        yield key, "needs partition_activations true; given without"
    if keys.size(file.settings, f"{section}.number_checkpoints") is None:
        yield key, "needs number_checkpoints; given without"

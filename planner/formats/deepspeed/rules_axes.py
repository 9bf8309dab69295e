"""Rules of the parallel axes: pipeline, AutoTP, Ulysses, AutoEP; activation checkpointing."""

from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.rules import Refused, Rules

rule = Rules(DeepspeedView)


rule.unenforced(
    "deepspeed/runtime/pipe/engine.py asserts it at start",
    name="pipeline_below_stage_2",
    holds="A pipeline runs under stage 0 or 1.",
    key=keys.STAGE,
    when=lambda file: file.stages > 1 and file.stage > 1,
    says="a pipeline runs under stage 0 or 1; given {file.stage}",
)
rule.unenforced(
    "deepspeed/runtime/pipe/module.py raises when it is built",
    name="pipeline_divides_ranks",
    holds="Pipeline stages (times tensor-parallel ranks) divide the ranks.",
    key=keys.PP,
    when=lambda file: file.stages > 1 and file.num_gpus % (file.stages * file.script_tp) > 0,
    says="{file.stages} stages x {file.script_tp} tensor-parallel ranks must divide the ranks; "
    "given {file.num_gpus}",
)


@rule.unenforced("our own block, for the script", key=keys.LAYERS)
def stages_have_layers(file: DeepspeedView) -> Refused:
    """training_script.layers_per_stage has a count per stage, and all layers."""
    counts, stages, layers = file[keys.LAYERS], file.stages, file.decided("model.num_layers")
    is_list = isinstance(counts, list)
    if not is_list or any(type(count) is not int for count in counts):
        return {}
    number, total = len(counts), sum(counts)
    least = min(counts, default=1)
    return {
        f"one count per stage is needed: {stages}; given {number}": number != stages,
        f"must add up to the model's {layers} layers; given {total}": layers and total != layers,
        f"every stage needs a layer; given {least}": least < 1,
    }


rule.unenforced(
    "deepspeed/runtime/pipe/engine.py asserts equal data-parallel sizes at start",
    name="autotp_without_pipeline",
    holds="AutoTP does not go with a pipeline.",
    key=keys.TP,
    when=lambda file: file.autotp > 1 and file.stages > 1,
    says="AutoTP builds groups without stages; layers of a pipeline split themselves; given "
    "{file.autotp}, allowed is 1",
)
rule.unenforced(
    "deepspeed/utils/groups.py _init_tp_mesh_device",
    name="autotp_divides_ranks",
    holds="autotp_size divides the ranks.",
    key=keys.TP,
    when=lambda file: file.num_gpus % file.autotp > 0,
    says="must divide the ranks; given {file.autotp} of {file.num_gpus}",
)
rule.unenforced(
    "deepspeed/module_inject/tp_shard.py get_shard_size deals the rest out",
    name="autotp_divides_kv_heads",
    holds="autotp_size divides the key-value heads, along which AutoTP splits attention.",
    key=keys.TP,
    severity="warning",
    when=lambda file: file.autotp <= file.kv_heads and file.kv_heads % file.autotp > 0,
    says="ranks get unequal shares of the {file.kv_heads} key-value heads; given {file.autotp}, "
    "allowed are divisors of {file.kv_heads}",
)
rule.unenforced(
    "deepspeed/runtime/engine.py only warns",
    name="autotp_fits_kv_heads",
    holds="autotp_size is at most the number of key-value heads.",
    key=keys.TP,
    severity="warning",
    when=lambda file: 0 < file.kv_heads < file.autotp,
    says="ranks beyond the {file.kv_heads} key-value heads do no attention; given {file.autotp}, "
    "allowed are up to {file.kv_heads}",
)


@rule.unenforced(
    "deepspeed/runtime/engine.py raises at start",
    says="must be autotp_size {file.autotp}; given {given}",
)
def autotp_sizes_agree(file: DeepspeedView) -> list[str]:
    """tensor_parallel.tp.tp_size is autotp_size."""
    if file.autotp == 1:
        return []
    allowed = (None, 1, file.autotp)
    sizes = ("tensor_parallel.tp.tp_size", "tensor_parallel.tensor_parallel.tp_size")
    return [key for key in sizes if file.size(key) not in allowed]


rule.unenforced(
    "deepspeed/module_inject/auto_ep_folding.py: mutually exclusive",
    name="sequence_parallel_without_autotp",
    holds="Ulysses goes with neither AutoTP nor a pipeline.",
    key=keys.SP,
    when=lambda file: file.sequence > 1 and file.autotp * file.stages > 1,
    says="Ulysses goes with neither AutoTP nor a pipeline; allowed is 1",
)
rule.unenforced(
    "deepspeed/runtime/sequence_parallel/parallel_state_sp.py raises",
    name="sequence_parallel_divides_ranks",
    holds="sequence_parallel_size divides the ranks.",
    key=keys.SP,
    when=lambda file: file.num_gpus % file.sequence > 0,
    says="must divide the ranks; given {file.sequence} of {file.num_gpus}",
)


@rule.unenforced("deepspeed/runtime/sequence_parallel/ulysses_sp.py raises at start", key=keys.SP)
def sequence_parallel_divides_heads(file: DeepspeedView) -> Refused:
    """sequence_parallel_size divides the heads, and the key-value heads or they it."""
    sequence, heads, shared = file.sequence, file.decided("model.num_heads"), file.kv_heads
    is_uneven = shared and shared % sequence and sequence % shared and not heads % sequence
    return {
        f"must divide the {heads} heads; given {sequence}": heads % sequence,
        f"must divide the {shared} key-value heads or be a multiple; given {sequence}": is_uneven,
    }


rule.unenforced(
    "deepspeed/runtime/sequence_parallel/ulysses_sp.py raises at the first batch",
    name="sequence_parallel_divides_sequence",
    holds="sequence_parallel_size divides the sequence.",
    key=keys.SP,
    when=lambda file: file.decided("seq_len") % file.sequence > 0,
    says="must divide the {file.world.decisions[seq_len]} tokens of a sequence; "
    "given {file.sequence}",
)
rule.unenforced(
    "deepspeed/__init__.py: the mesh of the ranks",
    name="mesh_fills_ranks",
    holds="data_parallel_size times sequence_parallel_size is the number of ranks.",
    key=keys.REPLICAS,
    when=lambda file: (
        file.size(keys.REPLICAS) is not None
        and file.size(keys.SP) is not None
        and file.replicas * file.sequence != file.num_gpus
    ),
    says=(
        f"{keys.REPLICAS} x {keys.SP} must be {{file.num_gpus}} ranks; "
        "given {given} x {file.sequence}"
    ),
)


@rule.unenforced(
    "deepspeed/module_inject/auto_ep_folding.py raises at start", key=keys.EP, on=keys.EP_ON
)
def experts_divide(file: DeepspeedView) -> Refused:
    """autoep_size divides the experts and the ranks."""
    ranks, experts = file.autoep, file.decided("model.num_experts")
    return {
        f"must divide the {experts} experts; given {ranks}": experts % ranks,
        f"must divide the ranks; given {ranks} of {file.num_gpus}": file.num_gpus % ranks,
    }


rule(
    "deepspeed/module_inject/auto_ep_config.py",
    name="expert_balance_is_not_set",
    holds="expert_parallel.load_balance_coeff is not set.",
    key="expert_parallel.load_balance_coeff",
    when=lambda file: file["expert_parallel.load_balance_coeff"] is not None,
    says="AutoEP cannot balance yet and refuses it; allowed is null",
)


@rule.unenforced(
    "deepspeed/runtime/activation_checkpointing/checkpointing.py asserts it when configured",
    key="activation_checkpointing.contiguous_memory_optimization",
    on="activation_checkpointing.contiguous_memory_optimization",
)
def contiguous_checkpoints_are_split(file: DeepspeedView) -> Refused:
    """Contiguous checkpoints are partitioned, and their number is given."""
    is_split = file["activation_checkpointing.partition_activations"] is True
    number = file.size("activation_checkpointing.number_checkpoints")
    return {
        "needs partition_activations true; given without": not is_split,
        "needs number_checkpoints; given without": number is None,
    }

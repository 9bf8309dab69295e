"""Rules of ZeRO, with offload and ZeRO++, and of the parallel axes and checkpoints.

AutoTP, Ulysses and AutoEP split layers, sequences and experts.
"""

from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.settings import Refused, Rules, Violations, as_number

rule = Rules(DeepspeedView)
_CONFIG = "deepspeed/runtime/zero/config.py"
_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_CHECKPOINTS = "activation_checkpointing"
_NORM = f"{keys.ZERO}.compute_grad_norm"
_SCATTER = f"{keys.ZERO}.reduce_scatter"


@rule("deepspeed/runtime/config_utils.py")
def one_name_for_offload(file: DeepspeedView) -> Violations:
    """An old offload switch does not stand beside the section that replaced it."""
    for key, section in keys.given_twice(file.settings).items():
        yield key, f"stands beside {section}; allowed is one of them"


rule.unenforced(
    "deepspeed/runtime/zenflow",
    name="zenflow_is_not_modelled",
    holds="The section zenflow is not given.",
    key=keys.ZENFLOW,
    severity="note",
    when=lambda file: file[keys.ZENFLOW] is not None,
    says="ZenFlow is not modelled; priced is a step that waits for the host",
)
keys.add_leaf_modules(rule)
rule(
    _CONFIG,
    name="partial_offload_needs_stage_3",
    holds="offload_optimizer.ratio below 1 needs stage 3.",
    key=keys.RATIO,
    when=lambda file: file.ratio < 1 and file.stage != 3,
    says="a ratio below 1 needs stage 3; given {file.ratio:g} with stage {file.stage}",
)


rule.unenforced(
    f"{_STAGE_3} asserts it at start",
    name="partial_offload_needs_adam",
    holds="offload_optimizer.ratio below 1 needs DeepSpeed's own Adam.",
    key=keys.RATIO,
    when=lambda file: (
        file.ratio < 1
        and file.stage == 3
        and file.offloads
        and (file.optimizer not in ("adam", "adamw", "") or file[keys.TORCH_ADAM] is True)
    ),
    says=f"a ratio below 1 needs DeepSpeed's own Adam on the host; given {{file[{keys.TYPE}]}}",
)
rule.unenforced(
    "deepspeed/runtime/zero/offload_config.py; nothing tests it",
    name="optimizer_offload_needs_sharding",
    holds="offload_optimizer needs stage 1, 2 or 3.",
    key=f"{keys.ZERO}.offload_optimizer",
    when=lambda file: file.offloads and file.stage == 0,
    says="stage 0 ignores it; given {file.states_on}, allowed with stages 1, 2 and 3",
)
rule.unenforced(
    "deepspeed/runtime/zero/offload_config.py; nothing tests it",
    name="parameter_offload_needs_stage_3",
    holds="offload_param needs stage 3.",
    key=f"{keys.ZERO}.offload_param",
    when=lambda file: file.weights_on != "none" and file.stage != 3,
    says="ignored below stage 3; given {file.weights_on} with stage {file.stage}",
)
rule.unenforced(
    "deepspeed/runtime/zero/stage_1_and_2.py takes any device for the host",
    name="nvme_needs_stage_3",
    holds="Optimizer states go to NVMe under stage 3 only.",
    key=f"{keys.ZERO}.offload_optimizer.device",
    when=lambda file: file.states_on == "nvme" and file.stage in (1, 2),
    says="below stage 3 the states go to the host; given nvme, allowed are cpu and none",
)


rule.unenforced(
    "deepspeed/runtime/zero/partition_parameters.py asserts it at start",
    name="nvme_has_a_path",
    holds="Offload to NVMe names the folder of the drives.",
    when=lambda file: [
        path
        for section in keys.OLD_SWITCHES
        if file.device(section) == "nvme" and not file[path := f"{keys.ZERO}.{section}.nvme_path"]
    ],
    says="device nvme needs the folder of the drives; given none",
)


@rule.unenforced("deepspeed/runtime/base_optimizer.py asserts it", key=keys.MASTER)
def bf16_master_offload_is_consistent(file: DeepspeedView) -> Refused:
    """bf16 master weights need bf16 states, or the host's Adam."""
    if file[keys.MASTER] is not True or file.stage == 0:
        return {}
    has_states = file[keys.STATES] is True
    is_torchs = file[keys.TORCH_ADAM] is True
    return {
        "needs bf16_optimizer_states or offload_optimizer; given neither": (
            not has_states and not file.offloads
        ),
        "offloaded, it needs DeepSpeed's own Adam; given torch_adam": file.offloads and is_torchs,
    }


rule(
    _CONFIG,
    name="norm_left_out_below_stage_3",
    holds="compute_grad_norm false needs stage 1 or 2.",
    key=_NORM,
    when=lambda file: file[_NORM] is False and file.stage not in (1, 2),
    says="false needs stage 1 or 2; given stage {file.stage}",
)


rule.unenforced(
    "deepspeed/runtime/zero/stage_1_and_2.py raises at start",
    name="norm_left_out_without_offload",
    holds="compute_grad_norm false does not go with offload_optimizer.",
    key=_NORM,
    when=lambda file: file[_NORM] is False and file.offloads and file.stage in (1, 2),
    says="false does not go with offload_optimizer; allowed is true",
)
rule.unenforced(
    "deepspeed/runtime/engine.py raises at start",
    name="old_stage_1_is_gone",
    holds="legacy_stage1 is off.",
    key=f"{keys.ZERO}.legacy_stage1",
    when=lambda file: file[f"{keys.ZERO}.legacy_stage1"] is True and file.stage > 0,
    says="the engine refuses it since 0.5.9; allowed is false",
)


@rule.unenforced(f"{_STAGE_3} asserts it at start")
def scattered_gradients_scale_after(file: DeepspeedView) -> Violations:
    """Under stage 3 scattered gradients are neither prescaled nor predivided."""
    if file.stage != 3 or file[_SCATTER] is False:
        return
    factor = as_number(file["gradient_predivide_factor"])
    if factor not in (None, 1):
        yield (
            "gradient_predivide_factor",
            f"stage 3 scatters gradients undivided; given {factor:g}, allowed is 1",
        )
    if file["prescale_gradients"] is True:
        yield "prescale_gradients", "not there under stage 3; allowed is false"


rule.unenforced(
    f"{_STAGE_3} raises at start",
    name="muon_gathers_gradients",
    holds="Muon under stage 3 runs with reduce_scatter false.",
    key=_SCATTER,
    when=lambda file: file.optimizer == "muon" and file.stage == 3 and file[_SCATTER] is not False,
    says="Muon under stage 3 needs whole gradients; allowed is false",
)
rule.unenforced(
    f"{_CONFIG}; nothing tests it",
    name="secondary_copy_needs_stage_3",
    holds="zero_hpz_partition_size needs stage 3.",
    key=keys.HPZ,
    when=lambda file: file.secondary > 1 and file.stage != 3,
    says="ignored below stage 3; given stage {file.stage}",
)


rule.unenforced(
    "deepspeed/utils/groups.py _create_zero_param_parallel_group asserts it at start",
    name="secondary_copy_divides_ranks",
    holds="zero_hpz_partition_size divides the ranks.",
    key=keys.HPZ,
    when=lambda file: file.stage == 3 and 0 < file.num_gpus % file.secondary < file.num_gpus,
    says="must divide the ranks; given {file.secondary} of {file.num_gpus}",
)
rule.unenforced(
    (
        "deepspeed/utils/groups.py _create_zero_param_parallel_group numbers ranks without regard "
        "to AutoTP"
    ),
    name="secondary_copy_without_autotp",
    holds="zero_hpz_partition_size does not go with AutoTP.",
    key=keys.HPZ,
    when=lambda file: file.secondary > 1 and file.stage == 3 and file.autotp > 1,
    says="its groups of {file.secondary} neighbours would mix shards of different layers' parts; "
    "allowed with autotp_size 1; given {file.autotp}",
)
rule.unenforced(
    f"{_STAGE_3}; nothing tests it",
    name="quantised_transfers_need_stage_3",
    holds="Quantised weights and gradients of ZeRO++ need stage 3.",
    severity="warning",
    when=lambda file: [
        key
        for key in (f"{keys.ZERO}.zero_quantized_weights", f"{keys.ZERO}.zero_quantized_gradients")
        if file[key] is True and file.stage != 3
    ],
    says="ignored below stage 3; given {file.stage}",
)


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


rule.unenforced(
    "deepspeed/runtime/engine.py raises at start",
    name="autotp_sizes_agree",
    holds="tensor_parallel.tp.tp_size is autotp_size.",
    when=lambda file: [
        key
        for key in keys.TP_SIZES
        if file.autotp > 1 and file.size(key) not in (None, 1, file.autotp)
    ],
    says="must be autotp_size {file.autotp}; given {given}",
)


@rule.unenforced("deepspeed/runtime/engine.py (0.19.8) reads none of them", severity="warning")
def sizes_take_effect(file: DeepspeedView) -> Violations:
    """A size is one that the engine acts on: autotp_size, autoep_size of enabled experts."""
    for key in keys.TP_SIZES:
        if file.autotp == 1 and (file.size(key) or 1) > 1:
            yield key, f"without effect in 0.19.8: {keys.TP} splits layers; given {file[key]}"
    if file.autoep > 1 and file[keys.EP_ON] is not True:
        yield keys.EP, f"without effect in 0.19.8 where {keys.EP_ON} is not true"


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


rule.unenforced(
    "deepspeed/module_inject/auto_ep_folding.py raises at start",
    name="experts_divide",
    holds="autoep_size divides the experts and the ranks.",
    key=keys.EP,
    on=keys.EP_ON,
    when=lambda file: {
        f"must divide the {number} {what}; given {file.autoep}": number % file.autoep
        for what, number in (
            ("experts", file.decided("model.num_experts")),
            ("ranks", file.num_gpus),
        )
    },
)
rule(
    "deepspeed/module_inject/auto_ep_config.py",
    name="expert_balance_is_not_set",
    holds="expert_parallel.load_balance_coeff is not set.",
    key="expert_parallel.load_balance_coeff",
    when=lambda file: file["expert_parallel.load_balance_coeff"] is not None,
    says="AutoEP cannot balance yet and refuses it; allowed is null",
)


rule.unenforced(
    "deepspeed/runtime/activation_checkpointing/checkpointing.py asserts it when configured",
    name="contiguous_checkpoints_are_split",
    holds="Contiguous checkpoints are partitioned, and their number is given.",
    key=f"{_CHECKPOINTS}.contiguous_memory_optimization",
    on=f"{_CHECKPOINTS}.contiguous_memory_optimization",
    when=lambda file: {
        "needs partition_activations true; given without": (
            file[f"{_CHECKPOINTS}.partition_activations"] is not True
        ),
        "needs number_checkpoints; given without": (
            file.size(f"{_CHECKPOINTS}.number_checkpoints") is None
        ),
    },
)

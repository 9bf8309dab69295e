"""Rules of Accelerate's file: the top level, the mesh, ``fsdp_config`` and ``deepspeed_config``."""

from math import prod

from planner.formats.accelerate import keys
from planner.formats.accelerate.keys import AccelerateView, of_another_model
from planner.formats.settings import Refused, Rules, Violations, as_flag, as_whole, one_of

CONFIG_ARGS = "accelerate/commands/config/config_args.py"
LAUNCH = "accelerate/commands/launch.py"
LAUNCH_ENV = "accelerate/utils/launch.py"
MESH = "accelerate/parallelism_config.py"
PLUGIN = "accelerate/utils/dataclasses.py FullyShardedDataParallelPlugin"
OF_DEEPSPEED = (
    *(keys.STEPS, "deepspeed_config.gradient_clipping", keys.STAGE),
    *(keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE, "deepspeed_config.offload_param_nvme_path"),
    "deepspeed_config.offload_optimizer_nvme_path",
    *("deepspeed_config.zero3_save_16bit_model", keys.PRECISION),
)
SYNC, LOADING = f"{keys.FSDP}sync_module_states", f"{keys.FSDP}cpu_ram_efficient_loading"
WRAPPED = f"{keys.FSDP}transformer_layer_cls_to_wrap"
ATTENTIONS = ("flash_attention_2", "flash_attention_3", "sdpa")
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
DEVICES = ("none", "cpu", "nvme")
STATE_DICTS = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")


rule = Rules(AccelerateView)


def is_number_in_quotes(value: object) -> bool:
    """Return True if a value is a text that says a whole number."""
    return isinstance(value, str) and as_whole(value) is not None


rule(
    CONFIG_ARGS,
    name="distributed_type_given",
    holds="The file says how processes work together.",
    key=keys.TYPE,
    when=lambda file: keys.TYPE not in file.settings,
    says="is missing; FSDP, DEEPSPEED or MULTI_GPU",
)


@rule(CONFIG_ARGS, key=keys.TYPE)
def distributed_type_known(file: AccelerateView) -> Refused:
    """The type is one Accelerate has."""
    given = file[keys.TYPE]
    allowed = keys.schema()["$defs"]["distributed_types"]["enum"]
    is_given = keys.TYPE in file.settings and not isinstance(given, bool)
    return {f"given {given!r}; {one_of(allowed)}": is_given and given not in allowed}


rule.unenforced(
    f"{CONFIG_ARGS}: false is no type, and a single process starts",
    name="no_is_quoted",
    holds="YAML reads a bare NO as false, which is none of the types.",
    key=keys.TYPE,
    severity="warning",
    when=lambda file: isinstance(file[keys.TYPE], bool),
    says="reads as {given}; write 'NO' in quotes",
)
rule.unenforced(
    f"{LAUNCH} runs simple_launcher",
    name="no_starts_one_process",
    holds="NO starts a single process, however many the file asks for.",
    key=keys.PROCESSES,
    severity="warning",
    when=lambda file: file.kind == "NO" and file.processes > 1,
    says="given {given} beside distributed_type NO, which starts 1; MULTI_GPU, or 1",
)


@rule(LAUNCH_ENV, key=keys.PRECISION)
def mixed_precision_known(file: AccelerateView) -> Refused:
    """The precision is one Accelerate has; a bare ``no`` is YAML's false."""
    given, allowed = file[keys.PRECISION], ("no", "fp16", "bf16", "fp8")
    hint = "; write 'no' in quotes" if given is False else ""
    is_unknown = given is not None and str(given).lower() not in allowed
    return {f"given {given!r}; {one_of(allowed)}{hint}": is_unknown}


rule(
    LAUNCH,
    name="num_processes_given",
    holds="The launcher needs a number of processes, from the file or from its command line.",
    key=keys.PROCESSES,
    severity="warning",
    when=lambda file: (
        file.processes == -1 and (file[keys.TYPE] != "NO" or keys.PROCESSES in file.settings)
    ),
    says="is missing or -1: in the file, or as --num_processes of accelerate launch",
)
rule(
    LAUNCH_ENV,
    name="num_machines_is_a_number",
    holds="The launcher compares the number of nodes with 1, as it stands in the file.",
    key=keys.MACHINES,
    when=lambda file: (
        keys.MACHINES in file.settings
        and (file[keys.MACHINES] is None or is_number_in_quotes(file[keys.MACHINES]))
    ),
    says="given {given!r}; a whole number without quotes",
)
rule(
    f"{LAUNCH_ENV}: is_port_in_use",
    name="main_process_port_is_a_number",
    holds="Starts of several processes look whether the port is free, which takes no text.",
    key=keys.PORT,
    when=lambda file: file.kind != "NO" and is_number_in_quotes(file[keys.PORT]),
    says="given {given!r}; a whole number without quotes",
)
rule.unenforced(
    f"{LAUNCH_ENV}: num_processes // num_machines",
    name="num_machines_divides",
    holds="Every node starts num_processes // num_machines; the rest is dropped.",
    key=keys.MACHINES,
    when=lambda file: (
        file.processes > 0 and file.processes % max(1, file.whole(keys.MACHINES)) != 0
    ),
    says="given {given} for {file.processes} processes; a divisor of {file.processes}",
)


rule(
    LAUNCH,
    name="several_gpu_ids",
    holds="Several processes on one node need several devices.",
    key="gpu_ids",
    when=lambda file: (
        file.kind == "MULTI_GPU"
        and file.whole(keys.MACHINES) <= 1
        and not any(each in file.word("gpu_ids", "all") for each in (",", "all"))
    ),
    says="given {given!r}; 'all', or two or more separated by commas",
)


rule(
    MESH,
    name="sizes_are_positive",
    holds="No size of the mesh is below 1.",
    when=lambda file: [keys.size_key(name) for name, size in file.sizes.items() if size < 1],
    says="given {given}; 1 or more",
)


rule(
    MESH,
    name="cp_backend_known",
    holds="Context parallelism is PyTorch's.",
    key=f"{keys.MESH}cp_backend",
    when=lambda file: file.has_mesh and file.word(f"{keys.MESH}cp_backend", "torch") != "torch",
    says="given {given!r}; allowed are torch",
)


rule(
    MESH,
    name="sp_backend_known",
    holds="Ulysses sequence parallelism is DeepSpeed's.",
    key=f"{keys.MESH}sp_backend",
    when=lambda file: (
        file.has_mesh and file.word(f"{keys.MESH}sp_backend", "deepspeed") != "deepspeed"
    ),
    says="given {given!r}; allowed are deepspeed",
)


rule(
    "accelerate/utils/dataclasses.py TorchContextParallelConfig",
    name="cp_comm_strategy_known",
    holds="Keys are gathered, or pass round a ring.",
    key=f"{keys.MESH}cp_comm_strategy",
    when=lambda file: (
        file.sizes["cp"] > 1
        and file.word(f"{keys.MESH}cp_comm_strategy", "allgather") not in ("allgather", "alltoall")
    ),
    says="given {given!r}; allowed are allgather, alltoall",
)


rule.unenforced(
    "accelerate/utils/launch.py passes None on, which hides that the length is missing",
    name="sp_length_given",
    holds="Ulysses with a fixed length needs it.",
    key=f"{keys.MESH}sp_seq_length",
    when=lambda file: (
        file.sizes["sp"] > 1
        and not file.flag(f"{keys.MESH}sp_seq_length_is_variable", default=True)
        and not file.word(f"{keys.MESH}sp_seq_length")
    ),
    says="is missing; tokens per sequence, as it does not vary",
)


@rule(
    "accelerate/utils/dataclasses.py DeepSpeedSequenceParallelConfig",
    key=f"{keys.MESH}sp_attn_implementation",
    says=f"given {{given!r}}; {one_of(ATTENTIONS)}",
)
def sp_attention_known(file: AccelerateView) -> bool:
    """Ulysses runs with fused attention only."""
    given = file.word(f"{keys.MESH}sp_attn_implementation", "None")
    is_hub = "/" in given and "flash-attn" in given
    return file.sizes["sp"] > 1 and given not in ("None", *ATTENTIONS) and not is_hub


rule(
    MESH,
    name="cp_or_sp",
    holds="A sequence is split in one way only.",
    key=keys.size_key("cp"),
    when=lambda file: file.sizes["cp"] > 1 and file.sizes["sp"] > 1,
    says="given cp {file.sizes[cp]} and sp {file.sizes[sp]}; one of them is 1",
)


rule(
    MESH,
    name="tp_and_cp_need_shards",
    holds="Plain replicas do not go with tensor or context parallelism.",
    key=keys.size_key("dp_shard"),
    when=lambda file: (
        max(file.sizes["tp"], file.sizes["cp"]) > 1
        and file.sizes["dp_replicate"] > 1
        and file.sizes["dp_shard"] == 1
    ),
    says="given tp {file.sizes[tp]}, cp {file.sizes[cp]}, dp_replicate {file.sizes[dp_replicate]}, "
    "dp_shard 1; dp_shard above 1, or dp_replicate 1",
)


@rule(MESH, key=keys.size_key("dp_shard"))
def sizes_fill_processes(file: AccelerateView) -> Refused:
    """The sizes of the mesh multiply to the number of processes."""
    sizes, processes = file.sizes, file.processes
    total = prod(max(size, 0) for size in sizes.values())
    given = " x ".join(f"{name} {size}" for name, size in sizes.items())
    is_free = total in (0, 1) or sizes["sp"] > 1 or processes < 1
    message = f"{given} = {total}; num_processes is {processes}"
    return {message: file.has_mesh and not is_free and total != processes}


rule(
    MESH,
    name="fsdp2_has_ranks_to_shard_over",
    holds="FSDP2 shards over dp_shard x cp.",
    key=keys.size_key("dp_shard"),
    when=lambda file: (
        file.is_fsdp2
        and file.has_mesh
        and file.sizes["dp_shard"] == file.sizes["cp"] == 1
        and (file.processes > 1 or prod(file.sizes.values()) > 1)
    ),
    says="given dp_shard 1 and cp 1; one of them above 1, or no FSDP",
)


@rule.unenforced(
    "transformers/integrations/tensor_parallel.py splits rows; attention cannot view the rest",
    key=keys.size_key("tp"),
)
def tp_divides_heads(file: AccelerateView) -> Refused:
    """Tensor parallelism splits query heads and key and value heads evenly."""
    tp, known = file.sizes["tp"], file.world.decisions
    heads = {
        "heads": known.get("model.num_heads"),
        "key and value heads": known.get("model.num_kv_heads"),
    }
    return {
        f"given tp {tp}; a divisor of {number} {what}": tp > 1 and number % tp
        for what, number in heads.items()
        if isinstance(number, int)
    }


rule(
    "accelerate/state.py",
    name="cp_needs_fsdp2",
    holds="Context parallelism runs under FSDP2 only.",
    key=keys.size_key("cp"),
    when=lambda file: (
        file.sizes["cp"] > 1 and file.kind in ("MULTI_GPU", "FSDP") and not file.is_fsdp2
    ),
    says="given cp {given} under {file[distributed_type]}; FSDP with fsdp_version 2",
)
rule.unenforced(
    f"{LAUNCH} checks it for flags, before the file is read",
    name="mesh_needs_fsdp2",
    holds="A mesh does not go with FSDP1; only the launcher's flags are checked for it.",
    key=keys.VERSION,
    when=lambda file: (
        file.is_fsdp and file.whole(keys.VERSION) == 1 and file.has_mesh and file.sizes["cp"] == 1
    ),
    says="parallelism_config beside FSDP1, which does not use it; fsdp_version 2",
)
rule.unenforced(
    "accelerate/accelerator.py _prepare_deepspeed",
    name="sp_needs_deepspeed",
    holds="Ulysses is started by DeepSpeed's engine; elsewhere the size splits nothing.",
    key=keys.size_key("sp"),
    when=lambda file: file.sizes["sp"] > 1 and file.sizes["cp"] == 1 and file.kind != "DEEPSPEED",
    says="given sp {given} under {file[distributed_type]}; distributed_type DEEPSPEED, or cp",
)
rule.unenforced(
    f"{CONFIG_ARGS}: use_cpu, read by the launcher for thread counts only",
    name="cpu_is_not_asked_for",
    holds="use_cpu starts plain processes on the CPU whatever the type says.",
    key="use_cpu",
    severity="warning",
    when=lambda file: (
        file.flag("use_cpu") and file[keys.TYPE] in ("FSDP", "DEEPSPEED", "MULTI_GPU")
    ),
    says="given true beside accelerators; false",
)


rule(
    PLUGIN,
    name="fsdp_version_known",
    holds="FSDP is 1 or 2.",
    key=keys.VERSION,
    when=lambda file: file.is_fsdp and file.whole(keys.VERSION) not in (1, 2),
    says="given {given}; 2, or the deprecated 1",
)


rule(
    PLUGIN,
    name="reshard_is_a_flag",
    holds="FSDP2 frees weights after forward or keeps them; the names of strategies are FSDP1's.",
    key=keys.RESHARD,
    when=lambda file: (
        file.is_fsdp2 and keys.RESHARD in file.settings and as_flag(file[keys.RESHARD]) is None
    ),
    says="given {given!r}; true (as FULL_SHARD) or false (as SHARD_GRAD_OP)",
)


@rule(PLUGIN, key=f"{keys.FSDP}state_dict_type")
def state_dict_type_known(file: AccelerateView) -> Refused:
    """Checkpoints are whole or sharded; FSDP1 also knows local ones."""
    given = file.word(f"{keys.FSDP}state_dict_type", STATE_DICTS[0]).upper()
    allowed = STATE_DICTS if file.is_fsdp2 else (*STATE_DICTS, "LOCAL_STATE_DICT")
    is_known = given in allowed or given.isdigit()
    return {f"given {given}; {one_of(allowed)}": file.is_fsdp and not is_known}


rule(
    PLUGIN,
    name="wrap_policy_known",
    holds="The policy is one Accelerate has.",
    key=keys.WRAP,
    when=lambda file: file.is_fsdp and file.word(keys.WRAP, POLICIES[0]).upper() not in POLICIES,
    says=f"given {{given}}; {one_of(POLICIES)}",
)


rule.unenforced(
    f"{PLUGIN}: the default",
    name="blocks_are_wrapped",
    holds="The model is one unit, all of whose weights are gathered at once, without a policy.",
    key=keys.WRAP,
    severity="warning",
    when=lambda file: file.is_fsdp and file.word(keys.WRAP, "NO_WRAP").upper() == "NO_WRAP",
    says="is missing or NO_WRAP; TRANSFORMER_BASED_WRAP",
)


@rule(PLUGIN, key=f"{keys.FSDP}activation_checkpointing_offload")
def checkpoint_offload_needs_checkpoints(file: AccelerateView) -> Refused:
    """Checkpoint offload moves the input of recomputed blocks to the host, under FSDP2."""
    is_on = file.is_fsdp and file.flag(f"{keys.FSDP}activation_checkpointing_offload")
    recomputes = file.flag(keys.CHECKPOINTING)
    return {
        "given true; fsdp_activation_checkpointing true as well": is_on and not recomputes,
        "given true; fsdp_version 2 as well": is_on and recomputes and not file.is_fsdp2,
    }


rule(
    LAUNCH_ENV,
    name="efficient_loading_needs_sync",
    holds="Weights that one process loads must be sent to the others.",
    key=SYNC,
    when=lambda file: (
        file.is_fsdp
        and (LOADING not in file.settings or bool(file[LOADING]))
        and SYNC in file.settings
        and not file[SYNC]
    ),
    says="given false; true, or fsdp_cpu_ram_efficient_loading false",
)


@rule.unenforced(f"{PLUGIN} leaves them out", severity="note")
def nothing_obsolete(file: AccelerateView) -> Violations:
    """FSDP2 does not look at keys of FSDP1."""
    for name in ("sharding_strategy", "backward_prefetch", "forward_prefetch", "use_orig_params"):
        if file.is_fsdp2 and keys.FSDP + name in file.settings:
            instead = "fsdp_reshard_after_forward" if name == "sharding_strategy" else "nothing"
            yield keys.FSDP + name, f"has no effect under FSDP2; {instead} instead"


rule(
    "accelerate/utils/dataclasses.py DeepSpeedPlugin",
    name="config_file_stands_alone",
    holds="Keys that DeepSpeed's own file decides are not repeated in this one.",
    when=lambda file: [
        key
        for key in OF_DEEPSPEED
        if file.kind == "DEEPSPEED" and keys.FILE in file.settings and file[key] is not None
    ],
    says="stands beside deepspeed_config_file; set it there only",
)
rule.unenforced(
    "deepspeed/runtime/zero/config.py, when the engine is made",
    name="zero_stage_known",
    holds="ZeRO has stages 0 to 3.",
    key=keys.STAGE,
    when=lambda file: file.kind == "DEEPSPEED" and file.stage not in range(4),
    says="given {given}; 0, 1, 2 or 3",
)
rule.unenforced(
    "deepspeed/runtime/zero/offload_config.py, when the engine is made",
    name="offload_device_known",
    holds="States go to the host or to NVMe.",
    when=lambda file: [
        key for key in (keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE) if file.device(key) not in DEVICES
    ],
    says=f"given {{given}}; {one_of(DEVICES)}",
)
rule.unenforced(
    "deepspeed/runtime/zero/config.py: nothing is offloaded",
    name="parameter_offload_needs_stage_3",
    holds="Parameters that are not split do not leave the accelerator.",
    key=keys.PARAM_DEVICE,
    severity="warning",
    when=lambda file: file.device(keys.PARAM_DEVICE) != "none" and file.stage < 3,
    says="given {given} under zero_stage {file.stage}, which moves none; zero_stage 3, or none",
)
rule.unenforced(
    "deepspeed/runtime/engine.py: nothing is offloaded",
    name="optimizer_offload_needs_sharding",
    holds="States that are not split do not leave the accelerator.",
    key=keys.OPTIMIZER_DEVICE,
    when=lambda file: file.device(keys.OPTIMIZER_DEVICE) != "none" and file.stage == 0,
    says="given {given} under zero_stage 0; zero_stage 1 or more, or none",
)


@rule.unenforced(f"{LAUNCH_ENV} prepare_deepspeed_cmd_env")
def nvme_path_in_environment(file: AccelerateView) -> Violations:
    """``accelerate launch`` passes no NVMe path of the file on; DeepSpeed gets the word none."""
    for name, key in (("OPTIMIZER", keys.OPTIMIZER_DEVICE), ("PARAM", keys.PARAM_DEVICE)):
        variable = keys.NVME_PATH.format(name)
        if file.device(key) == "nvme" and variable not in file.world.environment:
            yield key, f"given nvme; set {variable} for every process"


rule.unenforced(
    f"{PLUGIN} set_auto_wrap_policy raises",
    name="wrapped_class_is_the_models",
    holds="FSDP wraps layers by the name of their class.",
    key=WRAPPED,
    when=lambda file: of_another_model(file, WRAPPED) if file.is_fsdp else {},
)

"""Rules of Accelerate's file: the top level and the mesh; those of sections stand beside."""

from planner.formats.accelerate import keys, rules_sections
from planner.formats.format import FormatRule
from planner.formats.rules import ConfigView, Rules, Violations
from planner.formats.settings import Settings, as_flag, as_whole, one_of, whole, word

rule = Rules(ConfigView)
PRECISIONS = ("no", "fp16", "bf16", "fp8")
CONFIG_ARGS = "accelerate/commands/config/config_args.py"
LAUNCH = "accelerate/commands/launch.py"
LAUNCH_ENV = "accelerate/utils/launch.py"
MESH = "accelerate/parallelism_config.py"
STATE = "accelerate/state.py"


@rule(CONFIG_ARGS, key="distributed_type", says="is missing; FSDP, DEEPSPEED or MULTI_GPU")
def distributed_type_given(file: ConfigView) -> bool:
    """The file says how processes work together."""
    return "distributed_type" not in file.settings


@rule(CONFIG_ARGS)
def distributed_type_known(file: ConfigView) -> Violations:
    """The type is one Accelerate has."""
    if "distributed_type" in file.settings:
        given = file["distributed_type"]
        allowed = keys.schema()["$defs"]["distributed_types"]["enum"]
        if not isinstance(given, bool) and given not in allowed:
            yield "distributed_type", f"given {given!r}; {one_of(allowed)}"


@rule(
    f"{CONFIG_ARGS}: false is no type, and a single process starts",
    key="distributed_type",
    says="reads as {given}; write 'NO' in quotes",
    enforced=False,
    severity="warning",
)
def no_is_quoted(file: ConfigView) -> bool:
    """YAML reads a bare NO as false, which is none of the types."""
    return "distributed_type" in file.settings and isinstance(file["distributed_type"], bool)


@rule(f"{LAUNCH} runs simple_launcher", enforced=False, severity="warning")
def no_starts_one_process(file: ConfigView) -> Violations:
    """NO starts a single process, however many the file asks for."""
    processes = file.whole("num_processes", 1)
    if file.word("distributed_type", "") in ("NO", "False") and processes > 1:
        message = f"given {processes} beside distributed_type NO, which starts 1; MULTI_GPU, or 1"
        yield "num_processes", message


@rule(LAUNCH_ENV)
def mixed_precision_known(file: ConfigView) -> Violations:
    """The precision is one Accelerate has; a bare ``no`` is YAML's false."""
    if "mixed_precision" in file.settings:
        given = file["mixed_precision"]
        if given is not None and str(given).lower() not in PRECISIONS:
            hint = "; write 'no' in quotes" if given is False else ""
            message = f"given {given!r}; {one_of(PRECISIONS)}{hint}"
            yield "mixed_precision", message


@rule(
    LAUNCH,
    key="num_processes",
    says="is missing or -1: in the file, or as --num_processes of accelerate launch",
    severity="warning",
)
def num_processes_given(file: ConfigView) -> bool:
    """Without a number of processes the launcher needs one on its command line."""
    alone = file.word("distributed_type", "") == "NO" and "num_processes" not in file.settings
    return not alone and file.whole("num_processes", -1) == -1


@rule(LAUNCH_ENV)
def num_machines_is_a_number(file: ConfigView) -> Violations:
    """The launcher compares the number of nodes with 1, as it stands in the file."""
    if keys.MACHINES in file.settings:
        given = file[keys.MACHINES]
        if given is None or (isinstance(given, str) and as_whole(given) is not None):
            yield keys.MACHINES, f"given {given!r}; a whole number without quotes"


@rule(
    f"{LAUNCH_ENV}: is_port_in_use",
    key=keys.PORT,
    says="given {given!r}; a whole number without quotes",
)
def main_process_port_is_a_number(file: ConfigView) -> bool:
    """Starts of several processes look whether the port is free, which takes no text."""
    given = file[keys.PORT]
    starts_several = file.word("distributed_type", "") not in ("NO", "False")
    return bool(starts_several and isinstance(given, str) and as_whole(given) is not None)


@rule(f"{LAUNCH_ENV}: num_processes // num_machines", enforced=False)
def num_machines_divides(file: ConfigView) -> Violations:
    """Every node starts num_processes // num_machines; the rest is dropped."""
    processes, machines = file.whole("num_processes", -1), file.whole("num_machines", 1)
    if processes > 0 and machines > 1 and processes % machines:
        message = f"given {machines} for {processes} processes; a divisor of {processes}"
        yield "num_machines", message


@rule(LAUNCH)
def several_gpu_ids(file: ConfigView) -> Violations:
    """Several processes on one node need several devices."""
    ids = file.word("gpu_ids", "all")
    is_multi = file.word("distributed_type", "").startswith("MULTI_")
    is_one_node = file.whole("num_machines", 1) <= 1
    if is_multi and is_one_node and ids != "all" and len(ids.split(",")) < 2:
        message = f"given {ids!r}; 'all', or two or more separated by commas"
        yield "gpu_ids", message


@rule(MESH)
def sizes_are_positive(file: ConfigView) -> Violations:
    """No size of the mesh is below 1."""
    for name, size in keys.sizes(file.settings).items():
        if size < 1:
            yield keys.size_key(name), f"given {size}; 1 or more"


@rule(MESH)
def cp_backend_known(file: ConfigView) -> Violations:
    """Context parallelism is PyTorch's."""
    yield from _named(file.settings, "cp_backend", ("torch",))


@rule(MESH)
def sp_backend_known(file: ConfigView) -> Violations:
    """Ulysses sequence parallelism is DeepSpeed's."""
    yield from _named(file.settings, "sp_backend", ("deepspeed",))


def _named(settings: Settings, name: str, allowed: tuple[str, ...]) -> Violations:
    key = keys.MESH + name
    if keys.has_mesh(settings) and (given := word(settings, key, allowed[0])) not in allowed:
        yield key, f"given {given!r}; {one_of(allowed)}"


@rule("accelerate/utils/dataclasses.py TorchContextParallelConfig")
def cp_comm_strategy_known(file: ConfigView) -> Violations:
    """Keys are gathered, or pass round a ring."""
    if keys.sizes(file.settings)["cp"] > 1:
        key = keys.MESH + "cp_comm_strategy"
        given = file.word(key, "allgather")
        if given not in ("allgather", "alltoall"):
            yield key, f"given {given!r}; {one_of(('allgather', 'alltoall'))}"


@rule(
    "accelerate/utils/launch.py passes None on, which hides that the length is missing",
    key=keys.MESH + "sp_seq_length",
    says="is missing; tokens per sequence, as it does not vary",
    enforced=False,
)
def sp_length_given(file: ConfigView) -> bool:
    """Ulysses with a fixed length needs it."""
    variable = keys.MESH + "sp_seq_length_is_variable"
    is_fixed = keys.sizes(file.settings)["sp"] > 1 and not file.flag(variable, default=True)
    return is_fixed and file.word(keys.MESH + "sp_seq_length", "") == ""


@rule("accelerate/utils/dataclasses.py DeepSpeedSequenceParallelConfig")
def sp_attention_known(file: ConfigView) -> Violations:
    """Ulysses runs with fused attention only."""
    key = keys.MESH + "sp_attn_implementation"
    given = file.word(key, "None")
    allowed = ("flash_attention_2", "flash_attention_3", "sdpa")
    is_hub = "/" in given and "flash-attn" in given
    if keys.sizes(file.settings)["sp"] > 1 and given not in ("None", *allowed) and not is_hub:
        yield key, f"given {given!r}; {one_of(allowed)}"


@rule(MESH)
def cp_or_sp(file: ConfigView) -> Violations:
    """A sequence is split in one way only."""
    found = keys.sizes(file.settings)
    if found["cp"] > 1 and found["sp"] > 1:
        message = f"given cp {found['cp']} and sp {found['sp']}; one of them is 1"
        yield keys.size_key("cp"), message


@rule(MESH)
def tp_and_cp_need_shards(file: ConfigView) -> Violations:
    """Plain replicas do not go with tensor or context parallelism."""
    found = keys.sizes(file.settings)
    if max(found["tp"], found["cp"]) > 1 and found["dp_replicate"] > 1 and found["dp_shard"] == 1:
        given = f"given tp {found['tp']}, cp {found['cp']}, dp_replicate {found['dp_replicate']}"
        message = f"{given}, dp_shard 1; dp_shard above 1, or dp_replicate 1"
        yield keys.size_key("dp_shard"), message


@rule(MESH)
def sizes_fill_processes(file: ConfigView) -> Violations:
    """The sizes of the mesh multiply to the number of processes."""
    found, processes = keys.sizes(file.settings), file.whole("num_processes", -1)
    total = 1
    for name in keys.SIZES:
        total *= max(found[name], 0)
    is_free = total in (0, 1) or found["sp"] > 1 or processes < 1
    if keys.has_mesh(file.settings) and not is_free and total != processes:
        given = " x ".join(f"{name} {found[name]}" for name in keys.SIZES)
        message = f"{given} = {total}; num_processes is {processes}"
        yield keys.size_key("dp_shard"), message


@rule(
    MESH,
    key=keys.size_key("dp_shard"),
    says="given dp_shard 1 and cp 1; one of them above 1, or no FSDP",
)
def fsdp2_has_ranks_to_shard_over(file: ConfigView) -> bool:
    """FSDP2 shards over dp_shard x cp."""
    found = keys.sizes(file.settings)
    total = found["dp_replicate"] * found["dp_shard"] * found["tp"] * found["cp"] * found["sp"]
    alone = found["dp_shard"] == found["cp"] == 1
    is_multi = file.whole("num_processes", -1) > 1
    return bool(
        _is_fsdp2(file.settings)
        and keys.has_mesh(file.settings)
        and alone
        and (is_multi or total > 1)
    )


def _is_fsdp2(settings: Settings) -> bool:
    is_fsdp = word(settings, "distributed_type", "") == "FSDP"
    return is_fsdp and whole(settings, keys.VERSION, 1) == 2


@rule(
    "transformers/integrations/tensor_parallel.py splits rows; attention cannot view the rest",
    enforced=False,
)
def tp_divides_heads(file: ConfigView) -> Violations:
    """Tensor parallelism splits query heads and key and value heads evenly."""
    tp = keys.sizes(file.settings)["tp"]
    for name, what in (("num_heads", "heads"), ("num_kv_heads", "key and value heads")):
        heads = file.world.decisions.get(f"model.{name}")
        if tp > 1 and isinstance(heads, int) and heads % tp:
            message = f"given tp {tp}; a divisor of {heads} {what}"
            yield keys.size_key("tp"), message


@rule(STATE)
def cp_needs_fsdp2(file: ConfigView) -> Violations:
    """Context parallelism runs under FSDP2 only."""
    kind = file.word("distributed_type", "")
    if (
        keys.sizes(file.settings)["cp"] > 1
        and not _is_fsdp2(file.settings)
        and kind.startswith(("MULTI", "FSDP"))
    ):
        given = "FSDP1" if kind == "FSDP" else kind
        message = (
            f"given cp {keys.sizes(file.settings)['cp']} under {given}; FSDP with fsdp_version 2"
        )
        yield keys.size_key("cp"), message


@rule(
    f"{LAUNCH} checks it for flags, before the file is read",
    key=keys.VERSION,
    says="parallelism_config beside FSDP1, which does not use it; fsdp_version 2",
    enforced=False,
)
def mesh_needs_fsdp2(file: ConfigView) -> bool:
    """A mesh does not go with FSDP1; only the launcher's flags are checked for it."""
    is_fsdp = file.word("distributed_type", "") == "FSDP"
    version = file.whole(keys.VERSION, 1)
    return (
        is_fsdp
        and version == 1
        and keys.has_mesh(file.settings)
        and keys.sizes(file.settings)["cp"] == 1
    )


@rule("accelerate/accelerator.py _prepare_deepspeed", enforced=False)
def sp_needs_deepspeed(file: ConfigView) -> Violations:
    """Ulysses is started by DeepSpeed's engine; elsewhere the size splits nothing."""
    size, kind = keys.sizes(file.settings)["sp"], file.word("distributed_type", "")
    if size > 1 and keys.sizes(file.settings)["cp"] == 1 and kind != "DEEPSPEED":
        message = f"given sp {size} under {kind}; distributed_type DEEPSPEED, or cp"
        yield keys.size_key("sp"), message


@rule(
    f"{CONFIG_ARGS}: use_cpu, read by the launcher for thread counts only",
    key="use_cpu",
    says="given true beside accelerators; false",
    enforced=False,
    severity="warning",
)
def cpu_is_not_asked_for(file: ConfigView) -> bool:
    """use_cpu starts plain processes on the CPU whatever the type says."""
    return bool(
        "use_cpu" in file.settings
        and as_flag(file["use_cpu"])
        and file.word("distributed_type", "") in ("FSDP", "DEEPSPEED", "MULTI_GPU")
    )


RULES: tuple[FormatRule, ...] = (*rule, *rules_sections.rule)

"""Rules of Accelerate's file: the top level and the mesh; those of sections stand beside."""

from planner.formats.accelerate import keys, rules_sections
from planner.formats.format import FormatRule, World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, as_flag, as_whole, flag, one_of, whole, word

rule = Rules()
PRECISIONS = ("no", "fp16", "bf16", "fp8")
CONFIG_ARGS = "accelerate/commands/config/config_args.py"
LAUNCH = "accelerate/commands/launch.py"
LAUNCH_ENV = "accelerate/utils/launch.py"
MESH = "accelerate/parallelism_config.py"
STATE = "accelerate/state.py"


@rule(CONFIG_ARGS)
def distributed_type_given(settings: Settings, _: World) -> Said:
    """The file says how processes work together."""
    if "distributed_type" not in settings:
        yield "distributed_type", "is missing; FSDP, DEEPSPEED or MULTI_GPU"


@rule(CONFIG_ARGS)
def distributed_type_known(settings: Settings, _: World) -> Said:
    """The type is one Accelerate has."""
    if "distributed_type" in settings:
        given = settings["distributed_type"].value
        allowed = keys.schema()["$defs"]["distributed_types"]["enum"]
        if not isinstance(given, bool) and given not in allowed:
            yield "distributed_type", f"given {given!r}; {one_of(allowed)}"


@rule(
    f"{CONFIG_ARGS}: false is no type, and a single process starts",
    enforced=False,
    severity="warning",
)
def no_is_quoted(settings: Settings, _: World) -> Said:
    """YAML reads a bare NO as false, which is none of the types."""
    if "distributed_type" in settings and isinstance(settings["distributed_type"].value, bool):
        given = settings["distributed_type"].value
        yield "distributed_type", f"reads as {given}; write 'NO' in quotes"


@rule(f"{LAUNCH} runs simple_launcher", enforced=False, severity="warning")
def no_starts_one_process(settings: Settings, _: World) -> Said:
    """NO starts a single process, however many the file asks for."""
    processes = whole(settings, "num_processes", 1)
    if word(settings, "distributed_type", "") in ("NO", "False") and processes > 1:
        message = f"given {processes} beside distributed_type NO, which starts 1; MULTI_GPU, or 1"
        yield "num_processes", message


@rule(LAUNCH_ENV)
def mixed_precision_known(settings: Settings, _: World) -> Said:
    """The precision is one Accelerate has; a bare ``no`` is YAML's false."""
    if "mixed_precision" in settings:
        given = settings["mixed_precision"].value
        if given is not None and str(given).lower() not in PRECISIONS:
            hint = "; write 'no' in quotes" if given is False else ""
            message = f"given {given!r}; {one_of(PRECISIONS)}{hint}"
            yield "mixed_precision", message


@rule(LAUNCH, severity="warning")
def num_processes_given(settings: Settings, _: World) -> Said:
    """Without a number of processes the launcher needs one on its command line."""
    alone = word(settings, "distributed_type", "") == "NO" and "num_processes" not in settings
    if not alone and whole(settings, "num_processes", -1) == -1:
        message = "is missing or -1: in the file, or as --num_processes of accelerate launch"
        yield "num_processes", message


@rule(LAUNCH_ENV)
def num_machines_is_a_number(settings: Settings, _: World) -> Said:
    """The launcher compares the number of nodes with 1, as it stands in the file."""
    if keys.MACHINES in settings:
        given = settings[keys.MACHINES].value
        if given is None or (isinstance(given, str) and as_whole(given) is not None):
            yield keys.MACHINES, f"given {given!r}; a whole number without quotes"


@rule(f"{LAUNCH_ENV}: is_port_in_use")
def main_process_port_is_a_number(settings: Settings, _: World) -> Said:
    """Starts of several processes look whether the port is free, which takes no text."""
    given = settings[keys.PORT].value if keys.PORT in settings else None
    starts_several = word(settings, "distributed_type", "") not in ("NO", "False")
    if starts_several and isinstance(given, str) and as_whole(given) is not None:
        yield keys.PORT, f"given {given!r}; a whole number without quotes"


@rule(f"{LAUNCH_ENV}: num_processes // num_machines", enforced=False)
def num_machines_divides(settings: Settings, _: World) -> Said:
    """Every node starts num_processes // num_machines; the rest is dropped."""
    processes, machines = whole(settings, "num_processes", -1), whole(settings, "num_machines", 1)
    if processes > 0 and machines > 1 and processes % machines:
        message = f"given {machines} for {processes} processes; a divisor of {processes}"
        yield "num_machines", message


@rule(LAUNCH)
def several_gpu_ids(settings: Settings, _: World) -> Said:
    """Several processes on one node need several devices."""
    ids = word(settings, "gpu_ids", "all")
    is_multi = word(settings, "distributed_type", "").startswith("MULTI_")
    is_one_node = whole(settings, "num_machines", 1) <= 1
    if is_multi and is_one_node and ids != "all" and len(ids.split(",")) < 2:
        message = f"given {ids!r}; 'all', or two or more separated by commas"
        yield "gpu_ids", message


@rule(MESH)
def sizes_are_positive(settings: Settings, _: World) -> Said:
    """No size of the mesh is below 1."""
    for name, size in keys.sizes(settings).items():
        if size < 1:
            yield keys.size_key(name), f"given {size}; 1 or more"


@rule(MESH)
def cp_backend_known(settings: Settings, _: World) -> Said:
    """Context parallelism is PyTorch's."""
    yield from _named(settings, "cp_backend", ("torch",))


@rule(MESH)
def sp_backend_known(settings: Settings, _: World) -> Said:
    """Ulysses sequence parallelism is DeepSpeed's."""
    yield from _named(settings, "sp_backend", ("deepspeed",))


def _named(settings: Settings, name: str, allowed: tuple[str, ...]) -> Said:
    key = keys.MESH + name
    if keys.has_mesh(settings) and (given := word(settings, key, allowed[0])) not in allowed:
        yield key, f"given {given!r}; {one_of(allowed)}"


@rule("accelerate/utils/dataclasses.py TorchContextParallelConfig")
def cp_comm_strategy_known(settings: Settings, _: World) -> Said:
    """Keys are gathered, or pass round a ring."""
    if keys.sizes(settings)["cp"] > 1:
        key = keys.MESH + "cp_comm_strategy"
        given = word(settings, key, "allgather")
        if given not in ("allgather", "alltoall"):
            yield key, f"given {given!r}; {one_of(('allgather', 'alltoall'))}"


@rule(
    "accelerate/utils/launch.py passes None on, which hides that the length is missing",
    enforced=False,
)
def sp_length_given(settings: Settings, _: World) -> Said:
    """Ulysses with a fixed length needs it."""
    variable = keys.MESH + "sp_seq_length_is_variable"
    key = keys.MESH + "sp_seq_length"
    is_fixed = keys.sizes(settings)["sp"] > 1 and not flag(settings, variable, default=True)
    if is_fixed and word(settings, key, "") == "":
        yield key, "is missing; tokens per sequence, as it does not vary"


@rule("accelerate/utils/dataclasses.py DeepSpeedSequenceParallelConfig")
def sp_attention_known(settings: Settings, _: World) -> Said:
    """Ulysses runs with fused attention only."""
    key = keys.MESH + "sp_attn_implementation"
    given = word(settings, key, "None")
    allowed = ("flash_attention_2", "flash_attention_3", "sdpa")
    is_hub = "/" in given and "flash-attn" in given
    if keys.sizes(settings)["sp"] > 1 and given not in ("None", *allowed) and not is_hub:
        yield key, f"given {given!r}; {one_of(allowed)}"


@rule(MESH)
def cp_or_sp(settings: Settings, _: World) -> Said:
    """A sequence is split in one way only."""
    found = keys.sizes(settings)
    if found["cp"] > 1 and found["sp"] > 1:
        message = f"given cp {found['cp']} and sp {found['sp']}; one of them is 1"
        yield keys.size_key("cp"), message


@rule(MESH)
def tp_and_cp_need_shards(settings: Settings, _: World) -> Said:
    """Plain replicas do not go with tensor or context parallelism."""
    found = keys.sizes(settings)
    if max(found["tp"], found["cp"]) > 1 and found["dp_replicate"] > 1 and found["dp_shard"] == 1:
        given = f"given tp {found['tp']}, cp {found['cp']}, dp_replicate {found['dp_replicate']}"
        message = f"{given}, dp_shard 1; dp_shard above 1, or dp_replicate 1"
        yield keys.size_key("dp_shard"), message


@rule(MESH)
def sizes_fill_processes(settings: Settings, _: World) -> Said:
    """The sizes of the mesh multiply to the number of processes."""
    found, processes = keys.sizes(settings), whole(settings, "num_processes", -1)
    total = 1
    for name in keys.SIZES:
        total *= max(found[name], 0)
    is_free = total in (0, 1) or found["sp"] > 1 or processes < 1
    if keys.has_mesh(settings) and not is_free and total != processes:
        given = " x ".join(f"{name} {found[name]}" for name in keys.SIZES)
        message = f"{given} = {total}; num_processes is {processes}"
        yield keys.size_key("dp_shard"), message


@rule(MESH)
def fsdp2_has_ranks_to_shard_over(settings: Settings, _: World) -> Said:
    """FSDP2 shards over dp_shard x cp."""
    found = keys.sizes(settings)
    total = found["dp_replicate"] * found["dp_shard"] * found["tp"] * found["cp"] * found["sp"]
    alone = found["dp_shard"] == found["cp"] == 1
    is_multi = whole(settings, "num_processes", -1) > 1
    if _is_fsdp2(settings) and keys.has_mesh(settings) and alone and (is_multi or total > 1):
        message = "given dp_shard 1 and cp 1; one of them above 1, or no FSDP"
        yield keys.size_key("dp_shard"), message


def _is_fsdp2(settings: Settings) -> bool:
    is_fsdp = word(settings, "distributed_type", "") == "FSDP"
    return is_fsdp and whole(settings, keys.VERSION, 1) == 2


@rule(
    "transformers/integrations/tensor_parallel.py splits rows; attention cannot view the rest",
    enforced=False,
)
def tp_divides_heads(settings: Settings, world: World) -> Said:
    """Tensor parallelism splits query heads and key and value heads evenly."""
    tp = keys.sizes(settings)["tp"]
    for name, what in (("num_heads", "heads"), ("num_kv_heads", "key and value heads")):
        heads = world.decisions.get(f"model.{name}")
        if tp > 1 and isinstance(heads, int) and heads % tp:
            message = f"given tp {tp}; a divisor of {heads} {what}"
            yield keys.size_key("tp"), message


@rule(STATE)
def cp_needs_fsdp2(settings: Settings, _: World) -> Said:
    """Context parallelism runs under FSDP2 only."""
    kind = word(settings, "distributed_type", "")
    if (
        keys.sizes(settings)["cp"] > 1
        and not _is_fsdp2(settings)
        and kind.startswith(("MULTI", "FSDP"))
    ):
        given = "FSDP1" if kind == "FSDP" else kind
        message = f"given cp {keys.sizes(settings)['cp']} under {given}; FSDP with fsdp_version 2"
        yield keys.size_key("cp"), message


@rule(f"{LAUNCH} checks it for flags, before the file is read", enforced=False)
def mesh_needs_fsdp2(settings: Settings, _: World) -> Said:
    """A mesh does not go with FSDP1; only the launcher's flags are checked for it."""
    is_fsdp = word(settings, "distributed_type", "") == "FSDP"
    version = whole(settings, keys.VERSION, 1)
    if is_fsdp and version == 1 and keys.has_mesh(settings) and keys.sizes(settings)["cp"] == 1:
        message = "parallelism_config beside FSDP1, which does not use it; fsdp_version 2"
        yield keys.VERSION, message


@rule("accelerate/accelerator.py _prepare_deepspeed", enforced=False)
def sp_needs_deepspeed(settings: Settings, _: World) -> Said:
    """Ulysses is started by DeepSpeed's engine; elsewhere the size splits nothing."""
    size, kind = keys.sizes(settings)["sp"], word(settings, "distributed_type", "")
    if size > 1 and keys.sizes(settings)["cp"] == 1 and kind != "DEEPSPEED":
        message = f"given sp {size} under {kind}; distributed_type DEEPSPEED, or cp"
        yield keys.size_key("sp"), message


@rule(
    f"{CONFIG_ARGS}: use_cpu, read by the launcher for thread counts only",
    enforced=False,
    severity="warning",
)
def cpu_is_not_asked_for(settings: Settings, _: World) -> Said:
    """use_cpu starts plain processes on the CPU whatever the type says."""
    if (
        "use_cpu" in settings
        and as_flag(settings["use_cpu"].value)
        and word(settings, "distributed_type", "") in ("FSDP", "DEEPSPEED", "MULTI_GPU")
    ):
        yield "use_cpu", "given true beside accelerators; false"


RULES: tuple[FormatRule, ...] = (*rule, *rules_sections.rule)

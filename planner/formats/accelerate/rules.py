"""Rules of Accelerate's file: the top level and the mesh; those of sections stand beside."""

from collections.abc import Iterator

from planner.formats.accelerate import fsdp, parallelism
from planner.formats.accelerate.keys import known_keys
from planner.formats.accelerate.parallelism import SIZES, size_key, sizes
from planner.formats.accelerate.rules_sections import RULES as SECTION_RULES
from planner.formats.format import Broken, FormatRule, World, rule
from planner.formats.settings import Settings, as_flag, broken, flag, one_of, whole, word

PRECISIONS = ("no", "fp16", "bf16", "fp8")
CONFIG_ARGS = "accelerate/commands/config/config_args.py"
LAUNCH = "accelerate/commands/launch.py"
LAUNCH_ENV = "accelerate/utils/launch.py"
MESH = "accelerate/parallelism_config.py"
STATE = "accelerate/state.py"


def distributed_type_given(settings: Settings, _: World) -> Iterator[Broken]:
    """The file says how processes work together."""
    if "distributed_type" not in settings:
        yield Broken(key="distributed_type", message="is missing; FSDP, DEEPSPEED or MULTI_GPU")


def distributed_type_known(settings: Settings, _: World) -> Iterator[Broken]:
    """The type is one Accelerate has."""
    if "distributed_type" in settings:
        given = settings["distributed_type"].value
        allowed = known_keys().distributed_types
        if not isinstance(given, bool) and given not in allowed:
            yield broken(settings, "distributed_type", f"given {given!r}; {one_of(allowed)}")


def no_is_quoted(settings: Settings, _: World) -> Iterator[Broken]:
    """YAML reads a bare NO as false, which is none of the types."""
    if "distributed_type" in settings and isinstance(settings["distributed_type"].value, bool):
        given = settings["distributed_type"].value
        yield broken(settings, "distributed_type", f"reads as {given}; write 'NO' in quotes")


def no_starts_one_process(settings: Settings, _: World) -> Iterator[Broken]:
    """NO starts a single process, however many the file asks for."""
    processes = whole(settings, "num_processes", 1)
    if word(settings, "distributed_type", "") in ("NO", "False") and processes > 1:
        message = f"given {processes} beside distributed_type NO, which starts 1; MULTI_GPU, or 1"
        yield broken(settings, "num_processes", message)


def mixed_precision_known(settings: Settings, _: World) -> Iterator[Broken]:
    """The precision is one Accelerate has; a bare ``no`` is YAML's false."""
    if "mixed_precision" in settings:
        given = settings["mixed_precision"].value
        if given is not None and str(given).lower() not in PRECISIONS:
            hint = "; write 'no' in quotes" if given is False else ""
            message = f"given {given!r}; {one_of(PRECISIONS)}{hint}"
            yield broken(settings, "mixed_precision", message)


def num_processes_given(settings: Settings, _: World) -> Iterator[Broken]:
    """Without a number of processes the launcher needs one on its command line."""
    alone = word(settings, "distributed_type", "") == "NO" and "num_processes" not in settings
    if not alone and whole(settings, "num_processes", -1) == -1:
        message = "is missing or -1: in the file, or as --num_processes of accelerate launch"
        yield broken(settings, "num_processes", message)


def num_machines_divides(settings: Settings, _: World) -> Iterator[Broken]:
    """Every node starts num_processes // num_machines; the rest is dropped."""
    processes, machines = whole(settings, "num_processes", -1), whole(settings, "num_machines", 1)
    if processes > 0 and machines > 1 and processes % machines:
        message = f"given {machines} for {processes} processes; a divisor of {processes}"
        yield broken(settings, "num_machines", message)


def several_gpu_ids(settings: Settings, _: World) -> Iterator[Broken]:
    """Several processes on one node need several devices."""
    ids = word(settings, "gpu_ids", "all")
    is_multi = word(settings, "distributed_type", "").startswith("MULTI_")
    is_one_node = whole(settings, "num_machines", 1) <= 1
    if is_multi and is_one_node and ids != "all" and len(ids.split(",")) < 2:
        message = f"given {ids!r}; 'all', or two or more separated by commas"
        yield broken(settings, "gpu_ids", message)


def sizes_are_positive(settings: Settings, _: World) -> Iterator[Broken]:
    """No size of the mesh is below 1."""
    for name, size in sizes(settings).items():
        if size < 1:
            yield broken(settings, size_key(name), f"given {size}; 1 or more")


def cp_backend_known(settings: Settings, _: World) -> Iterator[Broken]:
    """Context parallelism is PyTorch's."""
    yield from _named(settings, "cp_backend", ("torch",))


def sp_backend_known(settings: Settings, _: World) -> Iterator[Broken]:
    """Ulysses sequence parallelism is DeepSpeed's."""
    yield from _named(settings, "sp_backend", ("deepspeed",))


def _named(settings: Settings, name: str, allowed: tuple[str, ...]) -> Iterator[Broken]:
    key = parallelism.PREFIX + name
    if parallelism.is_given(settings) and (given := word(settings, key, allowed[0])) not in allowed:
        yield broken(settings, key, f"given {given!r}; {one_of(allowed)}")


def cp_comm_strategy_known(settings: Settings, _: World) -> Iterator[Broken]:
    """Keys are gathered, or pass round a ring."""
    if sizes(settings)["cp"] > 1:
        key = parallelism.PREFIX + "cp_comm_strategy"
        given = word(settings, key, "allgather")
        if given not in ("allgather", "alltoall"):
            yield broken(settings, key, f"given {given!r}; {one_of(('allgather', 'alltoall'))}")


def sp_length_given(settings: Settings, _: World) -> Iterator[Broken]:
    """Ulysses with a fixed length needs it."""
    variable = parallelism.PREFIX + "sp_seq_length_is_variable"
    key = parallelism.PREFIX + "sp_seq_length"
    is_fixed = sizes(settings)["sp"] > 1 and not flag(settings, variable, default=True)
    if is_fixed and word(settings, key, "") == "":
        yield broken(settings, key, "is missing; tokens per sequence, as it does not vary")


def sp_attention_known(settings: Settings, _: World) -> Iterator[Broken]:
    """Ulysses runs with fused attention only."""
    key = parallelism.PREFIX + "sp_attn_implementation"
    given = word(settings, key, "None")
    allowed = ("flash_attention_2", "flash_attention_3", "sdpa")
    is_hub = "/" in given and "flash-attn" in given
    if sizes(settings)["sp"] > 1 and given not in ("None", *allowed) and not is_hub:
        yield broken(settings, key, f"given {given!r}; {one_of(allowed)}")


def cp_or_sp(settings: Settings, _: World) -> Iterator[Broken]:
    """A sequence is split in one way only."""
    found = sizes(settings)
    if found["cp"] > 1 and found["sp"] > 1:
        message = f"given cp {found['cp']} and sp {found['sp']}; one of them is 1"
        yield broken(settings, size_key("cp"), message)


def tp_and_cp_need_shards(settings: Settings, _: World) -> Iterator[Broken]:
    """Plain replicas do not go with tensor or context parallelism."""
    found = sizes(settings)
    if max(found["tp"], found["cp"]) > 1 and found["dp_replicate"] > 1 and found["dp_shard"] == 1:
        given = f"given tp {found['tp']}, cp {found['cp']}, dp_replicate {found['dp_replicate']}"
        message = f"{given}, dp_shard 1; dp_shard above 1, or dp_replicate 1"
        yield broken(settings, size_key("dp_shard"), message)


def sizes_fill_processes(settings: Settings, _: World) -> Iterator[Broken]:
    """The sizes of the mesh multiply to the number of processes."""
    found, processes = sizes(settings), whole(settings, "num_processes", -1)
    total = 1
    for name in SIZES:
        total *= max(found[name], 0)
    is_free = total in (0, 1) or found["sp"] > 1 or processes < 1
    if parallelism.is_given(settings) and not is_free and total != processes:
        given = " x ".join(f"{name} {found[name]}" for name in SIZES)
        message = f"{given} = {total}; num_processes is {processes}"
        yield broken(settings, size_key("dp_shard"), message)


def fsdp2_has_ranks_to_shard_over(settings: Settings, _: World) -> Iterator[Broken]:
    """FSDP2 shards over dp_shard x cp."""
    found = sizes(settings)
    total = found["dp_replicate"] * found["dp_shard"] * found["tp"] * found["cp"] * found["sp"]
    alone = found["dp_shard"] == found["cp"] == 1
    is_multi = whole(settings, "num_processes", -1) > 1
    if _is_fsdp2(settings) and parallelism.is_given(settings) and alone and (is_multi or total > 1):
        message = "given dp_shard 1 and cp 1; one of them above 1, or no FSDP"
        yield broken(settings, size_key("dp_shard"), message)


def _is_fsdp2(settings: Settings) -> bool:
    is_fsdp = word(settings, "distributed_type", "") == "FSDP"
    return is_fsdp and whole(settings, fsdp.VERSION, 1) == 2


def tp_divides_heads(settings: Settings, world: World) -> Iterator[Broken]:
    """Tensor parallelism splits query heads and key and value heads evenly."""
    tp = sizes(settings)["tp"]
    for name, what in (("num_heads", "heads"), ("num_kv_heads", "key and value heads")):
        heads = world.decisions.get(f"model.{name}")
        if tp > 1 and isinstance(heads, int) and heads % tp:
            message = f"given tp {tp}; a divisor of {heads} {what}"
            yield broken(settings, size_key("tp"), message)


def cp_needs_fsdp2(settings: Settings, _: World) -> Iterator[Broken]:
    """Context parallelism runs under FSDP2 only."""
    kind = word(settings, "distributed_type", "")
    if sizes(settings)["cp"] > 1 and not _is_fsdp2(settings) and kind.startswith(("MULTI", "FSDP")):
        given = "FSDP1" if kind == "FSDP" else kind
        message = f"given cp {sizes(settings)['cp']} under {given}; FSDP with fsdp_version 2"
        yield broken(settings, size_key("cp"), message)


def mesh_needs_fsdp2(settings: Settings, _: World) -> Iterator[Broken]:
    """A mesh does not go with FSDP1; only the launcher's flags are checked for it."""
    is_fsdp = word(settings, "distributed_type", "") == "FSDP"
    version = whole(settings, fsdp.VERSION, 1)
    if is_fsdp and version == 1 and parallelism.is_given(settings) and sizes(settings)["cp"] == 1:
        message = "parallelism_config beside FSDP1, which does not use it; fsdp_version 2"
        yield broken(settings, fsdp.VERSION, message)


def sp_needs_deepspeed(settings: Settings, _: World) -> Iterator[Broken]:
    """Ulysses is started by DeepSpeed's engine; elsewhere the size splits nothing."""
    size, kind = sizes(settings)["sp"], word(settings, "distributed_type", "")
    if size > 1 and sizes(settings)["cp"] == 1 and kind != "DEEPSPEED":
        message = f"given sp {size} under {kind}; distributed_type DEEPSPEED, or cp"
        yield broken(settings, size_key("sp"), message)


def cpu_is_not_asked_for(settings: Settings, _: World) -> Iterator[Broken]:
    """use_cpu starts plain processes on the CPU whatever the type says."""
    if (
        "use_cpu" in settings
        and as_flag(settings["use_cpu"].value)
        and word(settings, "distributed_type", "")
        in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_GPU")
    ):
        yield broken(settings, "use_cpu", "given true beside accelerators; false")


RULES: tuple[FormatRule, ...] = (
    rule(distributed_type_given, CONFIG_ARGS),
    rule(distributed_type_known, CONFIG_ARGS),
    rule(
        no_is_quoted,
        f"{CONFIG_ARGS}: false is no type, and a single process starts",
        enforced=False,
        severity="warning",
    ),
    rule(
        no_starts_one_process,
        f"{LAUNCH} runs simple_launcher",
        enforced=False,
        severity="warning",
    ),
    rule(mixed_precision_known, LAUNCH_ENV),
    rule(num_processes_given, LAUNCH, severity="warning"),
    rule(num_machines_divides, f"{LAUNCH_ENV}: num_processes // num_machines", enforced=False),
    rule(several_gpu_ids, LAUNCH),
    rule(sizes_are_positive, MESH),
    rule(cp_backend_known, MESH),
    rule(sp_backend_known, MESH),
    rule(cp_comm_strategy_known, "accelerate/utils/dataclasses.py TorchContextParallelConfig"),
    rule(
        sp_length_given,
        "accelerate/utils/launch.py passes None on, which hides that the length is missing",
        enforced=False,
    ),
    rule(sp_attention_known, "accelerate/utils/dataclasses.py DeepSpeedSequenceParallelConfig"),
    rule(cp_or_sp, MESH),
    rule(tp_and_cp_need_shards, MESH),
    rule(sizes_fill_processes, MESH),
    rule(fsdp2_has_ranks_to_shard_over, MESH),
    rule(
        tp_divides_heads,
        "transformers/integrations/tensor_parallel.py splits rows; attention cannot view the rest",
        enforced=False,
    ),
    rule(cp_needs_fsdp2, STATE),
    rule(
        mesh_needs_fsdp2, f"{LAUNCH} checks it for flags, before the file is read", enforced=False
    ),
    rule(sp_needs_deepspeed, "accelerate/accelerator.py _prepare_deepspeed", enforced=False),
    rule(
        cpu_is_not_asked_for,
        f"{CONFIG_ARGS}: use_cpu, read by the launcher for thread counts only",
        enforced=False,
        severity="warning",
    ),
    *SECTION_RULES,
)

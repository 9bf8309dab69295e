"""Rules of the sections ``fsdp_config`` and ``deepspeed_config``."""

from planner.formats.accelerate import keys
from planner.formats.accelerate.wrapped import of_another_model
from planner.formats.format import World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, as_flag, flag, one_of, whole, word

rule = Rules()
PLUGIN = "accelerate/utils/dataclasses.py FullyShardedDataParallelPlugin"
DEEPSPEED_PLUGIN = "accelerate/utils/dataclasses.py DeepSpeedPlugin"
LAUNCH_ENV = "accelerate/utils/launch.py"
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STATE_DICTS = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")
OBSOLETE = ("sharding_strategy", "backward_prefetch", "forward_prefetch", "use_orig_params")
REPEATED = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)


def _is(settings: Settings, kind: str) -> bool:
    return word(settings, "distributed_type", "") == kind


def _is_fsdp2(settings: Settings) -> bool:
    return _is(settings, "FSDP") and whole(settings, keys.VERSION, 1) == 2


@rule(PLUGIN)
def fsdp_version_known(settings: Settings, _: World) -> Said:
    """FSDP is 1 or 2."""
    given = whole(settings, keys.VERSION, 1)
    if _is(settings, "FSDP") and given not in (1, 2):
        yield keys.VERSION, f"given {given}; 2, or the deprecated 1"


@rule(PLUGIN)
def reshard_is_a_flag(settings: Settings, _: World) -> Said:
    """FSDP2 frees weights after forward or keeps them; the names of strategies are FSDP1's."""
    if _is_fsdp2(settings) and keys.RESHARD in settings:
        given = settings[keys.RESHARD].value
        if as_flag(given) is None:
            message = f"given {given!r}; true (as FULL_SHARD) or false (as SHARD_GRAD_OP)"
            yield keys.RESHARD, message


@rule(PLUGIN)
def state_dict_type_known(settings: Settings, _: World) -> Said:
    """Checkpoints are whole or sharded; FSDP1 also knows local ones."""
    key = keys.FSDP + "state_dict_type"
    given = word(settings, key, STATE_DICTS[0]).upper()
    allowed = STATE_DICTS if _is_fsdp2(settings) else (*STATE_DICTS, "LOCAL_STATE_DICT")
    if _is(settings, "FSDP") and given not in allowed and not given.isdigit():
        yield key, f"given {given}; {one_of(allowed)}"


@rule(PLUGIN)
def wrap_policy_known(settings: Settings, _: World) -> Said:
    """The policy is one Accelerate has."""
    given = word(settings, keys.WRAP, POLICIES[0]).upper()
    if _is(settings, "FSDP") and given not in POLICIES:
        yield keys.WRAP, f"given {given}; {one_of(POLICIES)}"


@rule(f"{PLUGIN}: the default", enforced=False, severity="warning")
def blocks_are_wrapped(settings: Settings, _: World) -> Said:
    """Without a policy the model is one unit, all of whose weights are gathered at once."""
    given = word(settings, keys.WRAP, "NO_WRAP").upper()
    if _is(settings, "FSDP") and given == "NO_WRAP":
        yield keys.WRAP, "is missing or NO_WRAP; TRANSFORMER_BASED_WRAP"


@rule(PLUGIN)
def checkpoint_offload_needs_checkpoints(settings: Settings, _: World) -> Said:
    """What goes to the host is the input of recomputed blocks, under FSDP2."""
    key = keys.FSDP + "activation_checkpointing_offload"
    if not _is(settings, "FSDP") or not flag(settings, key):
        return
    if not flag(settings, keys.CHECKPOINTING):
        yield key, "given true; fsdp_activation_checkpointing true as well"
    elif not _is_fsdp2(settings):
        yield key, "given true; fsdp_version 2 as well"


@rule(LAUNCH_ENV)
def efficient_loading_needs_sync(settings: Settings, _: World) -> Said:
    """Weights that one process loads must be sent to the others."""
    loading, sync = keys.FSDP + "cpu_ram_efficient_loading", keys.FSDP + "sync_module_states"
    loads = settings[loading].value if loading in settings else True
    is_off = sync in settings and not settings[sync].value
    if _is(settings, "FSDP") and loads and is_off:
        message = "given false; true, or fsdp_cpu_ram_efficient_loading false"
        yield sync, message


@rule(f"{PLUGIN} leaves them out", enforced=False, severity="note")
def nothing_obsolete(settings: Settings, _: World) -> Said:
    """FSDP2 does not look at keys of FSDP1."""
    for name in OBSOLETE:
        if _is_fsdp2(settings) and keys.FSDP + name in settings:
            instead = "fsdp_reshard_after_forward" if name == "sharding_strategy" else "nothing"
            yield keys.FSDP + name, f"has no effect under FSDP2; {instead} instead"


@rule(DEEPSPEED_PLUGIN)
def config_file_stands_alone(settings: Settings, _: World) -> Said:
    """What DeepSpeed's own file decides is not repeated beside it."""
    if not _is(settings, "DEEPSPEED") or keys.FILE not in settings:
        return
    for name in (*(f"deepspeed_config.{each}" for each in REPEATED), "mixed_precision"):
        if name in settings and settings[name].value is not None:
            yield name, "stands beside deepspeed_config_file; set it there only"


@rule("deepspeed/runtime/zero/config.py, when the engine is made", enforced=False)
def zero_stage_known(settings: Settings, _: World) -> Said:
    """ZeRO has stages 0 to 3."""
    given = whole(settings, keys.STAGE, 2)
    if _is(settings, "DEEPSPEED") and given not in range(4):
        yield keys.STAGE, f"given {given}; 0, 1, 2 or 3"


@rule("deepspeed/runtime/zero/offload_config.py, when the engine is made", enforced=False)
def offload_device_known(settings: Settings, _: World) -> Said:
    """States go to the host or to NVMe."""
    for key in (keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE):
        given = word(settings, key, "none").lower()
        if _is(settings, "DEEPSPEED") and given not in ("none", "cpu", "nvme"):
            yield key, f"given {given}; {one_of(('none', 'cpu', 'nvme'))}"


@rule("deepspeed/runtime/zero/config.py: nothing is offloaded", enforced=False, severity="warning")
def parameter_offload_needs_stage_3(settings: Settings, _: World) -> Said:
    """Parameters that are not split do not leave the accelerator."""
    given, stage = word(settings, keys.PARAM_DEVICE, "none"), whole(settings, keys.STAGE, 2)
    is_own = _is(settings, "DEEPSPEED") and keys.FILE not in settings
    if is_own and given != "none" and stage < 3:
        message = f"given {given} under zero_stage {stage}, which moves none; zero_stage 3, or none"
        yield keys.PARAM_DEVICE, message


@rule("deepspeed/runtime/engine.py: nothing is offloaded", enforced=False)
def optimizer_offload_needs_sharding(settings: Settings, _: World) -> Said:
    """States that are not split do not leave the accelerator."""
    given, stage = word(settings, keys.OPTIMIZER_DEVICE, "none"), whole(settings, keys.STAGE, 2)
    is_own = _is(settings, "DEEPSPEED") and keys.FILE not in settings
    if is_own and given != "none" and stage == 0:
        message = f"given {given} under zero_stage 0; zero_stage 1 or more, or none"
        yield keys.OPTIMIZER_DEVICE, message


@rule(f"{LAUNCH_ENV} prepare_deepspeed_cmd_env", enforced=False)
def nvme_path_in_environment(settings: Settings, world: World) -> Said:
    """``accelerate launch`` passes no NVMe path of the file on; DeepSpeed gets the word none."""
    for name, key in (("OPTIMIZER", keys.OPTIMIZER_DEVICE), ("PARAM", keys.PARAM_DEVICE)):
        variable = keys.NVME_PATH.format(name)
        is_nvme = word(settings, key, "none").lower() == "nvme"
        if _is(settings, "DEEPSPEED") and is_nvme and variable not in world.environment:
            yield key, f"given nvme; set {variable} for every process"


@rule(f"{PLUGIN} set_auto_wrap_policy raises", enforced=False)
def wrapped_class_is_the_models(settings: Settings, world: World) -> Said:
    """FSDP wraps layers by the name of their class."""
    key = "fsdp_config.fsdp_transformer_layer_cls_to_wrap"
    message = of_another_model(settings, key, world.decisions.get("model.family"))
    if _is(settings, "FSDP") and message:
        yield key, message

"""Rules of the sections ``fsdp_config`` and ``deepspeed_config``."""

from planner.formats.accelerate import keys
from planner.formats.accelerate.wrapped import of_another_model
from planner.formats.rules import ConfigView, Rules, Violations
from planner.formats.settings import Settings, as_flag, one_of, whole, word

rule = Rules(ConfigView)
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
def fsdp_version_known(file: ConfigView) -> Violations:
    """FSDP is 1 or 2."""
    given = file.whole(keys.VERSION, 1)
    if _is(file.settings, "FSDP") and given not in (1, 2):
        yield keys.VERSION, f"given {given}; 2, or the deprecated 1"


@rule(PLUGIN)
def reshard_is_a_flag(file: ConfigView) -> Violations:
    """FSDP2 frees weights after forward or keeps them; the names of strategies are FSDP1's."""
    if _is_fsdp2(file.settings) and keys.RESHARD in file.settings:
        given = file[keys.RESHARD]
        if as_flag(given) is None:
            message = f"given {given!r}; true (as FULL_SHARD) or false (as SHARD_GRAD_OP)"
            yield keys.RESHARD, message


@rule(PLUGIN)
def state_dict_type_known(file: ConfigView) -> Violations:
    """Checkpoints are whole or sharded; FSDP1 also knows local ones."""
    key = keys.FSDP + "state_dict_type"
    given = file.word(key, STATE_DICTS[0]).upper()
    allowed = STATE_DICTS if _is_fsdp2(file.settings) else (*STATE_DICTS, "LOCAL_STATE_DICT")
    if _is(file.settings, "FSDP") and given not in allowed and not given.isdigit():
        yield key, f"given {given}; {one_of(allowed)}"


@rule(PLUGIN)
def wrap_policy_known(file: ConfigView) -> Violations:
    """The policy is one Accelerate has."""
    given = file.word(keys.WRAP, POLICIES[0]).upper()
    if _is(file.settings, "FSDP") and given not in POLICIES:
        yield keys.WRAP, f"given {given}; {one_of(POLICIES)}"


@rule(
    f"{PLUGIN}: the default",
    key=keys.WRAP,
    says="is missing or NO_WRAP; TRANSFORMER_BASED_WRAP",
    enforced=False,
    severity="warning",
)
def blocks_are_wrapped(file: ConfigView) -> bool:
    """Without a policy the model is one unit, all of whose weights are gathered at once."""
    given = file.word(keys.WRAP, "NO_WRAP").upper()
    return _is(file.settings, "FSDP") and given == "NO_WRAP"


@rule(PLUGIN)
def checkpoint_offload_needs_checkpoints(file: ConfigView) -> Violations:
    """What goes to the host is the input of recomputed blocks, under FSDP2."""
    key = keys.FSDP + "activation_checkpointing_offload"
    if not _is(file.settings, "FSDP") or not file.flag(key):
        return
    if not file.flag(keys.CHECKPOINTING):
        yield key, "given true; fsdp_activation_checkpointing true as well"
    elif not _is_fsdp2(file.settings):
        yield key, "given true; fsdp_version 2 as well"


@rule(
    LAUNCH_ENV,
    key=keys.FSDP + "sync_module_states",
    says="given false; true, or fsdp_cpu_ram_efficient_loading false",
)
def efficient_loading_needs_sync(file: ConfigView) -> bool:
    """Weights that one process loads must be sent to the others."""
    loading = keys.FSDP + "cpu_ram_efficient_loading"
    loads = file[loading] if loading in file.settings else True
    is_off = (
        keys.FSDP + "sync_module_states" in file.settings
        and not file[keys.FSDP + "sync_module_states"]
    )
    return bool(_is(file.settings, "FSDP") and loads and is_off)


@rule(f"{PLUGIN} leaves them out", enforced=False, severity="note")
def nothing_obsolete(file: ConfigView) -> Violations:
    """FSDP2 does not look at keys of FSDP1."""
    for name in OBSOLETE:
        if _is_fsdp2(file.settings) and keys.FSDP + name in file.settings:
            instead = "fsdp_reshard_after_forward" if name == "sharding_strategy" else "nothing"
            yield keys.FSDP + name, f"has no effect under FSDP2; {instead} instead"


@rule(DEEPSPEED_PLUGIN)
def config_file_stands_alone(file: ConfigView) -> Violations:
    """What DeepSpeed's own file decides is not repeated beside it."""
    if not _is(file.settings, "DEEPSPEED") or keys.FILE not in file.settings:
        return
    for name in (*(f"deepspeed_config.{each}" for each in REPEATED), "mixed_precision"):
        if name in file.settings and file[name] is not None:
            yield name, "stands beside deepspeed_config_file; set it there only"


@rule("deepspeed/runtime/zero/config.py, when the engine is made", enforced=False)
def zero_stage_known(file: ConfigView) -> Violations:
    """ZeRO has stages 0 to 3."""
    given = file.whole(keys.STAGE, 2)
    if _is(file.settings, "DEEPSPEED") and given not in range(4):
        yield keys.STAGE, f"given {given}; 0, 1, 2 or 3"


@rule("deepspeed/runtime/zero/offload_config.py, when the engine is made", enforced=False)
def offload_device_known(file: ConfigView) -> Violations:
    """States go to the host or to NVMe."""
    for key in (keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE):
        given = file.word(key, "none").lower()
        if _is(file.settings, "DEEPSPEED") and given not in ("none", "cpu", "nvme"):
            yield key, f"given {given}; {one_of(('none', 'cpu', 'nvme'))}"


@rule("deepspeed/runtime/zero/config.py: nothing is offloaded", enforced=False, severity="warning")
def parameter_offload_needs_stage_3(file: ConfigView) -> Violations:
    """Parameters that are not split do not leave the accelerator."""
    given, stage = file.word(keys.PARAM_DEVICE, "none"), file.whole(keys.STAGE, 2)
    is_own = _is(file.settings, "DEEPSPEED") and keys.FILE not in file.settings
    if is_own and given != "none" and stage < 3:
        message = f"given {given} under zero_stage {stage}, which moves none; zero_stage 3, or none"
        yield keys.PARAM_DEVICE, message


@rule("deepspeed/runtime/engine.py: nothing is offloaded", enforced=False)
def optimizer_offload_needs_sharding(file: ConfigView) -> Violations:
    """States that are not split do not leave the accelerator."""
    given, stage = file.word(keys.OPTIMIZER_DEVICE, "none"), file.whole(keys.STAGE, 2)
    is_own = _is(file.settings, "DEEPSPEED") and keys.FILE not in file.settings
    if is_own and given != "none" and stage == 0:
        message = f"given {given} under zero_stage 0; zero_stage 1 or more, or none"
        yield keys.OPTIMIZER_DEVICE, message


@rule(f"{LAUNCH_ENV} prepare_deepspeed_cmd_env", enforced=False)
def nvme_path_in_environment(file: ConfigView) -> Violations:
    """``accelerate launch`` passes no NVMe path of the file on; DeepSpeed gets the word none."""
    for name, key in (("OPTIMIZER", keys.OPTIMIZER_DEVICE), ("PARAM", keys.PARAM_DEVICE)):
        variable = keys.NVME_PATH.format(name)
        is_nvme = file.word(key, "none").lower() == "nvme"
        if _is(file.settings, "DEEPSPEED") and is_nvme and variable not in file.world.environment:
            yield key, f"given nvme; set {variable} for every process"


@rule(f"{PLUGIN} set_auto_wrap_policy raises", enforced=False)
def wrapped_class_is_the_models(file: ConfigView) -> Violations:
    """FSDP wraps layers by the name of their class."""
    key = "fsdp_config.fsdp_transformer_layer_cls_to_wrap"
    message = of_another_model(file.settings, key, file.world.decisions.get("model.family"))
    if _is(file.settings, "FSDP") and message:
        yield key, message

"""Rules of the sections ``fsdp_config``, ``deepspeed_config`` and ``megatron_lm_config``."""

from collections.abc import Iterator

from planner.formats.accelerate import deepspeed, fsdp, megatron
from planner.formats.format import Broken, FormatRule, World, rule
from planner.formats.settings import Settings, as_flag, broken, flag, one_of, whole, word

FSDP_KEY = "fsdp_config.fsdp_"
PLUGIN = "accelerate/utils/dataclasses.py FullyShardedDataParallelPlugin"
DEEPSPEED_PLUGIN = "accelerate/utils/dataclasses.py DeepSpeedPlugin"
MEGATRON_PLUGIN = "accelerate/utils/dataclasses.py MegatronLMPlugin"
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
    return _is(settings, "FSDP") and whole(settings, fsdp.VERSION, 1) == 2


def fsdp_version_known(settings: Settings, _: World) -> Iterator[Broken]:
    """FSDP is 1 or 2."""
    given = whole(settings, fsdp.VERSION, 1)
    if _is(settings, "FSDP") and given not in (1, 2):
        yield broken(settings, fsdp.VERSION, f"given {given}; 2, or the deprecated 1")


def reshard_is_a_flag(settings: Settings, _: World) -> Iterator[Broken]:
    """FSDP2 frees weights after forward or keeps them; the names of strategies are FSDP1's."""
    if _is_fsdp2(settings) and fsdp.RESHARD in settings:
        given = settings[fsdp.RESHARD].value
        if as_flag(given) is None:
            message = f"given {given!r}; true (as FULL_SHARD) or false (as SHARD_GRAD_OP)"
            yield broken(settings, fsdp.RESHARD, message)


def state_dict_type_known(settings: Settings, _: World) -> Iterator[Broken]:
    """Checkpoints are whole or sharded; FSDP1 also knows local ones."""
    key = FSDP_KEY + "state_dict_type"
    given = word(settings, key, STATE_DICTS[0]).upper()
    allowed = STATE_DICTS if _is_fsdp2(settings) else (*STATE_DICTS, "LOCAL_STATE_DICT")
    if _is(settings, "FSDP") and given not in allowed and not given.isdigit():
        yield broken(settings, key, f"given {given}; {one_of(allowed)}")


def wrap_policy_known(settings: Settings, _: World) -> Iterator[Broken]:
    """The policy is one Accelerate has."""
    given = word(settings, fsdp.WRAP, POLICIES[0]).upper()
    if _is(settings, "FSDP") and given not in POLICIES:
        yield broken(settings, fsdp.WRAP, f"given {given}; {one_of(POLICIES)}")


def blocks_are_wrapped(settings: Settings, _: World) -> Iterator[Broken]:
    """Without a policy the model is one unit, all of whose weights are gathered at once."""
    given = word(settings, fsdp.WRAP, "NO_WRAP").upper()
    if _is(settings, "FSDP") and given == "NO_WRAP":
        yield broken(settings, fsdp.WRAP, "is missing or NO_WRAP; TRANSFORMER_BASED_WRAP")


def checkpoint_offload_needs_checkpoints(settings: Settings, _: World) -> Iterator[Broken]:
    """What goes to the host is the input of recomputed blocks, under FSDP2."""
    key = FSDP_KEY + "activation_checkpointing_offload"
    if not _is(settings, "FSDP") or not flag(settings, key, default=False):
        return
    if not flag(settings, fsdp.CHECKPOINTING, default=False):
        yield broken(settings, key, "given true; fsdp_activation_checkpointing true as well")
    elif not _is_fsdp2(settings):
        yield broken(settings, key, "given true; fsdp_version 2 as well")


def efficient_loading_needs_sync(settings: Settings, _: World) -> Iterator[Broken]:
    """Weights that one process loads must be sent to the others."""
    loading, sync = FSDP_KEY + "cpu_ram_efficient_loading", FSDP_KEY + "sync_module_states"
    loads = settings[loading].value if loading in settings else True
    is_off = sync in settings and not settings[sync].value
    if _is(settings, "FSDP") and loads and is_off:
        message = "given false; true, or fsdp_cpu_ram_efficient_loading false"
        yield broken(settings, sync, message)


def nothing_obsolete(settings: Settings, _: World) -> Iterator[Broken]:
    """FSDP2 does not look at keys of FSDP1."""
    for name in OBSOLETE:
        if _is_fsdp2(settings) and FSDP_KEY + name in settings:
            instead = "fsdp_reshard_after_forward" if name == "sharding_strategy" else "nothing"
            yield broken(settings, FSDP_KEY + name, f"has no effect under FSDP2; {instead} instead")


def config_file_stands_alone(settings: Settings, _: World) -> Iterator[Broken]:
    """What DeepSpeed's own file decides is not repeated beside it."""
    if not _is(settings, "DEEPSPEED") or deepspeed.FILE not in settings:
        return
    for name in (*(f"deepspeed_config.{each}" for each in REPEATED), "mixed_precision"):
        if name in settings and settings[name].value is not None:
            yield broken(settings, name, "stands beside deepspeed_config_file; set it there only")


def zero_stage_known(settings: Settings, _: World) -> Iterator[Broken]:
    """ZeRO has stages 0 to 3."""
    given = whole(settings, deepspeed.STAGE, 2)
    if _is(settings, "DEEPSPEED") and given not in range(4):
        yield broken(settings, deepspeed.STAGE, f"given {given}; 0, 1, 2 or 3")


def offload_device_known(settings: Settings, _: World) -> Iterator[Broken]:
    """States go to the host or to NVMe."""
    for key in (deepspeed.OPTIMIZER, deepspeed.PARAM):
        given = word(settings, key, "none").lower()
        if _is(settings, "DEEPSPEED") and given not in ("none", "cpu", "nvme"):
            yield broken(settings, key, f"given {given}; {one_of(('none', 'cpu', 'nvme'))}")


def parameter_offload_needs_stage_3(settings: Settings, _: World) -> Iterator[Broken]:
    """Parameters that are not split do not leave the accelerator."""
    given, stage = word(settings, deepspeed.PARAM, "none"), whole(settings, deepspeed.STAGE, 2)
    is_own = _is(settings, "DEEPSPEED") and deepspeed.FILE not in settings
    if is_own and given != "none" and stage < 3:
        message = f"given {given} under zero_stage {stage}, which moves none; zero_stage 3, or none"
        yield broken(settings, deepspeed.PARAM, message)


def optimizer_offload_needs_sharding(settings: Settings, _: World) -> Iterator[Broken]:
    """States that are not split do not leave the accelerator."""
    given, stage = word(settings, deepspeed.OPTIMIZER, "none"), whole(settings, deepspeed.STAGE, 2)
    is_own = _is(settings, "DEEPSPEED") and deepspeed.FILE not in settings
    if is_own and given != "none" and stage == 0:
        message = f"given {given} under zero_stage 0; zero_stage 1 or more, or none"
        yield broken(settings, deepspeed.OPTIMIZER, message)


def nvme_path_in_environment(settings: Settings, world: World) -> Iterator[Broken]:
    """``accelerate launch`` passes no NVMe path of the file on; DeepSpeed gets the word none."""
    for name, key in (("OPTIMIZER", deepspeed.OPTIMIZER), ("PARAM", deepspeed.PARAM)):
        variable = deepspeed.NVME_PATH.format(name)
        is_nvme = word(settings, key, "none").lower() == "nvme"
        if _is(settings, "DEEPSPEED") and is_nvme and variable not in world.environment:
            yield broken(settings, key, f"given nvme; set {variable} for every process")


def megatron_degrees_divide(settings: Settings, _: World) -> Iterator[Broken]:
    """Accelerate floors num_processes / (tp x pp); Megatron-LM also divides by cp."""
    model = whole(settings, megatron.TP, 1) * whole(settings, megatron.PP, 1)
    model *= whole(settings, megatron.CP, 2)
    processes = whole(settings, "num_processes", -1)
    if _is(settings, "MEGATRON_LM") and processes > 0 and (model < 1 or processes % model):
        message = f"tp x pp x cp = {model}; a divisor of num_processes, {processes}"
        degrees = (megatron.TP, megatron.PP, megatron.CP)
        largest = max(degrees, key=lambda key: whole(settings, key, 0))
        yield broken(settings, largest, message)


def megatron_cp_given(settings: Settings, _: World) -> Iterator[Broken]:
    """Without the key context parallelism is 2."""
    if _is(settings, "MEGATRON_LM") and megatron.CP not in settings:
        yield broken(settings, megatron.CP, "is missing, which means 2; 1 for none")


def megatron_batch_counts_cp(settings: Settings, _: World) -> Iterator[Broken]:
    """Accelerate counts data parallelism without cp: the batch grows by it."""
    cp = whole(settings, megatron.CP, 2)
    if _is(settings, "MEGATRON_LM") and megatron.CP in settings and cp > 1:
        message = f"given {cp}; 1, or count on a global batch {cp} times as large"
        yield broken(settings, megatron.CP, message)


def megatron_selective_without_method(settings: Settings, _: World) -> Iterator[Broken]:
    """Accelerate always gives a method, which Megatron-LM refuses beside selective."""
    if _is(settings, "MEGATRON_LM") and word(settings, megatron.GRANULARITY, "full") == "selective":
        yield broken(settings, megatron.GRANULARITY, "given selective; full, with method block")


def megatron_recomputation_known(settings: Settings, _: World) -> Iterator[Broken]:
    """Megatron-LM recomputes block by block or in groups."""
    named = {megatron.GRANULARITY: ("full", "selective"), megatron.METHOD: ("uniform", "block")}
    for key, allowed in named.items():
        given = word(settings, key, allowed[0])
        if _is(settings, "MEGATRON_LM") and given not in allowed:
            yield broken(settings, key, f"given {given!r}; {one_of(allowed)}")


def megatron_recomputation_given(settings: Settings, _: World) -> Iterator[Broken]:
    """Without any key every layer is recomputed in full."""
    keys = (megatron.GRANULARITY, megatron.METHOD, megatron.LAYERS)
    if _is(settings, "MEGATRON_LM") and not any(key in settings for key in keys):
        message = "is missing, which recomputes every layer; method block with 0 layers for none"
        yield broken(settings, megatron.GRANULARITY, message)


def megatron_offload_needs_precise_states(settings: Settings, _: World) -> Iterator[Broken]:
    """Megatron-LM offloads its precision-aware optimizer only."""
    offloads = flag(settings, megatron.OFFLOAD, default=False)
    precise = flag(settings, megatron.PRECISE, default=False)
    if _is(settings, "MEGATRON_LM") and offloads and not precise:
        message = "given true; megatron_lm_use_precision_aware_optimizer true as well"
        yield broken(settings, megatron.OFFLOAD, message)


RULES: tuple[FormatRule, ...] = (
    rule(fsdp_version_known, PLUGIN),
    rule(reshard_is_a_flag, PLUGIN),
    rule(state_dict_type_known, PLUGIN),
    rule(wrap_policy_known, PLUGIN),
    rule(blocks_are_wrapped, f"{PLUGIN}: the default", enforced=False, severity="warning"),
    rule(checkpoint_offload_needs_checkpoints, PLUGIN),
    rule(efficient_loading_needs_sync, LAUNCH_ENV),
    rule(nothing_obsolete, f"{PLUGIN} leaves them out", enforced=False, severity="note"),
    rule(config_file_stands_alone, DEEPSPEED_PLUGIN),
    rule(
        zero_stage_known,
        "deepspeed/runtime/zero/config.py, when the engine is made",
        enforced=False,
    ),
    rule(
        offload_device_known,
        "deepspeed/runtime/zero/offload_config.py, when the engine is made",
        enforced=False,
    ),
    rule(
        parameter_offload_needs_stage_3,
        "deepspeed/runtime/zero/config.py: nothing is offloaded",
        enforced=False,
        severity="warning",
    ),
    rule(
        optimizer_offload_needs_sharding,
        "deepspeed/runtime/engine.py: nothing is offloaded",
        enforced=False,
    ),
    rule(nvme_path_in_environment, f"{LAUNCH_ENV} prepare_deepspeed_cmd_env", enforced=False),
    rule(megatron_degrees_divide, "megatron/core/parallel_state.py, at the start", enforced=False),
    rule(megatron_cp_given, MEGATRON_PLUGIN, enforced=False, severity="warning"),
    rule(
        megatron_batch_counts_cp,
        "accelerate/accelerator.py _prepare_megatron_lm",
        enforced=False,
        severity="warning",
    ),
    rule(
        megatron_selective_without_method,
        f"{MEGATRON_PLUGIN}, against megatron/training/arguments.py",
        enforced=False,
    ),
    rule(
        megatron_recomputation_known,
        "megatron/core/transformer/transformer_config.py, when the model is made",
        enforced=False,
    ),
    rule(megatron_recomputation_given, MEGATRON_PLUGIN, enforced=False, severity="warning"),
    rule(megatron_offload_needs_precise_states, "megatron/training/arguments.py", enforced=False),
)

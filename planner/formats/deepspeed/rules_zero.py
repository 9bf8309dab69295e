"""Rules of ZeRO: stages, offload, ZeRO++ and what each stage cannot do."""

from planner.formats.deepspeed import keys
from planner.formats.format import World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, as_number, given

rule = Rules()
_CONFIG = "deepspeed/runtime/zero/config.py"
_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_STAGE_12 = "deepspeed/runtime/zero/stage_1_and_2.py"
_OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
_HPZ_GROUPS = "deepspeed/utils/groups.py _create_zero_param_parallel_group"


@rule("deepspeed/runtime/config_utils.py")
def one_name_for_offload(settings: Settings, _: World) -> Said:
    """An old offload switch does not stand beside the section that replaced it."""
    for key, section in keys.given_twice(settings).items():
        yield key, f"stands beside {section}; allowed is one of them"


@rule("deepspeed/runtime/zenflow", enforced=False, severity="note")
def zenflow_is_not_modelled(settings: Settings, _: World) -> Said:
    """The section zenflow is not given."""
    if given(settings, keys.ZENFLOW) is not None:
        yield keys.ZENFLOW, "ZenFlow is not modelled; priced is a step that waits for the host"


@rule(_CONFIG)
def partial_offload_needs_stage_3(settings: Settings, _: World) -> Said:
    """offload_optimizer.ratio below 1 needs stage 3."""
    ratio = as_number(given(settings, f"{keys.ZERO}.offload_optimizer.ratio"))
    if ratio is not None and ratio < 1 and keys.stage(settings) != 3:
        message = (
            f"a ratio below 1 needs stage 3; given {ratio:g} with stage {keys.stage(settings)}"
        )
        yield f"{keys.ZERO}.offload_optimizer.ratio", message


@rule(f"{_STAGE_3} asserts it at start", enforced=False)
def partial_offload_needs_adam(settings: Settings, _: World) -> Said:
    """offload_optimizer.ratio below 1 needs DeepSpeed's own Adam."""
    key = f"{keys.ZERO}.offload_optimizer.ratio"
    ratio, kind = as_number(given(settings, key)), given(settings, keys.TYPE)
    is_adam = not isinstance(kind, str) or kind.lower() in ("adam", "adamw")
    is_other = not is_adam or given(settings, keys.TORCH_ADAM) is True
    is_off = keys.device(settings, "offload_optimizer") == "none"
    if ratio is not None and ratio < 1 and keys.stage(settings) == 3 and is_other and not is_off:
        message = f"a ratio below 1 needs DeepSpeed's own Adam on the host; given {kind}"
        yield key, message


@rule(f"{_OFFLOAD}; nothing tests it", enforced=False)
def optimizer_offload_needs_sharding(settings: Settings, _: World) -> Said:
    """offload_optimizer needs stage 1, 2 or 3."""
    where = keys.device(settings, "offload_optimizer")
    if where != "none" and keys.stage(settings) == 0:
        message = f"stage 0 ignores it; given {where}, allowed with stages 1, 2 and 3"
        yield f"{keys.ZERO}.offload_optimizer", message


@rule(f"{_OFFLOAD}; nothing tests it", enforced=False)
def parameter_offload_needs_stage_3(settings: Settings, _: World) -> Said:
    """offload_param needs stage 3."""
    where = keys.device(settings, "offload_param")
    if where != "none" and keys.stage(settings) != 3:
        message = f"ignored below stage 3; given {where} with stage {keys.stage(settings)}"
        yield f"{keys.ZERO}.offload_param", message


@rule(f"{_STAGE_12} takes any device for the host", enforced=False)
def nvme_needs_stage_3(settings: Settings, _: World) -> Said:
    """Optimizer states go to NVMe under stage 3 only."""
    if keys.device(settings, "offload_optimizer") == "nvme" and keys.stage(settings) in (1, 2):
        message = "below stage 3 the states go to the host; given nvme, allowed are cpu and none"
        yield f"{keys.ZERO}.offload_optimizer.device", message


@rule("deepspeed/runtime/zero/partition_parameters.py asserts it at start", enforced=False)
def nvme_has_a_path(settings: Settings, _: World) -> Said:
    """Offload to NVMe names the folder of the drives."""
    for section in keys.OLD_SWITCHES:
        key = f"{keys.ZERO}.{section}.nvme_path"
        if keys.device(settings, section) == "nvme" and not given(settings, key):
            yield key, "device nvme needs the folder of the drives; given none"


@rule("deepspeed/runtime/base_optimizer.py asserts it", enforced=False)
def bf16_master_offload_is_consistent(settings: Settings, _: World) -> Said:
    """bf16 master weights need bf16 states, or the host's Adam."""
    key = keys.MASTER
    if given(settings, key) is not True or keys.stage(settings) == 0:
        return
    states = given(settings, keys.STATES) is True
    offloads = keys.device(settings, "offload_optimizer") != "none"
    if not states and not offloads:
        yield key, "needs bf16_optimizer_states or offload_optimizer; given neither"
    elif offloads and given(settings, keys.TORCH_ADAM) is True:
        yield key, "offloaded, it needs DeepSpeed's own Adam; given torch_adam"


@rule(_CONFIG)
def norm_left_out_below_stage_3(settings: Settings, _: World) -> Said:
    """compute_grad_norm false needs stage 1 or 2."""
    key = f"{keys.ZERO}.compute_grad_norm"
    if given(settings, key) is False and keys.stage(settings) not in (1, 2):
        message = f"false needs stage 1 or 2; given stage {keys.stage(settings)}"
        yield key, message


@rule(f"{_STAGE_12} raises at start", enforced=False)
def norm_left_out_without_offload(settings: Settings, _: World) -> Said:
    """compute_grad_norm false does not go with offload_optimizer."""
    key = f"{keys.ZERO}.compute_grad_norm"
    offloads = keys.device(settings, "offload_optimizer") != "none"
    if given(settings, key) is False and offloads and keys.stage(settings) in (1, 2):
        yield key, "false does not go with offload_optimizer; allowed is true"


@rule("deepspeed/runtime/engine.py raises at start", enforced=False)
def old_stage_1_is_gone(settings: Settings, _: World) -> Said:
    """legacy_stage1 is off."""
    key = f"{keys.ZERO}.legacy_stage1"
    if given(settings, key) is True and keys.stage(settings) > 0:
        yield key, "the engine refuses it since 0.5.9; allowed is false"


@rule(f"{_STAGE_3} asserts it at start", enforced=False)
def scattered_gradients_scale_after(settings: Settings, _: World) -> Said:
    """Under stage 3 scattered gradients are neither prescaled nor predivided."""
    if keys.stage(settings) != 3 or given(settings, f"{keys.ZERO}.reduce_scatter") is False:
        return
    factor = as_number(given(settings, "gradient_predivide_factor"))
    if factor is not None and factor != 1:
        message = f"stage 3 scatters gradients undivided; given {factor:g}, allowed is 1"
        yield "gradient_predivide_factor", message
    if given(settings, "prescale_gradients") is True:
        yield "prescale_gradients", "not there under stage 3; allowed is false"


@rule(f"{_STAGE_3} raises at start", enforced=False)
def muon_gathers_gradients(settings: Settings, _: World) -> Said:
    """Muon under stage 3 runs with reduce_scatter false."""
    kind, key = given(settings, keys.TYPE), f"{keys.ZERO}.reduce_scatter"
    is_muon = isinstance(kind, str) and kind.lower() == "muon"
    if is_muon and keys.stage(settings) == 3 and given(settings, key) is not False:
        yield key, "Muon under stage 3 needs whole gradients; allowed is false"


@rule(f"{_CONFIG}; nothing tests it", enforced=False)
def secondary_copy_needs_stage_3(settings: Settings, _: World) -> Said:
    """zero_hpz_partition_size needs stage 3."""
    if (keys.size(settings, keys.HPZ) or 1) > 1 and keys.stage(settings) != 3:
        yield keys.HPZ, f"ignored below stage 3; given stage {keys.stage(settings)}"


@rule(f"{_HPZ_GROUPS} asserts it at start", enforced=False)
def secondary_copy_divides_ranks(settings: Settings, world: World) -> Said:
    """zero_hpz_partition_size divides the ranks."""
    ranks = min(keys.size(settings, keys.HPZ) or 1, world.num_gpus)
    if ranks > 1 and keys.stage(settings) == 3 and world.num_gpus % ranks:
        yield keys.HPZ, f"must divide the ranks; given {ranks} of {world.num_gpus}"


@rule(f"{_HPZ_GROUPS} numbers ranks without regard to AutoTP", enforced=False)
def secondary_copy_without_autotp(settings: Settings, _: World) -> Said:
    """zero_hpz_partition_size does not go with AutoTP."""
    ranks = keys.size(settings, keys.HPZ) or 1
    if ranks > 1 and keys.stage(settings) == 3 and keys.autotp(settings) > 1:
        message = f"its groups of {ranks} neighbours would mix shards of different layers' parts"
        yield keys.HPZ, f"{message}; allowed with autotp_size 1; given {keys.autotp(settings)}"


@rule(f"{_STAGE_3}; nothing tests it", severity="warning", enforced=False)
def quantised_transfers_need_stage_3(settings: Settings, _: World) -> Said:
    """Quantised weights and gradients of ZeRO++ need stage 3."""
    for name in ("zero_quantized_weights", "zero_quantized_gradients"):
        if given(settings, f"{keys.ZERO}.{name}") is True and keys.stage(settings) != 3:
            yield f"{keys.ZERO}.{name}", f"ignored below stage 3; given {keys.stage(settings)}"

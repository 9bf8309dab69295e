"""Rules of ZeRO: stages, offload, ZeRO++ and what each stage cannot do."""

from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.rules import Rules, Violations
from planner.formats.settings import as_number

rule = Rules(DeepspeedView)
_CONFIG = "deepspeed/runtime/zero/config.py"
_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_STAGE_12 = "deepspeed/runtime/zero/stage_1_and_2.py"
_OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
_HPZ_GROUPS = "deepspeed/utils/groups.py _create_zero_param_parallel_group"


@rule("deepspeed/runtime/config_utils.py")
def one_name_for_offload(file: DeepspeedView) -> Violations:
    """An old offload switch does not stand beside the section that replaced it."""
    for key, section in keys.given_twice(file.settings).items():
        yield key, f"stands beside {section}; allowed is one of them"


@rule(
    "deepspeed/runtime/zenflow",
    key=keys.ZENFLOW,
    says="ZenFlow is not modelled; priced is a step that waits for the host",
    enforced=False,
    severity="note",
)
def zenflow_is_not_modelled(file: DeepspeedView) -> bool:
    """The section zenflow is not given."""
    return file[keys.ZENFLOW] is not None


@rule(_CONFIG)
def partial_offload_needs_stage_3(file: DeepspeedView) -> Violations:
    """offload_optimizer.ratio below 1 needs stage 3."""
    ratio = as_number(file[f"{keys.ZERO}.offload_optimizer.ratio"])
    if ratio is not None and ratio < 1 and file.stage != 3:
        message = f"a ratio below 1 needs stage 3; given {ratio:g} with stage {file.stage}"
        yield f"{keys.ZERO}.offload_optimizer.ratio", message


@rule(f"{_STAGE_3} asserts it at start", enforced=False)
def partial_offload_needs_adam(file: DeepspeedView) -> Violations:
    """offload_optimizer.ratio below 1 needs DeepSpeed's own Adam."""
    key = f"{keys.ZERO}.offload_optimizer.ratio"
    ratio, kind = as_number(file[key]), file[keys.TYPE]
    is_adam = not isinstance(kind, str) or kind.lower() in ("adam", "adamw")
    is_other = not is_adam or file[keys.TORCH_ADAM] is True
    is_off = file.device("offload_optimizer") == "none"
    if ratio is not None and ratio < 1 and file.stage == 3 and is_other and not is_off:
        message = f"a ratio below 1 needs DeepSpeed's own Adam on the host; given {kind}"
        yield key, message


@rule(f"{_OFFLOAD}; nothing tests it", enforced=False)
def optimizer_offload_needs_sharding(file: DeepspeedView) -> Violations:
    """offload_optimizer needs stage 1, 2 or 3."""
    where = file.device("offload_optimizer")
    if where != "none" and file.stage == 0:
        message = f"stage 0 ignores it; given {where}, allowed with stages 1, 2 and 3"
        yield f"{keys.ZERO}.offload_optimizer", message


@rule(f"{_OFFLOAD}; nothing tests it", enforced=False)
def parameter_offload_needs_stage_3(file: DeepspeedView) -> Violations:
    """offload_param needs stage 3."""
    where = file.device("offload_param")
    if where != "none" and file.stage != 3:
        message = f"ignored below stage 3; given {where} with stage {file.stage}"
        yield f"{keys.ZERO}.offload_param", message


@rule(
    f"{_STAGE_12} takes any device for the host",
    key=f"{keys.ZERO}.offload_optimizer.device",
    says="below stage 3 the states go to the host; given nvme, allowed are cpu and none",
    enforced=False,
)
def nvme_needs_stage_3(file: DeepspeedView) -> bool:
    """Optimizer states go to NVMe under stage 3 only."""
    return file.device("offload_optimizer") == "nvme" and file.stage in (1, 2)


@rule("deepspeed/runtime/zero/partition_parameters.py asserts it at start", enforced=False)
def nvme_has_a_path(file: DeepspeedView) -> Violations:
    """Offload to NVMe names the folder of the drives."""
    for section in keys.OLD_SWITCHES:
        key = f"{keys.ZERO}.{section}.nvme_path"
        if file.device(section) == "nvme" and not file[key]:
            yield key, "device nvme needs the folder of the drives; given none"


@rule("deepspeed/runtime/base_optimizer.py asserts it", enforced=False)
def bf16_master_offload_is_consistent(file: DeepspeedView) -> Violations:
    """bf16 master weights need bf16 states, or the host's Adam."""
    key = keys.MASTER
    if file[key] is not True or file.stage == 0:
        return
    states = file[keys.STATES] is True
    offloads = file.device("offload_optimizer") != "none"
    if not states and not offloads:
        yield key, "needs bf16_optimizer_states or offload_optimizer; given neither"
    elif offloads and file[keys.TORCH_ADAM] is True:
        yield key, "offloaded, it needs DeepSpeed's own Adam; given torch_adam"


@rule(
    _CONFIG,
    key=f"{keys.ZERO}.compute_grad_norm",
    says="false needs stage 1 or 2; given stage {file.stage}",
)
def norm_left_out_below_stage_3(file: DeepspeedView) -> bool:
    """compute_grad_norm false needs stage 1 or 2."""
    return file[f"{keys.ZERO}.compute_grad_norm"] is False and file.stage not in (1, 2)


@rule(
    f"{_STAGE_12} raises at start",
    key=f"{keys.ZERO}.compute_grad_norm",
    says="false does not go with offload_optimizer; allowed is true",
    enforced=False,
)
def norm_left_out_without_offload(file: DeepspeedView) -> bool:
    """compute_grad_norm false does not go with offload_optimizer."""
    offloads = file.device("offload_optimizer") != "none"
    return bool(
        file[f"{keys.ZERO}.compute_grad_norm"] is False and offloads and file.stage in (1, 2)
    )


@rule(
    "deepspeed/runtime/engine.py raises at start",
    key=f"{keys.ZERO}.legacy_stage1",
    says="the engine refuses it since 0.5.9; allowed is false",
    enforced=False,
)
def old_stage_1_is_gone(file: DeepspeedView) -> bool:
    """legacy_stage1 is off."""
    return file[f"{keys.ZERO}.legacy_stage1"] is True and file.stage > 0


@rule(f"{_STAGE_3} asserts it at start", enforced=False)
def scattered_gradients_scale_after(file: DeepspeedView) -> Violations:
    """Under stage 3 scattered gradients are neither prescaled nor predivided."""
    if file.stage != 3 or file[f"{keys.ZERO}.reduce_scatter"] is False:
        return
    factor = as_number(file["gradient_predivide_factor"])
    if factor is not None and factor != 1:
        message = f"stage 3 scatters gradients undivided; given {factor:g}, allowed is 1"
        yield "gradient_predivide_factor", message
    if file["prescale_gradients"] is True:
        yield "prescale_gradients", "not there under stage 3; allowed is false"


@rule(
    f"{_STAGE_3} raises at start",
    key=f"{keys.ZERO}.reduce_scatter",
    says="Muon under stage 3 needs whole gradients; allowed is false",
    enforced=False,
)
def muon_gathers_gradients(file: DeepspeedView) -> bool:
    """Muon under stage 3 runs with reduce_scatter false."""
    kind = file[keys.TYPE]
    is_muon = isinstance(kind, str) and kind.lower() == "muon"
    return is_muon and file.stage == 3 and file[f"{keys.ZERO}.reduce_scatter"] is not False


@rule(
    f"{_CONFIG}; nothing tests it",
    key=keys.HPZ,
    says="ignored below stage 3; given stage {file.stage}",
    enforced=False,
)
def secondary_copy_needs_stage_3(file: DeepspeedView) -> bool:
    """zero_hpz_partition_size needs stage 3."""
    return (keys.size(file.settings, keys.HPZ) or 1) > 1 and file.stage != 3


@rule(f"{_HPZ_GROUPS} asserts it at start", enforced=False)
def secondary_copy_divides_ranks(file: DeepspeedView) -> Violations:
    """zero_hpz_partition_size divides the ranks."""
    ranks = min(keys.size(file.settings, keys.HPZ) or 1, file.world.num_gpus)
    if ranks > 1 and file.stage == 3 and file.world.num_gpus % ranks:
        yield keys.HPZ, f"must divide the ranks; given {ranks} of {file.world.num_gpus}"


@rule(f"{_HPZ_GROUPS} numbers ranks without regard to AutoTP", enforced=False)
def secondary_copy_without_autotp(file: DeepspeedView) -> Violations:
    """zero_hpz_partition_size does not go with AutoTP."""
    ranks = keys.size(file.settings, keys.HPZ) or 1
    if ranks > 1 and file.stage == 3 and file.autotp > 1:
        message = f"its groups of {ranks} neighbours would mix shards of different layers' parts"
        yield keys.HPZ, f"{message}; allowed with autotp_size 1; given {file.autotp}"


@rule(f"{_STAGE_3}; nothing tests it", severity="warning", enforced=False)
def quantised_transfers_need_stage_3(file: DeepspeedView) -> Violations:
    """Quantised weights and gradients of ZeRO++ need stage 3."""
    for name in ("zero_quantized_weights", "zero_quantized_gradients"):
        if file[f"{keys.ZERO}.{name}"] is True and file.stage != 3:
            yield f"{keys.ZERO}.{name}", f"ignored below stage 3; given {file.stage}"

"""Rules of ZeRO: stages, offload, ZeRO++ and what each stage cannot do."""

from collections.abc import Iterator

from planner.formats.deepspeed.decisions import (
    OLD_SWITCHES,
    Settings,
    autotp,
    device,
    given,
    size,
    stage,
)
from planner.formats.deepspeed.known import number
from planner.formats.format import Broken, World, rule

_ZERO = "zero_optimization"
_CONFIG = "deepspeed/runtime/zero/config.py"
_HPZ = f"{_ZERO}.zero_hpz_partition_size"
_QUANTISED = ("zero_quantized_weights", "zero_quantized_gradients")


def one_name_for_offload(settings: Settings, _: World) -> Iterator[Broken]:
    """An old offload switch does not stand beside the section that replaced it."""
    for section, switch in OLD_SWITCHES.items():
        if f"{_ZERO}.{section}" in settings and f"{_ZERO}.{switch}" in settings:
            yield Broken(
                key=f"{_ZERO}.{switch}", message=f"stands beside {section}; allowed is one of them"
            )


def partial_offload_needs_stage_3(settings: Settings, _: World) -> Iterator[Broken]:
    """offload_optimizer.ratio below 1 needs stage 3."""
    ratio = number(given(settings, f"{_ZERO}.offload_optimizer.ratio"))
    if ratio is not None and ratio < 1 and stage(settings) != 3:
        message = f"a ratio below 1 needs stage 3; given {ratio:g} with stage {stage(settings)}"
        yield Broken(key=f"{_ZERO}.offload_optimizer.ratio", message=message)


def partial_offload_needs_adam(settings: Settings, _: World) -> Iterator[Broken]:
    """offload_optimizer.ratio below 1 needs DeepSpeed's own Adam."""
    key = f"{_ZERO}.offload_optimizer.ratio"
    ratio, kind = number(given(settings, key)), given(settings, "optimizer.type")
    is_adam = not isinstance(kind, str) or kind.lower() in ("adam", "adamw")
    is_other = not is_adam or given(settings, "optimizer.params.torch_adam") is True
    is_off = device(settings, "offload_optimizer") == "none"
    if ratio is not None and ratio < 1 and stage(settings) == 3 and is_other and not is_off:
        message = f"a ratio below 1 needs DeepSpeed's own Adam on the host; given {kind}"
        yield Broken(key=key, message=message)


def optimizer_offload_needs_sharding(settings: Settings, _: World) -> Iterator[Broken]:
    """offload_optimizer needs stage 1, 2 or 3."""
    where = device(settings, "offload_optimizer")
    if where != "none" and stage(settings) == 0:
        message = f"stage 0 ignores it; given {where}, allowed with stages 1, 2 and 3"
        yield Broken(key=f"{_ZERO}.offload_optimizer", message=message)


def parameter_offload_needs_stage_3(settings: Settings, _: World) -> Iterator[Broken]:
    """offload_param needs stage 3."""
    where = device(settings, "offload_param")
    if where != "none" and stage(settings) != 3:
        message = f"ignored below stage 3; given {where} with stage {stage(settings)}"
        yield Broken(key=f"{_ZERO}.offload_param", message=message)


def nvme_needs_stage_3(settings: Settings, _: World) -> Iterator[Broken]:
    """Optimizer states go to NVMe under stage 3 only."""
    if device(settings, "offload_optimizer") == "nvme" and stage(settings) in (1, 2):
        message = "below stage 3 the states go to the host; given nvme, allowed are cpu and none"
        yield Broken(key=f"{_ZERO}.offload_optimizer.device", message=message)


def nvme_has_a_path(settings: Settings, _: World) -> Iterator[Broken]:
    """Offload to NVMe names the folder of the drives."""
    for section in OLD_SWITCHES:
        key = f"{_ZERO}.{section}.nvme_path"
        if device(settings, section) == "nvme" and not given(settings, key):
            yield Broken(key=key, message="device nvme needs the folder of the drives; given none")


def bf16_master_offload_is_consistent(settings: Settings, _: World) -> Iterator[Broken]:
    """bf16 master weights need bf16 states, or the host's Adam."""
    key = "bf16.bf16_master_weights_and_grads"
    if given(settings, key) is not True or stage(settings) == 0:
        return
    states = given(settings, "bf16.bf16_optimizer_states") is True
    offloads = device(settings, "offload_optimizer") != "none"
    if not states and not offloads:
        yield Broken(
            key=key, message="needs bf16_optimizer_states or offload_optimizer; given neither"
        )
    elif offloads and given(settings, "optimizer.params.torch_adam") is True:
        yield Broken(key=key, message="offloaded, it needs DeepSpeed's own Adam; given torch_adam")


def norm_left_out_below_stage_3(settings: Settings, _: World) -> Iterator[Broken]:
    """compute_grad_norm false needs stage 1 or 2."""
    key = f"{_ZERO}.compute_grad_norm"
    if given(settings, key) is False and stage(settings) not in (1, 2):
        message = f"false needs stage 1 or 2; given stage {stage(settings)}"
        yield Broken(key=key, message=message)


def norm_left_out_without_offload(settings: Settings, _: World) -> Iterator[Broken]:
    """compute_grad_norm false does not go with offload_optimizer."""
    key = f"{_ZERO}.compute_grad_norm"
    offloads = device(settings, "offload_optimizer") != "none"
    if given(settings, key) is False and offloads and stage(settings) in (1, 2):
        yield Broken(key=key, message="false does not go with offload_optimizer; allowed is true")


def old_stage_1_is_gone(settings: Settings, _: World) -> Iterator[Broken]:
    """legacy_stage1 is off."""
    key = f"{_ZERO}.legacy_stage1"
    if given(settings, key) is True and stage(settings) > 0:
        yield Broken(key=key, message="the engine refuses it since 0.5.9; allowed is false")


def scattered_gradients_scale_after(settings: Settings, _: World) -> Iterator[Broken]:
    """Under stage 3 scattered gradients are neither prescaled nor predivided."""
    if stage(settings) != 3 or given(settings, f"{_ZERO}.reduce_scatter") is False:
        return
    factor = number(given(settings, "gradient_predivide_factor"))
    if factor is not None and factor != 1:
        message = f"stage 3 scatters gradients undivided; given {factor:g}, allowed is 1"
        yield Broken(key="gradient_predivide_factor", message=message)
    if given(settings, "prescale_gradients") is True:
        yield Broken(key="prescale_gradients", message="not there under stage 3; allowed is false")


def muon_gathers_gradients(settings: Settings, _: World) -> Iterator[Broken]:
    """Muon under stage 3 runs with reduce_scatter false."""
    kind, key = given(settings, "optimizer.type"), f"{_ZERO}.reduce_scatter"
    is_muon = isinstance(kind, str) and kind.lower() == "muon"
    if is_muon and stage(settings) == 3 and given(settings, key) is not False:
        yield Broken(key=key, message="Muon under stage 3 needs whole gradients; allowed is false")


def secondary_copy_needs_stage_3(settings: Settings, _: World) -> Iterator[Broken]:
    """zero_hpz_partition_size needs stage 3."""
    if (size(settings, _HPZ) or 1) > 1 and stage(settings) != 3:
        yield Broken(key=_HPZ, message=f"ignored below stage 3; given stage {stage(settings)}")


def secondary_copy_divides_ranks(settings: Settings, world: World) -> Iterator[Broken]:
    """zero_hpz_partition_size divides the ranks."""
    ranks = min(size(settings, _HPZ) or 1, world.num_gpus)
    if ranks > 1 and stage(settings) == 3 and world.num_gpus % ranks:
        yield Broken(key=_HPZ, message=f"must divide the ranks; given {ranks} of {world.num_gpus}")


def secondary_copy_without_autotp(settings: Settings, _: World) -> Iterator[Broken]:
    """zero_hpz_partition_size does not go with AutoTP."""
    ranks = size(settings, _HPZ) or 1
    if ranks > 1 and stage(settings) == 3 and autotp(settings) > 1:
        message = f"its groups of {ranks} neighbours would mix shards of different layers' parts"
        yield Broken(
            key=_HPZ, message=f"{message}; allowed with autotp_size 1; given {autotp(settings)}"
        )


def quantised_transfers_need_stage_3(settings: Settings, _: World) -> Iterator[Broken]:
    """Quantised weights and gradients of ZeRO++ need stage 3."""
    for name in _QUANTISED:
        if given(settings, f"{_ZERO}.{name}") is True and stage(settings) != 3:
            yield Broken(
                key=f"{_ZERO}.{name}", message=f"ignored below stage 3; given {stage(settings)}"
            )


_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_STAGE_12 = "deepspeed/runtime/zero/stage_1_and_2.py"
_OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
_HPZ_GROUPS = "deepspeed/utils/groups.py _create_zero_param_parallel_group"
ZERO_RULES = (
    rule(one_name_for_offload, "deepspeed/runtime/config_utils.py"),
    rule(partial_offload_needs_stage_3, _CONFIG),
    rule(partial_offload_needs_adam, f"{_STAGE_3} asserts it at start", enforced=False),
    rule(optimizer_offload_needs_sharding, f"{_OFFLOAD}; nothing tests it", enforced=False),
    rule(parameter_offload_needs_stage_3, f"{_OFFLOAD}; nothing tests it", enforced=False),
    rule(nvme_needs_stage_3, f"{_STAGE_12} takes any device for the host", enforced=False),
    rule(
        nvme_has_a_path,
        "deepspeed/runtime/zero/partition_parameters.py asserts it at start",
        enforced=False,
    ),
    rule(
        bf16_master_offload_is_consistent,
        "deepspeed/runtime/base_optimizer.py asserts it",
        enforced=False,
    ),
    rule(norm_left_out_below_stage_3, _CONFIG),
    rule(norm_left_out_without_offload, f"{_STAGE_12} raises at start", enforced=False),
    rule(old_stage_1_is_gone, "deepspeed/runtime/engine.py raises at start", enforced=False),
    rule(scattered_gradients_scale_after, f"{_STAGE_3} asserts it at start", enforced=False),
    rule(muon_gathers_gradients, f"{_STAGE_3} raises at start", enforced=False),
    rule(secondary_copy_needs_stage_3, f"{_CONFIG}; nothing tests it", enforced=False),
    rule(secondary_copy_divides_ranks, f"{_HPZ_GROUPS} asserts it at start", enforced=False),
    rule(
        secondary_copy_without_autotp,
        f"{_HPZ_GROUPS} numbers ranks without regard to AutoTP",
        enforced=False,
    ),
    rule(
        quantised_transfers_need_stage_3,
        f"{_STAGE_3}; nothing tests it",
        severity="warning",
        enforced=False,
    ),
)

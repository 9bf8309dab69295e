"""Rules of ZeRO: stages, offload, ZeRO++ and what each stage cannot do."""

from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.rules import Refused, Rules, Violations
from planner.formats.settings import as_number

rule = Rules(DeepspeedView)
_CONFIG = "deepspeed/runtime/zero/config.py"
_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_NORM = f"{keys.ZERO}.compute_grad_norm"
_SCATTER = f"{keys.ZERO}.reduce_scatter"


@rule("deepspeed/runtime/config_utils.py")
def one_name_for_offload(file: DeepspeedView) -> Violations:
    """An old offload switch does not stand beside the section that replaced it."""
    for key, section in keys.given_twice(file.settings).items():
        yield key, f"stands beside {section}; allowed is one of them"


rule.unenforced(
    "deepspeed/runtime/zenflow",
    name="zenflow_is_not_modelled",
    holds="The section zenflow is not given.",
    key=keys.ZENFLOW,
    severity="note",
    when=lambda file: file[keys.ZENFLOW] is not None,
    says="ZenFlow is not modelled; priced is a step that waits for the host",
)
rule(
    _CONFIG,
    name="partial_offload_needs_stage_3",
    holds="offload_optimizer.ratio below 1 needs stage 3.",
    key=keys.RATIO,
    when=lambda file: file.ratio < 1 and file.stage != 3,
    says="a ratio below 1 needs stage 3; given {file.ratio:g} with stage {file.stage}",
)


@rule.unenforced(
    f"{_STAGE_3} asserts it at start",
    key=keys.RATIO,
    says=f"a ratio below 1 needs DeepSpeed's own Adam on the host; given {{file[{keys.TYPE}]}}",
)
def partial_offload_needs_adam(file: DeepspeedView) -> bool:
    """offload_optimizer.ratio below 1 needs DeepSpeed's own Adam."""
    is_other = file.optimizer not in ("adam", "adamw", "") or file[keys.TORCH_ADAM] is True
    return file.ratio < 1 and file.stage == 3 and is_other and file.offloads


rule.unenforced(
    "deepspeed/runtime/zero/offload_config.py; nothing tests it",
    name="optimizer_offload_needs_sharding",
    holds="offload_optimizer needs stage 1, 2 or 3.",
    key=f"{keys.ZERO}.offload_optimizer",
    when=lambda file: file.offloads and file.stage == 0,
    says="stage 0 ignores it; given {file.states_on}, allowed with stages 1, 2 and 3",
)
rule.unenforced(
    "deepspeed/runtime/zero/offload_config.py; nothing tests it",
    name="parameter_offload_needs_stage_3",
    holds="offload_param needs stage 3.",
    key=f"{keys.ZERO}.offload_param",
    when=lambda file: file.weights_on != "none" and file.stage != 3,
    says="ignored below stage 3; given {file.weights_on} with stage {file.stage}",
)
rule.unenforced(
    "deepspeed/runtime/zero/stage_1_and_2.py takes any device for the host",
    name="nvme_needs_stage_3",
    holds="Optimizer states go to NVMe under stage 3 only.",
    key=f"{keys.ZERO}.offload_optimizer.device",
    when=lambda file: file.states_on == "nvme" and file.stage in (1, 2),
    says="below stage 3 the states go to the host; given nvme, allowed are cpu and none",
)


@rule.unenforced(
    "deepspeed/runtime/zero/partition_parameters.py asserts it at start",
    says="device nvme needs the folder of the drives; given none",
)
def nvme_has_a_path(file: DeepspeedView) -> list[str]:
    """Offload to NVMe names the folder of the drives."""
    on_drives = [each for each in keys.OLD_SWITCHES if file.device(each) == "nvme"]
    paths = [f"{keys.ZERO}.{section}.nvme_path" for section in on_drives]
    return [path for path in paths if not file[path]]


@rule.unenforced("deepspeed/runtime/base_optimizer.py asserts it", key=keys.MASTER)
def bf16_master_offload_is_consistent(file: DeepspeedView) -> Refused:
    """bf16 master weights need bf16 states, or the host's Adam."""
    if file[keys.MASTER] is not True or file.stage == 0:
        return {}
    has_states, is_torchs = file[keys.STATES] is True, file[keys.TORCH_ADAM] is True
    return {
        "needs bf16_optimizer_states or offload_optimizer; given neither": (
            not has_states and not file.offloads
        ),
        "offloaded, it needs DeepSpeed's own Adam; given torch_adam": file.offloads and is_torchs,
    }


rule(
    _CONFIG,
    name="norm_left_out_below_stage_3",
    holds="compute_grad_norm false needs stage 1 or 2.",
    key=_NORM,
    when=lambda file: file[_NORM] is False and file.stage not in (1, 2),
    says="false needs stage 1 or 2; given stage {file.stage}",
)


rule.unenforced(
    "deepspeed/runtime/zero/stage_1_and_2.py raises at start",
    name="norm_left_out_without_offload",
    holds="compute_grad_norm false does not go with offload_optimizer.",
    key=_NORM,
    when=lambda file: file[_NORM] is False and file.offloads and file.stage in (1, 2),
    says="false does not go with offload_optimizer; allowed is true",
)
rule.unenforced(
    "deepspeed/runtime/engine.py raises at start",
    name="old_stage_1_is_gone",
    holds="legacy_stage1 is off.",
    key=f"{keys.ZERO}.legacy_stage1",
    when=lambda file: file[f"{keys.ZERO}.legacy_stage1"] is True and file.stage > 0,
    says="the engine refuses it since 0.5.9; allowed is false",
)


@rule.unenforced(f"{_STAGE_3} asserts it at start")
def scattered_gradients_scale_after(file: DeepspeedView) -> Violations:
    """Under stage 3 scattered gradients are neither prescaled nor predivided."""
    if file.stage != 3 or file[_SCATTER] is False:
        return
    factor = as_number(file["gradient_predivide_factor"])
    if factor not in (None, 1):
        message = f"stage 3 scatters gradients undivided; given {factor:g}, allowed is 1"
        yield "gradient_predivide_factor", message
    if file["prescale_gradients"] is True:
        yield "prescale_gradients", "not there under stage 3; allowed is false"


rule.unenforced(
    f"{_STAGE_3} raises at start",
    name="muon_gathers_gradients",
    holds="Muon under stage 3 runs with reduce_scatter false.",
    key=_SCATTER,
    when=lambda file: file.optimizer == "muon" and file.stage == 3 and file[_SCATTER] is not False,
    says="Muon under stage 3 needs whole gradients; allowed is false",
)
rule.unenforced(
    f"{_CONFIG}; nothing tests it",
    name="secondary_copy_needs_stage_3",
    holds="zero_hpz_partition_size needs stage 3.",
    key=keys.HPZ,
    when=lambda file: file.secondary > 1 and file.stage != 3,
    says="ignored below stage 3; given stage {file.stage}",
)


@rule.unenforced(
    "deepspeed/utils/groups.py _create_zero_param_parallel_group asserts it at start",
    key=keys.HPZ,
    says="must divide the ranks; given {file.secondary} of {file.num_gpus}",
)
def secondary_copy_divides_ranks(file: DeepspeedView) -> bool:
    """zero_hpz_partition_size divides the ranks."""
    ranks = min(file.secondary, file.num_gpus)
    return ranks > 1 and file.stage == 3 and file.num_gpus % ranks > 0


rule.unenforced(
    (
        "deepspeed/utils/groups.py _create_zero_param_parallel_group numbers ranks without regard "
        "to AutoTP"
    ),
    name="secondary_copy_without_autotp",
    holds="zero_hpz_partition_size does not go with AutoTP.",
    key=keys.HPZ,
    when=lambda file: file.secondary > 1 and file.stage == 3 and file.autotp > 1,
    says="its groups of {file.secondary} neighbours would mix shards of different layers' parts; "
    "allowed with autotp_size 1; given {file.autotp}",
)
rule.unenforced(
    f"{_STAGE_3}; nothing tests it",
    name="quantised_transfers_need_stage_3",
    holds="Quantised weights and gradients of ZeRO++ need stage 3.",
    severity="warning",
    when=lambda file: [
        key
        for key in (f"{keys.ZERO}.zero_quantized_weights", f"{keys.ZERO}.zero_quantized_gradients")
        if file[key] is True and file.stage != 3
    ],
    says="ignored below stage 3; given {file.stage}",
)

"""Rules of ``rules.yaml``; of ZeRO, the parallel axes and checkpoints what it does not say."""

from planner.documents.tree import load_own
from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.settings import Refused, Rules, Violations, as_number

rule = Rules(DeepspeedView)
rule.add_table(load_own(__package__, "rules.yaml"))
_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_CHECKPOINTS = "activation_checkpointing"


@rule("deepspeed/runtime/config_utils.py")
def one_name_for_offload(file: DeepspeedView) -> Violations:
    """An old offload switch does not stand beside the section that replaced it."""
    for key, section in keys.given_twice(file.settings).items():
        yield key, f"stands beside {section}; allowed is one of them"


keys.add_leaf_modules(rule)


rule.unenforced(
    "deepspeed/runtime/zero/partition_parameters.py asserts it at start",
    name="nvme_has_a_path",
    holds="Offload to NVMe names the folder of the drives.",
    when=lambda file: [
        path
        for section in keys.OLD_SWITCHES
        if file.device(section) == "nvme" and not file[path := f"{keys.ZERO}.{section}.nvme_path"]
    ],
    says="device nvme needs the folder of the drives; given none",
)


@rule.unenforced(f"{_STAGE_3} asserts it at start")
def scattered_gradients_scale_after(file: DeepspeedView) -> Violations:
    """Under stage 3 scattered gradients are neither prescaled nor predivided."""
    if file.stage != 3 or file[f"{keys.ZERO}.reduce_scatter"] is False:
        return
    factor = as_number(file["gradient_predivide_factor"])
    if factor not in (None, 1):
        yield (
            "gradient_predivide_factor",
            f"stage 3 scatters gradients undivided; given {factor:g}, allowed is 1",
        )
    if file["prescale_gradients"] is True:
        yield "prescale_gradients", "not there under stage 3; allowed is false"


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


@rule.unenforced("our own block, for the script", key=keys.LAYERS)
def stages_have_layers(file: DeepspeedView) -> Refused:
    """training_script.layers_per_stage has a count per stage, and all layers."""
    counts, stages, layers = file[keys.LAYERS], file.stages, file.decided("model.num_layers")
    is_list = isinstance(counts, list)
    if not is_list or any(type(count) is not int for count in counts):
        return {}
    number, total = len(counts), sum(counts)
    least = min(counts, default=1)
    return {
        f"one count per stage is needed: {stages}; given {number}": number != stages,
        f"must add up to the model's {layers} layers; given {total}": layers and total != layers,
        f"every stage needs a layer; given {least}": least < 1,
    }


rule.unenforced(
    "deepspeed/runtime/engine.py raises at start",
    name="autotp_sizes_agree",
    holds="tensor_parallel.tp.tp_size is autotp_size.",
    when=lambda file: [
        key
        for key in keys.TP_SIZES
        if file.autotp > 1 and file.size(key) not in (None, 1, file.autotp)
    ],
    says="must be autotp_size {file.autotp}; given {given}",
)


@rule.unenforced("deepspeed/runtime/engine.py (0.19.8) reads none of them", severity="warning")
def sizes_take_effect(file: DeepspeedView) -> Violations:
    """A size is one that the engine acts on: autotp_size, autoep_size of enabled experts."""
    for key in keys.TP_SIZES:
        if file.autotp == 1 and (file.size(key) or 1) > 1:
            yield key, f"without effect in 0.19.8: {keys.TP} splits layers; given {file[key]}"
    if file.autoep > 1 and file[keys.EP_ON] is not True:
        yield keys.EP, f"without effect in 0.19.8 where {keys.EP_ON} is not true"


rule.unenforced(
    "deepspeed/__init__.py: the mesh of the ranks",
    name="mesh_fills_ranks",
    holds="data_parallel_size times sequence_parallel_size is the number of ranks.",
    key=keys.REPLICAS,
    when=lambda file: (
        file.size(keys.REPLICAS) is not None
        and file.size(keys.SP) is not None
        and file.replicas * file.sequence != file.num_gpus
    ),
    says=(
        f"{keys.REPLICAS} x {keys.SP} must be {{file.num_gpus}} ranks; "
        "given {given} x {file.sequence}"
    ),
)


rule.unenforced(
    "deepspeed/runtime/activation_checkpointing/checkpointing.py asserts it when configured",
    name="contiguous_checkpoints_are_split",
    holds="Contiguous checkpoints are partitioned, and their number is given.",
    key=f"{_CHECKPOINTS}.contiguous_memory_optimization",
    on=f"{_CHECKPOINTS}.contiguous_memory_optimization",
    when=lambda file: {
        "needs partition_activations true; given without": (
            file[f"{_CHECKPOINTS}.partition_activations"] is not True
        ),
        "needs number_checkpoints; given without": (
            file.size(f"{_CHECKPOINTS}.number_checkpoints") is None
        ),
    },
)

"""The section ``deepspeed_config``: ZeRO 0 to 3 with offload."""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.accelerate import parallelism
from planner.formats.accelerate.section import Line, Section
from planner.formats.format import Value
from planner.formats.refusals import beyond, unlike_layers, wrong_precision
from planner.formats.settings import Settings, decided, whole, word
from planner.spec.strategy import OFFLOAD_CODES, Strategy
from planner.spec.traits import TraitValue

STAGE = "deepspeed_config.zero_stage"
STEPS = "deepspeed_config.gradient_accumulation_steps"
OPTIMIZER = "deepspeed_config.offload_optimizer_device"
PARAM = "deepspeed_config.offload_param_device"
FILE = "deepspeed_config.deepspeed_config_file"
CLIPPING = "deepspeed_config.gradient_clipping"
INIT = "deepspeed_config.zero3_init_flag"
OWNED = (STAGE, STEPS, OPTIMIZER, PARAM)
NVME_PATH = "ACCELERATE_DEEPSPEED_OFFLOAD_{}_NVME_PATH"
_PIPELINE = dict.fromkeys(("pp", "vpp", "schedule"), "the section has no pipeline")
CANNOT = {
    **_PIPELINE,
    "tp": "the section has no key for AutoTP",
    "cp": "the section runs no context parallelism",
    "ep": "the section has no expert parallelism",
    "dp_replicate": "the section has no key for hierarchical partitions",
    "sequence_parallel": "the section has no sequence parallelism",
    "offload_percent": "the section has no key for a part",
}
DEVICES = {
    "none": ("none", "none"),
    "optimizer:host": ("cpu", "none"),
    "optimizer+parameters:host": ("cpu", "cpu"),
    "optimizer:nvme": ("nvme", "none"),
    "optimizer+parameters:nvme": ("nvme", "nvme"),
}
"""Devices of the optimizer's states and of the parameters, by OFFLOAD_CODES."""
assert tuple(DEVICES) == OFFLOAD_CODES


SUPPORT: Mapping[str, TraitValue] = {
    "tp": False,
    "pp": False,
    "cp": False,
    "ep": False,
    "offload_percents": (100,),
    "partial_offload_zero_stages": (),
}
"""What the section can say of DeepSpeed."""


def problems(context: Context) -> Iterator[str]:
    """What the section has no key for whatever the layout."""
    if context.traits.name == "deepspeed" and context.traits.states.zero3_secondary_weight_bytes:
        yield f"profile {context.traits.profile}: {CANNOT['dp_replicate']}"


def refusals(context: Context, strategy: Strategy) -> Iterator[str]:
    """Why the section cannot carry a strategy."""
    yield from problems(context)
    yield from wrong_precision(context, ("bf16", "fp16"))
    yield from layout_refusals(strategy)


def layout_refusals(strategy: Strategy) -> Iterator[str]:
    """Why the section cannot carry a layout, whatever the job."""
    yield from beyond(strategy, CANNOT)
    yield from unlike_layers(strategy)
    optimizer, parameters = DEVICES[strategy.offload]
    if parameters != "none" and strategy.zero_stage < 3:
        yield f"offload {strategy.offload}: parameters need zero_stage 3"
    elif optimizer != "none" and strategy.zero_stage < 1:
        yield f"offload {strategy.offload}: needs zero_stage 1 or more"


def lines(_: Context, strategy: Strategy) -> Iterator[Line]:
    """What the section is set to."""
    optimizer, parameters = DEVICES[strategy.offload]
    steps = strategy.num_micro_batches
    yield Line(key=STAGE, value=strategy.zero_stage, why=f"zero_stage {strategy.zero_stage}")
    yield Line(key=STEPS, value=steps, why=f"{steps} micro-batches per iteration")
    yield Line(key=OPTIMIZER, value=optimizer, why=f"offload {strategy.offload}")
    yield Line(key=PARAM, value=parameters, why=f"offload {strategy.offload}")
    yield Line(key=CLIPPING, value=1.0, why="clipping as the planner's time has it")
    if strategy.zero_stage == 3:
        yield Line(key=INIT, value=True, why="weights are split while the model is made")


def decisions(settings: Settings) -> dict[str, Value]:
    """What the section decides; the file it may name decides instead, and is not read."""
    found = parallelism.decisions(settings)
    if whole(settings, parallelism.size_key("sp"), 1) == 1:
        found.pop("dp", None)
    if "dp" not in found and (processes := whole(settings, "num_processes", -1)) > 0:
        found["dp"] = decided(settings, "num_processes", processes)
    if FILE in settings:
        return found | {"zero_stage": decided(settings, FILE, None)}
    found["zero_stage"] = decided(settings, STAGE, whole(settings, STAGE, 2))
    if STEPS in settings:
        found["num_micro_batches"] = decided(settings, STEPS, whole(settings, STEPS, 1))
    code = _offload(settings)
    if code not in (None, "none"):
        found["offload"] = decided(settings, OPTIMIZER, code)
    return found


def _offload(settings: Settings) -> str | None:
    """What DeepSpeed moves: states that a stage does not split stay, whatever the file says."""
    stage = whole(settings, STAGE, 2)
    optimizer = word(settings, OPTIMIZER, "none").lower() if stage > 0 else "none"
    parameters = word(settings, PARAM, "none").lower() if stage > 2 else "none"
    given = (optimizer, parameters)
    return next((code for code, known in DEVICES.items() if known == given), None)


def environment(_: Context, strategy: Strategy) -> dict[str, str]:
    """Paths for NVMe: ``accelerate launch`` does not pass those of the file on."""
    devices = zip(("OPTIMIZER", "PARAM"), DEVICES[strategy.offload], strict=True)
    return {NVME_PATH.format(of): "${NVME_PATH}" for of, device in devices if device == "nvme"}


DEEPSPEED = Section(
    title="deepspeed_config",
    distributed_type="DEEPSPEED",
    owned=OWNED,
    refusals=refusals,
    lines=lines,
    decisions=decisions,
    environment=environment,
    variables={"NVME_PATH": "folder on a local NVMe drive that DeepSpeed offloads to"},
)

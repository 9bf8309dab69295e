"""How a plan's decisions stand in the section of DeepSpeed."""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.accelerate import keys
from planner.formats.accelerate.section import MESH, Section, of_mesh, top
from planner.formats.decision import Decision, Line, beyond, line, of_key, unlike_layers
from planner.formats.deepspeed.keys import CODES, DEVICES
from planner.formats.format import Value
from planner.formats.settings import Settings, decided, given, whole, word
from planner.spec.cluster import PROCESSOR
from planner.spec.strategy import OFFLOAD_CODES, Strategy
from planner.spec.traits import TraitValue

assert tuple(DEVICES) == OFFLOAD_CODES
_SIXTEEN_BITS = ("bf16", "fp16")
_NO_REPLICAS = "the section has no key for hierarchical partitions"
_NO_PIPELINE = dict.fromkeys(("pp", "vpp", "schedule"), "the section has no pipeline")
_NOT_DEEPSPEED = {
    **_NO_PIPELINE,
    "tp": "the section has no key for AutoTP",
    "cp": "the section runs no context parallelism",
    "ep": "the section has no expert parallelism",
    "dp_replicate": _NO_REPLICAS,
    "sequence_parallel": "the section has no sequence parallelism",
    "offload_percent": "the section has no key for a part",
}
DEEPSPEED_SUPPORT: Mapping[str, TraitValue] = {
    "tp": False,
    "pp": False,
    "cp": False,
    "ep": False,
    "offload_percents": (100,),
    "partial_offload_zero_stages": (),
}
"""What the section can say of DeepSpeed."""


def no_profile(context: Context) -> Iterator[str]:
    """What DeepSpeed's section has no key for whatever the layout."""
    if context.traits.name == "deepspeed" and context.traits.states.zero3_secondary_weight_bytes:
        yield f"profile {context.traits.profile}: {_NO_REPLICAS}"


def no_processors(context: Context) -> Iterator[str]:
    """Where accelerators are processors AcceleratorState keeps to whole replicas."""
    if context.cluster.accelerator.vendor == PROCESSOR:
        yield "accelerators are processors: Accelerate trains whole replicas on them (profile ddp)"


def no_deepspeed(context: Context, strategy: Strategy) -> Iterator[str]:
    """Why DeepSpeed's section cannot carry a layout."""
    yield from no_processors(context)
    yield from beyond(strategy, _NOT_DEEPSPEED)
    yield from unlike_layers(strategy)
    optimizer, parameters = DEVICES[strategy.offload]
    if parameters != "none" and strategy.zero_stage < 3:
        yield f"offload {strategy.offload}: parameters need zero_stage 3"
    elif optimizer != "none" and strategy.zero_stage < 1:
        yield f"offload {strategy.offload}: needs zero_stage 1 or more"


def _of_stage(settings: Settings) -> Iterator[tuple[str, Value]]:
    """The file that the section may name decides instead, and is not read."""
    if keys.FILE in settings:
        yield "zero_stage", decided(settings, keys.FILE, None)
    else:
        yield "zero_stage", decided(settings, keys.STAGE, whole(settings, keys.STAGE, 2))


def _of_steps(settings: Settings) -> Iterator[tuple[str, Value]]:
    """Where it is missing the script says it: one step is stated too."""
    yield "_steps", decided(settings, keys.STEPS, given(settings, keys.STEPS))
    if keys.STEPS in settings and keys.FILE not in settings:
        yield "num_micro_batches", decided(settings, keys.STEPS, whole(settings, keys.STEPS, 1))


def _to_devices(_: Context, strategy: Strategy) -> Iterator[Line]:
    names = (keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE)
    for key, device in zip(names, DEVICES[strategy.offload], strict=True):
        yield Line(key=key, value=device, why=f"offload {strategy.offload}")


def _of_devices(settings: Settings) -> Iterator[tuple[str, Value]]:
    """What DeepSpeed moves: states that a stage does not split stay, whatever the file says."""
    stage = whole(settings, keys.STAGE, 2)
    optimizer = word(settings, keys.OPTIMIZER_DEVICE, "none").lower() if stage > 0 else "none"
    parameters = word(settings, keys.PARAM_DEVICE, "none").lower() if stage > 2 else "none"
    code = CODES.get((optimizer, parameters))
    if code is None:
        yield "_unknown", decided(settings, keys.OPTIMIZER_DEVICE, (optimizer, parameters))
    if code not in (None, "none") and keys.FILE not in settings:
        yield "offload", decided(settings, keys.OPTIMIZER_DEVICE, code)


def _nvme_paths(_: Context, strategy: Strategy) -> dict[str, str]:
    """Paths for NVMe: ``accelerate launch`` does not pass those of the file on."""
    devices = zip(("OPTIMIZER", "PARAM"), DEVICES[strategy.offload], strict=True)
    return {keys.NVME_PATH.format(of): "${NVME_PATH}" for of, where in devices if where == "nvme"}


DEEPSPEED = Section(
    title="deepspeed_config",
    distributed_type="DEEPSPEED",
    table=(
        *top("deepspeed_config", "DEEPSPEED", _SIXTEEN_BITS),
        Decision(
            names=("zero_stage",),
            keys=(keys.STAGE,),
            to=lambda _, s: line(keys.STAGE, s.zero_stage, f"zero_stage {s.zero_stage}"),
            of=_of_stage,
            cannot=lambda context, s: (*no_profile(context), *no_deepspeed(context, s)),
        ),
        Decision(
            names=("num_micro_batches",),
            keys=(keys.STEPS,),
            to=lambda _, s: line(
                keys.STEPS,
                s.num_micro_batches,
                f"{s.num_micro_batches} micro-batches per iteration",
            ),
            of=_of_steps,
        ),
        Decision(
            names=("offload",),
            keys=(keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE),
            to=_to_devices,
            of=_of_devices,
        ),
        of_key(
            "",
            keys.CLIPPING,
            lambda *_: 1.0,
            "clipping as the planner's time has it",
            is_default=True,
        ),
        of_key(
            "",
            keys.INIT,
            lambda _, s: True if s.zero_stage == 3 else None,
            "weights are split while the model is made",
            is_default=True,
        ),
        Decision(names=MESH.names, keys=MESH.keys, of=of_mesh),
    ),
    environment=_nvme_paths,
    variables={"NVME_PATH": "folder on a local NVMe drive that DeepSpeed offloads to"},
)

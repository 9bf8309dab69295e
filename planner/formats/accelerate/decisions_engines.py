"""How a plan's decisions stand in the sections of other engines: DeepSpeed and Megatron-LM.

Two defaults of accelerate/utils/dataclasses.py MegatronLMPlugin are no neutral ones: without its
key context parallelism is 2, and every layer is recomputed in full. Both keys are always written.
"""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.accelerate import keys
from planner.formats.accelerate.section import MESH, Section, of_mesh, recomputes_all, top
from planner.formats.decision import Decision, Line, line, of_key, switched
from planner.formats.deepspeed.keys import CODES, DEVICES
from planner.formats.format import ALL, Value
from planner.formats.refusals import beyond, unlike_layers, words, wrong_precision
from planner.formats.settings import Settings, decided, flag, given, whole, word
from planner.spec.cluster import PROCESSOR
from planner.spec.strategy import OFFLOAD_CODES, PLACEMENT_NAMES, Strategy
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
_NOT_MEGATRON = {
    "vpp": "the section has no key for model chunks",
    "schedule": "Megatron-LM runs 1F1B here",
    "cp": "Accelerate counts data parallelism without it, so the batch would grow",
    "dp_replicate": "the section has no key for replicas of the optimizer",
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
MEGATRON_SUPPORT: Mapping[str, TraitValue] = {
    "zero_stages": (0, 1),
    "vpp": False,
    "cp": False,
    "hybrid_sharding": False,
    "offload_percents": (100,),
    "partial_offload_zero_stages": (),
    "placements": PLACEMENT_NAMES[:1],
    "policies": ("none", "full"),
    "schedules": ("1f1b",),
    "uneven_stages": False,
}
"""What the section can say of Megatron-LM; that the last stage may differ is not searched."""


def no_profile(context: Context) -> Iterator[str]:
    """What DeepSpeed's section has no key for whatever the layout."""
    if context.traits.name == "deepspeed" and context.traits.states.zero3_secondary_weight_bytes:
        yield f"profile {context.traits.profile}: {_NO_REPLICAS}"


def no_precision(context: Context) -> Iterator[str]:
    """What Megatron-LM's section cannot say whatever the layout."""
    yield from wrong_precision(context, _SIXTEEN_BITS)


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


def _no_megatron(context: Context, strategy: Strategy) -> Iterator[str]:
    yield from no_processors(context)
    yield from beyond(strategy, _NOT_MEGATRON)
    if strategy.zero_stage > 1:
        yield f"zero_stage {strategy.zero_stage}: the distributed optimizer is stage 1"
    if strategy.offload not in ("none", "optimizer:host"):
        yield f"offload {strategy.offload}: the section offloads the optimizer to the host only"
    if strategy.pp > 1 and strategy.dp > 1 and strategy.placement != PLACEMENT_NAMES[0]:
        yield f"placement {strategy.placement}: the section has no key for the order of the axes"
    if len(set(strategy.layers_per_stage[:-1])) > 1:
        yield f"layers_per_stage {words(strategy.layers_per_stage)}: only the last may differ"
    selective, full, offloaded = strategy.policy_counts
    if any(selective):
        yield f"selective_layers_per_stage {words(selective)}: Accelerate always gives a method"
    if len(set(full)) > 1 and not recomputes_all(strategy):
        yield f"recompute_layers_per_stage {words(full)}: one number holds for all stages"
    if any(offloaded):
        yield f"offloaded_layers_per_stage {words(offloaded)}: the section has no key for it"


def _of_context(settings: Settings) -> Iterator[tuple[str, Value]]:
    """And what is left of the processes for data parallelism."""
    cp, processes = whole(settings, keys.CP, 2), whole(settings, keys.PROCESSES, -1)
    if cp != 1:
        yield "cp", decided(settings, keys.CP, cp)
    model = whole(settings, keys.TP, 1) * whole(settings, keys.PP, 1) * cp
    if processes > 0 and model > 0 and processes % model == 0:
        yield "dp", decided(settings, keys.PROCESSES, processes // model)


def _of_etp(settings: Settings) -> Iterator[tuple[str, Value]]:
    """Where it is missing it is that of the other layers."""
    etp = decided(settings, keys.ETP, whole(settings, keys.ETP, whole(settings, keys.TP, 1)))
    yield "_etp", etp
    if keys.ETP in settings:
        yield "etp", etp


def _to_sequence(_: Context, strategy: Strategy) -> tuple[Line, ...]:
    splits = strategy.sequence_parallel
    return line(keys.SEQUENCE, splits, "norms split over tp" if splits else "not split")


def _to_zero(_: Context, strategy: Strategy) -> tuple[Line, ...]:
    return line(keys.ZERO, strategy.zero_stage == 1, f"zero_stage {strategy.zero_stage}")


def _to_recomputation(_: Context, strategy: Strategy) -> Iterator[Line]:
    yield Line(key=keys.GRANULARITY, value="full", why="with the next two keys")
    if recomputes_all(strategy):
        yield Line(key=keys.METHOD, value="uniform", why="every layer is recomputed")
        yield Line(key=keys.LAYERS, value=1, why="layer by layer")
    else:
        full = strategy.recompute_layers_per_stage[0]
        yield Line(key=keys.METHOD, value="block", why="the first layers of every stage")
        yield Line(key=keys.LAYERS, value=full, why=f"{full} layers of every stage are recomputed")


def _of_recomputation(settings: Settings) -> Iterator[tuple[str, Value]]:
    layers, pp = whole(settings, keys.LAYERS, 1), max(whole(settings, keys.PP, 1), 1)
    if word(settings, keys.METHOD, "uniform") not in ("uniform", "block"):
        yield "_unknown", settings[keys.METHOD]
    if word(settings, keys.GRANULARITY, "full") == "selective":
        yield "selective_layers_per_stage", decided(settings, keys.GRANULARITY, ALL)
    elif word(settings, keys.METHOD, "uniform") == "uniform":
        yield "recompute_layers_per_stage", decided(settings, keys.METHOD, ALL)
    elif layers > 0 and pp <= 10**4:
        yield "recompute_layers_per_stage", decided(settings, keys.LAYERS, (layers,) * pp)


def _to_offload(_: Context, strategy: Strategy) -> Iterator[Line]:
    offloads = strategy.offload != "none"
    yield from line(keys.CPU_OFFLOAD, True, f"offload {strategy.offload}", when=offloads)
    yield from line(keys.PRECISE, True, "Megatron offloads this optimizer only", when=offloads)


def _of_offload(settings: Settings) -> Iterator[tuple[str, Value]]:
    if flag(settings, keys.CPU_OFFLOAD):
        yield "offload", decided(settings, keys.CPU_OFFLOAD, "optimizer:host")
        yield "_precise", decided(settings, keys.PRECISE, flag(settings, keys.PRECISE))


MEGATRON = Section(
    title="megatron_lm_config",
    distributed_type="MEGATRON_LM",
    table=(
        *top("megatron_lm_config", "MEGATRON_LM", _SIXTEEN_BITS),
        of_key(
            "tp", keys.TP, lambda _, s: s.tp, "tensor parallelism, innermost", cannot=_no_megatron
        ),
        of_key("pp", keys.PP, lambda _, s: s.pp, "pipeline stages"),
        Decision(
            names=("cp", "dp"),
            keys=(keys.CP,),
            to=lambda *_: line(keys.CP, 1, "without this key Accelerate takes 2"),
            of=_of_context,
        ),
        of_key("ep", keys.EP, lambda _, s: s.ep, "expert parallelism"),
        of_key(
            "etp",
            keys.ETP,
            lambda _, s: s.etp if s.etp != s.tp else None,
            "tensor parallelism of experts",
            of=_of_etp,
        ),
        of_key(
            "num_micro_batches",
            keys.MICRO_BATCHES,
            lambda _, s: s.num_micro_batches,
            "micro-batches per iteration",
            of=lambda settings: [
                (
                    "num_micro_batches",
                    decided(settings, keys.MICRO_BATCHES, whole(settings, keys.MICRO_BATCHES, 1)),
                )
            ],
        ),
        Decision(
            names=("sequence_parallel",),
            keys=(keys.SEQUENCE,),
            to=_to_sequence,
            of=switched("sequence_parallel", keys.SEQUENCE, True),
        ),
        Decision(
            names=("zero_stage",),
            keys=(keys.ZERO,),
            to=_to_zero,
            of=lambda settings: [
                ("zero_stage", decided(settings, keys.ZERO, int(flag(settings, keys.ZERO))))
            ],
        ),
        Decision(
            names=("recompute_layers_per_stage", "selective_layers_per_stage"),
            keys=(keys.GRANULARITY, keys.METHOD, keys.LAYERS),
            to=_to_recomputation,
            of=_of_recomputation,
        ),
        Decision(
            names=(),
            keys=(keys.LAST,),
            to=lambda _, s: line(
                keys.LAST,
                s.layers_per_stage[-1],
                f"layers {words(s.layers_per_stage)}",
                when=len(set(s.layers_per_stage)) > 1,
            ),
        ),
        Decision(
            names=("offload",),
            keys=(keys.CPU_OFFLOAD, keys.PRECISE),
            to=_to_offload,
            of=_of_offload,
        ),
    ),
    environment=lambda *_: {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
)
"""The variable is what Megatron-LM needs where tp is above 1 on GPUs before Blackwell."""

"""How a plan's decisions stand in Accelerate's file: under FSDP, as whole replicas, by DeepSpeed.

Rows and refusals that TrainingArguments share take the keys that they stand under.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.accelerate import keys
from planner.formats.adapters import unnamed_targets
from planner.formats.decision import (
    KEPT,
    Cannot,
    Decision,
    Line,
    Of,
    Table,
    beyond,
    derived,
    holding,
    line,
    of_key,
    reasons,
    says,
    several,
    stated,
    switched,
    unlike_layers,
    wrong_precision,
)
from planner.formats.deepspeed.keys import CODES, DEVICES
from planner.formats.format import ALL, Value
from planner.formats.settings import Settings, as_flag, decided, flag, given, whole, word
from planner.spec.cluster import PROCESSOR
from planner.spec.strategy import OFFLOAD_CODES, Strategy
from planner.spec.traits import TraitValue

assert tuple(DEVICES) == OFFLOAD_CODES
PRECISIONS = ("bf16", "fp16", "fp8", "fp32")
_FP8 = "fp8_config.fp8_backend"
_NO_REPLICAS = "the section has no key for hierarchical partitions"
_NO_PIPELINE = ("pp", "vpp", "schedule")
_CANNOT = {
    **dict.fromkeys(_NO_PIPELINE, "ParallelismConfig trains no pipeline"),
    "ep": "ParallelismConfig has no expert parallelism",
    "sequence_parallel": "transformers' tensor-parallel plans split no norms",
    "offload_percent": "offloading takes all states or none",
}
_NOT_REPLICATED = {
    **_CANNOT,
    "cp": "Accelerate runs context parallelism under FSDP2 only",
    "offload": "without a section nothing is offloaded",
}
_NOT_FSDP1 = dict.fromkeys(("tp", "cp", "dp_replicate"), "FSDP1 has no mesh; fsdp_version 2 has")
_NOT_DEEPSPEED = {
    **dict.fromkeys(_NO_PIPELINE, "the section has no pipeline"),
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
OFFLOADED = "optimizer+parameters:host"
RESHARDING = {
    True: "zero_stage {s.zero_stage}: freed after forward and gathered again",
    False: "zero_stage {s.zero_stage}: kept until backward",
}
"""What becomes of gathered weights."""
_FSDP1_STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
_FSDP1_STAGES |= {"HYBRID_SHARD_ZERO2": 2, "1": 3, "2": 2, "3": 0, "4": 3, "5": 2}
SPLIT_STAGE = 2
"""What a plan calls tensor parallelism alone: the lowest stage of this framework's traits. With
one rank per shard of the model all stages are one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """A way Accelerate runs a layout, by its ``distributed_type``."""

    title: str
    distributed_type: str
    table: Table
    environment: Callable[[Context, Strategy], dict[str, str]]
    variables: Mapping[str, str] = field(default_factory=dict)


def recomputes_all(strategy: Strategy) -> bool:
    """Every layer is recomputed in full."""
    return strategy.recompute == "full"


def num_machines(context: Context, strategy: Strategy) -> int:
    """Nodes of a plan."""
    return -(-strategy.num_gpus // context.cluster.node.num_accelerators)


def no_profile(context: Context) -> Iterator[str]:
    """What DeepSpeed's section has no key for whatever the layout."""
    if context.traits.name == "deepspeed" and context.traits.states.zero3_secondary_weight_bytes:
        yield f"profile {context.traits.profile}: {_NO_REPLICAS}"


def _no_processors(context: Context, _: Strategy) -> Iterator[str]:
    """Where accelerators are processors AcceleratorState keeps to whole replicas."""
    if context.cluster.accelerator.vendor == PROCESSOR:
        yield "accelerators are processors: Accelerate trains whole replicas on them (profile ddp)"


def _no_fsdp(_: Context, strategy: Strategy) -> Iterator[str]:
    stage, offload, replicas = strategy.zero_stage, strategy.offload, strategy.dp_replicate
    shard = strategy.dp // replicas
    is_alone = strategy.num_gpus > 1 and shard * strategy.cp == 1
    yield from beyond(strategy, _CANNOT)
    yield from unlike_layers(strategy)
    yield from holding(
        (
            stage not in (2, 3),
            f"zero_stage {stage}: FSDP2 keeps gathered weights (2) or frees them (3)",
        ),
        (
            offload not in ("none", OFFLOADED),
            f"offload {offload}: FSDP2 offloads parameters with their states, or nothing",
        ),
        (is_alone, f"dp_shard {shard}, cp {strategy.cp}: FSDP2 needs ranks to shard over"),
        (
            not is_alone and replicas > 1 and shard == 1,
            f"dp_replicate {replicas}: with tp or cp, dp_shard must be above 1",
        ),
    )


no_fsdp: Cannot = several(_no_processors, _no_fsdp)
"""Why FSDP2 cannot carry a layout."""


def no_replicas(_: Context, strategy: Strategy) -> Iterator[str]:
    """Why plain replicas, or tensor parallelism alone, cannot carry a layout, whatever the job."""
    tp, dp, stage, replicas = strategy.tp, strategy.dp, strategy.zero_stage, strategy.dp_replicate
    is_mixed = tp > 1 and dp > 1
    yield from beyond(strategy, _NOT_REPLICATED)
    yield from unlike_layers(strategy)
    yield from holding(
        (
            replicas not in (1, dp),
            f"dp_replicate {replicas}: without a section nothing is sharded",
        ),
        (is_mixed, f"tp {tp} with dp {dp}: replicas of a split model need FSDP2"),
        (
            not is_mixed and stage != (SPLIT_STAGE if tp > 1 else 0),
            f"zero_stage {stage}: without a section nothing is sharded",
        ),
    )


def _no_deepspeed(_: Context, strategy: Strategy) -> Iterator[str]:
    offload, (optimizer, parameters) = strategy.offload, DEVICES[strategy.offload]
    keeps = parameters != "none" and strategy.zero_stage < 3
    yield from beyond(strategy, _NOT_DEEPSPEED)
    yield from unlike_layers(strategy)
    yield from holding(
        (keeps, f"offload {offload}: parameters need zero_stage 3"),
        (
            not keeps and optimizer != "none" and strategy.zero_stage < 1,
            f"offload {offload}: needs zero_stage 1 or more",
        ),
    )


no_deepspeed: Cannot = several(_no_processors, _no_deepspeed)
"""Why DeepSpeed's section cannot carry a layout."""


def steps_row(key: str, *elsewhere: str) -> Decision:
    """Micro-batches per iteration, where no key ``elsewhere`` names a file that says them.

    Where the key is missing, script or job say it: one step is stated too.
    """

    def read(settings: Settings) -> int | None:
        is_own = key in settings and not settings.keys() & {*elsewhere}
        return whole(settings, key, 1) if is_own else None

    return of_key(
        "num_micro_batches",
        key,
        lambda _, s: s.num_micro_batches,
        "{s.num_micro_batches} micro-batches per iteration",
        of=several(
            derived("_steps", key, lambda settings: given(settings, key)),
            derived("num_micro_batches", key, read),
        ),
    )


def stage_row(key: str, of: Of, cannot: Cannot) -> Decision:
    """DeepSpeed's stage."""
    why = "zero_stage {s.zero_stage}"
    return of_key("zero_stage", key, lambda _, s: s.zero_stage, why, of=of, cannot=cannot)


def devices_row(optimizer: str, parameters: str, stage_of: Callable[[Settings], int]) -> Decision:
    """Where DeepSpeed moves states; what a stage does not split stays, whatever the file says."""

    def of(settings: Settings) -> Iterator[tuple[str, Value]]:
        stage = stage_of(settings)
        states = word(settings, optimizer, "none").lower() if stage > 0 else "none"
        weights = word(settings, parameters, "none").lower() if stage > 2 else "none"
        code = CODES.get((states, weights))
        if code is None:
            yield "_unknown", decided(settings, optimizer, (states, weights))
        elif code != "none":
            yield "offload", decided(settings, optimizer, code)

    why = "offload {s.offload}"
    return Decision(
        names=("offload",),
        keys=(optimizer, parameters),
        to=several(
            says(optimizer, lambda _, s: DEVICES[s.offload][0], why),
            says(parameters, lambda _, s: DEVICES[s.offload][1], why),
        ),
        of=of,
    )


def wrap_row(key: str) -> Decision:
    """Needed beside FSDP, and no decision: without it the model is one unit."""
    why = "one unit per transformer block"
    return of_key("", key, lambda *_: "TRANSFORMER_BASED_WRAP", why, is_default=True)


def others(sections: Sequence[Section], lines: Iterable[Line]) -> Decision:
    """Keys that carry decisions in some sections, not all, and that the lines do not have: they go.

    What stands in every section is its own rows' to change.
    """
    tables = [{key for row in each.table for key in row.keys} for each in sections]
    rows = [row for each in sections for row in each.table]
    kept = {key for row in rows for key in row.off if row.off[key] is KEPT}
    kept |= set.intersection(*tables) | {line.key for line in lines}
    return Decision(names=(), keys=tuple(sorted(set.union(*tables) - kept)))


def _precision(settings: Settings) -> str | None:
    """Accelerate's word for fp32 is ``no``, which YAML reads as false without quotes."""
    stated = word(settings, keys.PRECISION).lower()
    precision = "fp32" if stated in ("no", "false") else stated
    return precision if precision in PRECISIONS else None


def top(title: str, kind: str, precisions: tuple[str, ...] = PRECISIONS) -> Table:
    """The rows of the top level, where a section of a type carries the plan."""

    def to_type(_: Context, strategy: Strategy) -> Iterator[Line]:
        is_plain = kind == "MULTI_GPU" and strategy.tp == 1
        value = "NO" if is_plain and strategy.num_gpus == 1 else kind
        why = "whole replicas, no section" if is_plain else f"{title} carries the plan"
        environment = ("compute_environment", "LOCAL_MACHINE", "no SageMaker")
        yield Line(key=environment[0], value=environment[1], why=environment[2], is_default=True)
        yield Line(key=keys.TYPE, value=value, why=why)

    def to_processes(context: Context, strategy: Strategy) -> Iterator[Line]:
        machines, gpus = num_machines(context, strategy), strategy.num_gpus
        yield Line(key=keys.MACHINES, value=machines, why=f"{machines} node(s)")
        why = f"{gpus} accelerators in all, one process each"
        yield Line(key=keys.PROCESSES, value=gpus, why=why)

    return (
        Decision(
            names=("_type",),
            keys=("compute_environment", keys.TYPE),
            to=to_type,
            of=derived(
                "_type",
                keys.TYPE,
                lambda found: keys.type_of(found) if keys.TYPE in found else None,
            ),
            off={"compute_environment": KEPT},
        ),
        Decision(
            names=("num_gpus", "_machines"),
            keys=(keys.MACHINES, keys.PROCESSES),
            to=to_processes,
            of=several(
                derived("_machines", keys.MACHINES, lambda found: whole(found, keys.MACHINES, 1)),
                derived("num_gpus", keys.PROCESSES, lambda found: keys.num_started(found) or None),
            ),
        ),
        Decision(
            names=("precision",),
            keys=(keys.PRECISION, _FP8),
            to=several(
                says(
                    keys.PRECISION,
                    lambda c, _: "no" if c.job.precision == "fp32" else c.job.precision,
                    "products in {c.job.precision}",
                ),
                says(
                    _FP8,
                    lambda c, _: "AO" if c.job.precision == "fp8" else None,
                    "torchao, one scale per tensor",
                    is_default=True,
                ),
            ),
            of=derived("precision", keys.PRECISION, _precision),
            cannot=lambda context, _: wrong_precision(context, precisions),
            off={_FP8: KEPT},
        ),
        of_key(
            "",
            "same_network",
            lambda c, s: num_machines(c, s) > 1 or None,
            "ranks meet at the first node's address",
            is_default=True,
        ),
        of_key(
            "",
            keys.MULTINODE,
            lambda c, s: "standard" if kind == "DEEPSPEED" and num_machines(c, s) > 1 else None,
            "every node starts its own processes",
            is_default=True,
        ),
    )


def to_mesh(_: Context, strategy: Strategy) -> Iterator[Line]:
    """The mesh of a strategy; none for a single process."""
    replicas, shard = strategy.dp_replicate, strategy.dp // strategy.dp_replicate
    sizes = {
        "dp_replicate": (replicas, f"{replicas} replica(s) of the sharding group"),
        "dp_shard": (shard, f"states are split over {shard} data-parallel ranks"),
        "tp": (strategy.tp, f"weights split over {strategy.tp} rank(s), innermost in the mesh"),
        "cp": (strategy.cp, f"sequence split over {strategy.cp} rank(s)"),
    }
    for name, (size, why) in sizes.items():
        yield from line(keys.size_key(name), size, why, when=strategy.num_gpus > 1)


def _of_mesh(settings: Settings) -> Iterator[tuple[str, Value]]:
    """Degrees the mesh decides; dp takes every process where none, or DeepSpeed, divides them."""
    sizes, processes = keys.sizes(settings), keys.num_started(settings)
    is_ulysses, outside = sizes["sp"] > 1, sizes["sp"] * sizes["tp"]
    split = "sp" if is_ulysses else "cp"
    degrees = {"tp": "tp", "dp_replicate": "dp_replicate", "cp": split, "_ulysses": "sp"}
    for name, key in degrees.items():
        if sizes[key] != 1:
            yield name, decided(settings, keys.size_key(key), sizes[key])
    is_sharded = keys.has_mesh(settings) and keys.type_of(settings) != "DEEPSPEED"
    if is_ulysses and processes and processes % outside == 0:
        yield "dp", decided(settings, keys.PROCESSES, processes // outside)
    elif is_sharded or is_ulysses:
        dp = sizes["dp_replicate"] * sizes["dp_shard"]
        yield "dp", decided(settings, keys.size_key("dp_shard"), dp)
    elif processes:
        yield "dp", decided(settings, keys.PROCESSES, processes)


MESH = Decision(
    names=("tp", "cp", "dp_replicate", "dp"),
    keys=(*map(keys.size_key, keys.SIZES), f"{keys.MESH}cp_backend"),
    to=to_mesh,
    of=_of_mesh,
)


def _accumulation(_: Context, strategy: Strategy) -> dict[str, str]:
    """Accumulation, which the file has no key for: Accelerator reads it from here."""
    return {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(strategy.num_micro_batches)}


def _nvme_paths(_: Context, strategy: Strategy) -> dict[str, str]:
    """Paths for NVMe: ``accelerate launch`` does not pass those of the file on."""
    devices = zip(("OPTIMIZER", "PARAM"), DEVICES[strategy.offload], strict=True)
    return {keys.NVME_PATH.format(of): "${NVME_PATH}" for of, where in devices if where == "nvme"}


def _of_strategy(settings: Settings) -> Iterator[tuple[str, Value]]:
    """FSDP1 also takes its strategy under the name of FSDP2's flag."""
    is_other = keys.STRATEGY not in settings and keys.RESHARD in settings
    key = keys.RESHARD if is_other else keys.STRATEGY
    stage = _FSDP1_STAGES.get(word(settings, key, "FULL_SHARD").upper(), 3)
    yield "zero_stage", decided(settings, key, stage)


def _of_replicas(settings: Settings) -> Iterator[tuple[str, Value]]:
    found = {name: value.value for name, value in _of_mesh(settings)}
    stage = SPLIT_STAGE if "tp" in found and found.get("dp") == 1 else 0
    if keys.TYPE in settings:
        yield "zero_stage", decided(settings, keys.TYPE, stage)


def _of_stage(settings: Settings) -> Iterator[tuple[str, Value]]:
    """The file that the section may name decides instead, and is not read."""
    has_file = keys.FILE in settings
    stage = None if has_file else whole(settings, keys.STAGE, 2)
    yield "zero_stage", decided(settings, keys.FILE if has_file else keys.STAGE, stage)


_STATES = (
    of_key(
        "offload",
        keys.OFFLOAD,
        lambda _, s: s.offload != "none",
        {
            True: "parameters, gradients and states live on the host between uses",
            False: "parameters, gradients and states live on the accelerators",
        },
        of=switched("offload", keys.OFFLOAD, OFFLOADED),
    ),
    wrap_row(keys.WRAP),
    of_key(
        "recompute_layers_per_stage",
        keys.CHECKPOINTING,
        lambda _, s: recomputes_all(s),
        {True: "every block is recomputed in backward", False: "no block is recomputed"},
        of=switched("recompute_layers_per_stage", keys.CHECKPOINTING, ALL),
    ),
)
FSDP = Section(
    title="fsdp_config",
    distributed_type="FSDP",
    table=(
        *top("fsdp_config", "FSDP"),
        of_key(
            "_version",
            keys.VERSION,
            lambda *_: 2,
            "FSDP2 shards parameter by parameter",
            of=derived("_version", keys.VERSION, lambda settings: whole(settings, keys.VERSION, 1)),
            cannot=no_fsdp,
        ),
        of_key(
            "zero_stage",
            keys.RESHARD,
            lambda _, s: s.zero_stage == 3,
            RESHARDING,
            of=several(
                derived(
                    "zero_stage",
                    keys.RESHARD,
                    lambda settings: 3 if flag(settings, keys.RESHARD, default=True) else 2,
                ),
                stated("_strategy", keys.RESHARD, lambda x: x if as_flag(x) is None else None),
            ),
        ),
        *_STATES,
        MESH,
    ),
    environment=_accumulation,
)
FSDP1 = replace(
    FSDP,
    title="fsdp_config of FSDP1",
    table=(
        *top("fsdp_config of FSDP1", "FSDP"),
        of_key(
            "zero_stage",
            keys.STRATEGY,
            lambda _, s: "FULL_SHARD" if s.zero_stage == 3 else "SHARD_GRAD_OP",
            "how FSDP1 says the stage",
            of=_of_strategy,
            cannot=no_fsdp,
        ),
        *_STATES,
        replace(MESH, to=lambda *_: (), cannot=lambda _, s: beyond(s, _NOT_FSDP1)),
    ),
)
"""Of files that are there; new ones are for FSDP2."""
REPLICATED = Section(
    title="no section",
    distributed_type="MULTI_GPU",
    table=(
        *top("no section", "MULTI_GPU"),
        Decision(names=("zero_stage",), keys=(), of=_of_replicas, cannot=no_replicas),
        replace(MESH, to=lambda context, s: to_mesh(context, s) if s.tp > 1 else ()),
    ),
    environment=_accumulation,
)
DEEPSPEED = Section(
    title="deepspeed_config",
    distributed_type="DEEPSPEED",
    table=(
        *top("deepspeed_config", "DEEPSPEED", ("bf16", "fp16")),
        stage_row(
            keys.STAGE,
            _of_stage,
            several(lambda context, _: no_profile(context), no_deepspeed),
        ),
        steps_row(keys.STEPS, keys.FILE),
        devices_row(
            keys.OPTIMIZER_DEVICE,
            keys.PARAM_DEVICE,
            lambda found: 0 if keys.FILE in found else whole(found, keys.STAGE, 2),
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
            lambda _, s: s.zero_stage == 3 or None,
            "weights are split while the model is made",
            is_default=True,
        ),
        replace(MESH, to=lambda *_: ()),
    ),
    environment=_nvme_paths,
    variables={"NVME_PATH": "folder on a local NVMe drive that DeepSpeed offloads to"},
)
SECTIONS = (FSDP, REPLICATED, DEEPSPEED)
"""In the order they are tried: FSDP2 is what plans for this framework assume."""
BY_TYPE = {"NO": REPLICATED} | {section.distributed_type: section for section in SECTIONS}
SUPPORT: Mapping[str, Mapping[str, TraitValue]] = {"deepspeed": DEEPSPEED_SUPPORT}
"""By framework whose section carries its plans what that section can say of it."""


def section_of(settings: Settings) -> Section | None:
    """The part of the file that holds, by its ``distributed_type``."""
    return FSDP1 if keys.is_fsdp1(settings) else BY_TYPE.get(keys.type_of(settings))


def part(settings: Settings) -> str | None:
    """Title of the section that shards; None where none does."""
    section = section_of(settings)
    return None if section is None or section is REPLICATED else section.title


def engine(settings: Settings) -> str | None:
    """The framework that trains, where it is not PyTorch's own."""
    return "deepspeed" if section_of(settings) is DEEPSPEED else None


def problems(context: Context) -> Iterator[str]:
    """What no section can say whatever the layout."""
    yield from no_profile(context)
    yield from unnamed_targets(context)


def carrier(
    context: Context,
    strategy: Strategy,
    own: Section | None = None,
    among: tuple[Section, ...] = SECTIONS,
) -> Section:
    """The first section that expresses a strategy: ``own``, the plan's framework's, then all.

    ExpressError with the reasons of every section where none does.
    """
    gpus, per_node = strategy.num_gpus, context.cluster.node.num_accelerators
    is_uneven = gpus > per_node and gpus % per_node
    found = [f"num_gpus {gpus}: every node starts as many, here {per_node}"] if is_uneven else []
    is_deepspeed = context.traits.name == "deepspeed"
    named = [each for each in among if is_deepspeed and each.distributed_type == "DEEPSPEED"]
    for section in dict.fromkeys(each for each in (own, *named, *among) if each):
        refusals = reasons(section.table, context, strategy)
        if not refusals and not is_uneven:
            return section
        if refusals:
            found.append(f"{section.title}: {'; '.join(refusals)}")
    lines = "\n".join(f"  {reason}" for reason in found)
    raise ExpressError(f"Accelerate cannot express the plan:\n{lines}")

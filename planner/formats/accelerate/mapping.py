"""Decisions of a plan in Accelerate's file: under FSDP, as whole replicas, by DeepSpeed.

Rows and refusals that TrainingArguments share take the keys that they stand under.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.context import Context
from planner.formats.accelerate import keys
from planner.formats.accelerate.keys import (
    CHECKPOINTING,
    FILE,
    MACHINES,
    MULTINODE,
    OFFLOAD,
    OPTIMIZER_DEVICE,
    PARAM_DEVICE,
    PRECISION,
    PROCESSES,
    RESHARD,
    SIZES,
    STAGE,
    STEPS,
    STRATEGY,
    TYPE,
    VERSION,
    WRAP,
    AccelerateView,
)
from planner.formats.accelerate.rows import (
    OFFLOADED,
    RESHARDING,
    Section,
    beside,
    devices_row,
    no_deepspeed,
    no_fsdp,
    no_fsdp1_mesh,
    no_profile,
    no_replicas,
    num_machines,
    stage_row,
    steps_row,
    wrap_row,
)
from planner.formats.adapters import unnamed_targets
from planner.formats.decision import (
    Decided,
    KeyMapping,
    Table,
    nothing,
    of_key,
    reads,
    reads_flag,
    reads_key,
    several,
    unless,
    writes,
)
from planner.formats.format import ALL
from planner.formats.settings import Settings, as_flag, flag, whole, word

PRECISIONS = ("bf16", "fp16", "fp8", "fp32")
_FSDP1_STAGES = {
    "FULL_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "NO_SHARD": 0,
    "HYBRID_SHARD": 3,
    "HYBRID_SHARD_ZERO2": 2,
    "1": 3,
    "2": 2,
    "3": 0,
    "4": 3,
    "5": 2,
}


def _precision(settings: Settings) -> str | None:
    """Accelerate's word for fp32 is ``no``, which YAML reads as false without quotes."""
    stated = word(settings, PRECISION).lower()
    precision = "fp32" if stated in ("no", "false") else stated
    return precision if precision in PRECISIONS else None


def typed_section(
    title: str, kind: str, *own: KeyMapping, precisions: tuple[str, ...] = PRECISIONS
) -> Section:
    """A way to run a layout by its type: the rows of the top level, and those of its own."""
    why = "no section is needed" if kind == "MULTI_GPU" else f"{title} carries the plan"
    top: Table = (
        beside("compute_environment", "'LOCAL_MACHINE'", "no SageMaker"),
        of_key(
            "_type",
            TYPE,
            lambda _, s: "NO" if kind == "MULTI_GPU" and s.num_gpus == 1 else kind,
            why,
            follows=lambda found: AccelerateView(settings=found).kind or None,
        ),
        of_key(
            "_machines",
            MACHINES,
            num_machines,
            "nodes of {cluster.node.num_accelerators} accelerators",
            follows=lambda found: whole(found, MACHINES, 1),
        ),
        of_key(
            "num_gpus",
            PROCESSES,
            "num_gpus",
            "{num_gpus} accelerators in all, one process each",
            follows=lambda found: AccelerateView(settings=found).num_started or None,
        ),
        of_key(
            "precision",
            PRECISION,
            "'no' if job.precision == 'fp32' else job.precision",
            "products in {job.precision}",
            follows=_precision,
            cannot=unless(
                {
                    f"precision {{job.precision}}: allowed are {', '.join(precisions)}": (
                        f"job.precision not in {precisions}"
                    )
                }
            ),
        ),
        beside(
            "fp8_config.fp8_backend",
            "'AO' if job.precision == 'fp8' else None",
            "torchao, one scale per tensor",
        ),
        beside(
            "same_network",
            lambda c, s: num_machines(c, s) > 1 or None,
            "ranks meet at the first node's address",
        ),
    )
    return Section(title=title, distributed_type=kind, table=(*top, *own))


to_mesh = writes(
    {
        keys.size_key(name): (f"{size} if num_gpus > 1 else None", why)
        for name, (size, why) in {
            "dp_replicate": (
                "dp_replicate",
                "{dp_replicate} replica(s) of the sharding group",
            ),
            "dp_shard": (
                "dp // dp_replicate",
                "states are split over {dp // dp_replicate} data-parallel ranks",
            ),
            "tp": ("tp", "weights split over {tp} rank(s), innermost in the mesh"),
            "cp": ("cp", "sequence split over {cp} rank(s)"),
        }.items()
    }
)


def of_mesh(settings: Settings) -> Decided:
    """Degrees the mesh decides; dp takes every process where none, or DeepSpeed, divides them."""
    file = AccelerateView(settings=settings)
    sizes, processes = file.sizes, file.num_started
    is_ulysses = sizes["sp"] > 1
    outside = sizes["sp"] * sizes["tp"]
    split = "sp" if is_ulysses else "cp"
    degrees = {
        "tp": "tp",
        "dp_replicate": "dp_replicate",
        "cp": split,
        "_ulysses": "sp",
    }
    for name, key in degrees.items():
        if sizes[key] != 1:
            yield name, keys.size_key(key), sizes[key]
    if is_ulysses and processes and processes % outside == 0:
        yield "dp", PROCESSES, processes // outside
    elif is_ulysses or (file.has_mesh and file.kind != "DEEPSPEED"):
        yield "dp", keys.size_key("dp_shard"), sizes["dp_replicate"] * sizes["dp_shard"]
    elif processes:
        yield "dp", PROCESSES, processes


MESH = KeyMapping(
    names=("tp", "cp", "dp_replicate", "dp"),
    keys=(*map(keys.size_key, SIZES), f"{keys.MESH}cp_backend"),
    to=to_mesh,
    of=of_mesh,
)


def _of_strategy(settings: Settings) -> Decided:
    """FSDP1 also takes its strategy under the name of FSDP2's flag."""
    key = next((each for each in (STRATEGY, RESHARD) if each in settings), STRATEGY)
    yield "zero_stage", key, _FSDP1_STAGES.get(word(settings, key, "FULL_SHARD").upper(), 3)


def _of_replicas(settings: Settings) -> Decided:
    found = {name: value for name, _, value in of_mesh(settings)}
    # What a plan calls tensor parallelism alone: the lowest stage of this framework's traits. With
    # one rank per shard of the model all stages are one.
    stage = 2 if "tp" in found and found.get("dp") == 1 else 0
    if TYPE in settings:
        yield "zero_stage", TYPE, stage


def _of_stage(settings: Settings) -> Decided:
    """The file that the section may name decides instead, and is not read."""
    own = ("zero_stage", STAGE, whole(settings, STAGE, 2))
    yield ("zero_stage", FILE, None) if FILE in settings else own


_STATES = (
    of_key(
        "offload",
        OFFLOAD,
        "offload != 'none'",
        {
            True: "parameters, gradients and states live on the host between uses",
            False: "parameters, gradients and states live on the accelerators",
        },
        of=reads_flag("offload", OFFLOAD, OFFLOADED),
    ),
    wrap_row(WRAP),
    of_key(
        "recompute_layers_per_stage",
        CHECKPOINTING,
        "recompute == 'full'",
        {True: "every block is recomputed in backward", False: "no block is recomputed"},
        of=reads_flag("recompute_layers_per_stage", CHECKPOINTING, ALL),
    ),
)
FSDP = typed_section(
    "fsdp_config",
    "FSDP",
    of_key(
        "_version",
        VERSION,
        "2",
        "FSDP2 shards parameter by parameter",
        follows=lambda settings: whole(settings, VERSION, 1),
        cannot=no_fsdp,
    ),
    of_key(
        "zero_stage",
        RESHARD,
        "zero_stage == 3",
        RESHARDING,
        of=several(
            reads(
                "zero_stage",
                RESHARD,
                lambda settings: 3 if flag(settings, RESHARD, default=True) else 2,
            ),
            reads_key("_strategy", RESHARD, lambda x: x if as_flag(x) is None else None),
        ),
    ),
    *_STATES,
    MESH,
)
# Of files that are there; new ones are for FSDP2.
FSDP1 = typed_section(
    "fsdp_config of FSDP1",
    "FSDP",
    of_key(
        "zero_stage",
        STRATEGY,
        "'FULL_SHARD' if zero_stage == 3 else 'SHARD_GRAD_OP'",
        "how FSDP1 says the stage",
        of=_of_strategy,
        cannot=no_fsdp,
    ),
    *_STATES,
    replace(
        MESH,
        to=nothing,
        cannot=no_fsdp1_mesh,
    ),
)
REPLICATED = typed_section(
    "no section",
    "MULTI_GPU",
    KeyMapping(names=("zero_stage",), keys=(), of=_of_replicas, cannot=no_replicas),
    replace(
        MESH,
        to=lambda context, s: to_mesh(context, s) if s.tp > 1 else (),
    ),
)
DEEPSPEED = typed_section(
    "deepspeed_config",
    "DEEPSPEED",
    beside(
        MULTINODE,
        lambda c, s: "standard" if num_machines(c, s) > 1 else None,
        "every node starts its own processes",
    ),
    stage_row(
        STAGE,
        _of_stage,
        several(no_profile, no_deepspeed),
    ),
    steps_row(STEPS, FILE),
    devices_row(OPTIMIZER_DEVICE, PARAM_DEVICE, STAGE, 2),
    beside(
        f"{keys.DEEPSPEED}gradient_clipping",
        "1.0",
        "clipping as the planner's time has it",
    ),
    beside(
        f"{keys.DEEPSPEED}zero3_init_flag",
        "zero_stage == 3 or None",
        "weights are split while the model is made",
    ),
    replace(MESH, to=nothing),
    precisions=("bf16", "fp16"),
)
# Of a type that no plan has: what the top level says holds.
OTHER = typed_section("", "")
# In the order they are tried: FSDP2 is what plans for this framework assume.
SECTIONS = (FSDP, REPLICATED, DEEPSPEED)


def section_of(settings: Settings) -> Section | None:
    """The part of the file that holds, by its ``distributed_type``."""
    by_type = {each.distributed_type: each for each in SECTIONS}
    by_type |= dict.fromkeys(("", "NO"), REPLICATED)
    found = by_type.get(AccelerateView(settings=settings).kind)
    # Accelerate takes FSDP1 where no version is named.
    return FSDP1 if found is FSDP and whole(settings, VERSION, 1) == 1 else found


def part(settings: Settings) -> str | None:
    """Title of the section that shards; None where none does."""
    found = section_of(settings)
    return found.title if found and found is not REPLICATED else None


def engine(settings: Settings) -> str | None:
    """The framework that trains, where it is not PyTorch's own."""
    return "deepspeed" if section_of(settings) is DEEPSPEED else None


def problems(context: Context) -> Iterator[str]:
    """Yield what no section can express whatever the layout."""
    yield from no_profile(context)
    yield from unnamed_targets(context)

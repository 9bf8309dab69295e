"""Decisions of a plan in TrainingArguments: FSDP2, whole replicas, or DeepSpeed."""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.accelerate.mapping import of_mesh, to_mesh
from planner.formats.accelerate.rows import (
    DEEPSPEED_SUPPORT,
    OFFLOADED,
    RESHARDING,
    Section,
    beside,
    devices_row,
    no_deepspeed,
    no_fsdp,
    no_profile,
    no_replicas,
    stage_row,
    steps_row,
    wrap_row,
)
from planner.formats.adapters import unnamed_targets
from planner.formats.decision import (
    UNCHANGED,
    Decided,
    KeyMapping,
    Table,
    of_key,
    plan_names,
    reads,
    reads_flag,
    reads_key,
    several,
    unless,
    writes,
)
from planner.formats.deepspeed import keys as deepspeed
from planner.formats.format import ALL
from planner.formats.settings import Settings, as_flag, as_whole, flag, given, whole, word
from planner.formats.trainer import keys
from planner.formats.trainer.keys import (
    ARGUMENTS,
    BATCH,
    BLOCKS,
    CHECKPOINTING,
    ENGINES_OPTIMIZER,
    FSDP2_OPTIONS,
    LIGER,
    OFFLOAD,
    OLD_CHECKPOINTING,
    ON_PROCESSOR,
    OPTIM,
    OPTIMIZER_DEVICE,
    PARAM_DEVICE,
    RESHARD,
    SAMPLING,
    STAGE,
    STEPS,
    SYNC_EACH_BATCH,
    VERSION,
    WRAP,
)
from planner.spec.cluster import PROCESSOR
from planner.spec.job import FULL_PRECISIONS
from planner.spec.strategy import OFFLOAD_CODES, Strategy
from planner.spec.traits import TraitValue

_TF32 = "tf32"
PRECISIONS = ("bf16", "fp16", *FULL_PRECISIONS)
# ``optim`` and ``optim_args`` by the names of optimizers.yaml.
OPTIMIZERS: dict[str, tuple[str, str | None]] = {
    "adam": ("adamw_torch_fused", None),
    "adam-8bit": ("adamw_torch_8bit", None),
    "adam-8bit-bitsandbytes": ("adamw_8bit", None),
    "sgd": ("sgd", None),
    "sgd-momentum": ("sgd", "momentum=0.9"),
    "lion": ("lion_32bit", None),
    "lion-8bit": ("lion_8bit", None),
    "adafactor": ("adafactor", None),
}
_NAMES = {optim: name for name, (optim, _) in OPTIMIZERS.items()} | {
    "adamw_torch": "adam",
    "adamw_bnb_8bit": "adam-8bit-bitsandbytes",
    "paged_adamw_8bit": "adam-8bit-bitsandbytes",
    "paged_adamw": "adam",
    "paged_adamw_32bit": "adam",
    "paged_lion_8bit": "lion-8bit",
    "paged_lion": "lion",
    "paged_lion_32bit": "lion",
}
# By framework what the arguments can say of it: a mesh reaches it in the environment only.
SUPPORT: Mapping[str, Mapping[str, TraitValue]] = {
    "accelerate": {"features": ()},
    "deepspeed": {
        **DEEPSPEED_SUPPORT,
        "offload": tuple(code for code in OFFLOAD_CODES if "nvme" not in code),
    },
}


def problems(context: Context) -> Iterator[str]:
    """Yield what no argument can express whatever the layout: precision, optimizer, profile."""
    yield from no_profile(context)
    yield from unnamed_targets(context)
    yield from plan_names(context).texts_that_hold(
        {
            f"precision {{job.precision}}: allowed are {', '.join(PRECISIONS)}": (
                f"job.precision not in {PRECISIONS}"
            ),
            "optimizer {traits.optimizer.name}: optim has no name for it": (
                f"traits.optimizer.name not in {tuple(OPTIMIZERS)}"
            ),
        }
    )


def mesh_variables(context: Context, strategy: Strategy) -> dict[str, str]:
    """Variables that ParallelismConfig reads; none where every rank shards alike."""
    if max(strategy.tp, strategy.cp, strategy.dp_replicate) == 1:
        return {}
    lines = to_mesh(context, strategy)
    sizes = {line.key.rpartition(".")[2].upper(): str(line.value) for line in lines}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **sizes}


def _precision(settings: Settings) -> Decided:
    """The last of both that is on; where both are off, products are in 32 bits, or as TF32."""
    half = "fp16" if flag(settings, "fp16") else "bf16"
    if flag(settings, half):
        yield "precision", half, half
    elif "bf16" in settings and "fp16" in settings:
        name = "tf32" if flag(settings, _TF32) else "fp32"
        yield "precision", _TF32 if _TF32 in settings else "bf16", name


def _optimizer(settings: Settings) -> str | None:
    """The engine's own optimizer where DeepSpeed's part has one, else ``optim``."""
    if kind := word(settings, ENGINES_OPTIMIZER):
        return deepspeed.NAMES.get(kind.lower())
    name = _NAMES.get(word(settings, OPTIM, "adamw_torch_fused"))
    if name == "adam-8bit-bitsandbytes" and keys.is_on_host(settings):
        return "adam"  # DeepSpeedCPUAdam takes its place
    if name == "adam-8bit-bitsandbytes" and part(settings) == "FSDP1":
        return "adam-8bit"  # Its shards are plain tensors, and as many bytes as torchao's states
    is_plain = name == "sgd-momentum" and "momentum" not in word(settings, ARGUMENTS)
    return "sgd" if is_plain else name


def _of_mesh(settings: Settings) -> Decided:
    """Degrees of the sizes under ``parallelism_config``."""
    own, theirs = f"{keys.MESH}.", f"{keys.MESH}.{keys.MESH}_"
    sizes = {
        key.replace(own, theirs): each for key, each in settings.items() if key.startswith(own)
    }
    return ((name, key.replace(theirs, own), size) for name, key, size in of_mesh(sizes))


def _checkpoints(key: str, *more: str) -> KeyMapping:
    """Every block is recomputed, or none; FSDP and the model have a key each."""
    name, others = "recompute_layers_per_stage", (*more, OLD_CHECKPOINTING)
    # What ``key`` says holds, where it says it.
    read = [reads_flag(name, each, ALL) for each in (*reversed(others), key)]
    return of_key(
        name,
        key,
        "recompute == 'full'",
        "recomputation: {recompute}",
        of=several(*read),
        more=others,
    )


def _off(key: str) -> KeyMapping:
    """Return the row of a key that would shard otherwise."""
    return KeyMapping(names=("_other",), keys=(key,), of=reads_key("_other", key, bool))


def _reshards(settings: Settings) -> int:
    """ZeRO stage of FSDP: 2 where weights stay gathered from forward to backward, else 3."""
    is_old = "shard_grad_op" in keys.options(settings)
    stated = given(settings, RESHARD)
    keeps_gathered = is_old if stated is None else as_flag(stated) is False
    return 2 if keeps_gathered else 3


def _of_stage(settings: Settings) -> Decided:
    """Yield the ZeRO stage of a mapping; a file named here is read by itself."""
    if isinstance(given(settings, keys.DEEPSPEED), dict) or STAGE in settings:
        yield "zero_stage", STAGE, whole(settings, STAGE, 0)
    else:
        yield "zero_stage", keys.DEEPSPEED, None


_FILLED = "Trainer fills it in from its own arguments"

# What stands in a file whatever shards.
COMMON: Table = (
    of_key(
        "micro_batch",
        BATCH,
        "micro_batch",
        "{micro_batch} sequence(s) per micro-batch",
        follows=lambda settings: whole(settings, BATCH, 8),
        cannot=lambda context, _: problems(context),
    ),
    steps_row(STEPS),
    KeyMapping(
        names=("precision",),
        keys=("bf16", "fp16", _TF32),
        to=writes(
            {
                "bf16": ("job.precision == 'bf16'", "products in {job.precision}"),
                "fp16": ("job.precision == 'fp16'", "products in {job.precision}"),
                _TF32: (
                    "job.precision == 'tf32' if job.precision in ('tf32', 'fp32') else None",
                    {True: "products on TF32 units", False: "no TF32"},
                ),
            }
        ),
        of=_precision,
        off={_TF32: UNCHANGED},
    ),
    KeyMapping(
        names=("optimizer",),
        keys=(OPTIM, ARGUMENTS),
        # No new file is written for others; a front end's own file keeps what it says.
        to=writes(
            {
                OPTIM: (
                    lambda c, _: OPTIMIZERS.get(c.traits.optimizer.name, (None,))[0],
                    "optimizer {traits.optimizer.name}",
                ),
                ARGUMENTS: (
                    "'momentum=0.9' if traits.optimizer.name == 'sgd-momentum' else None",
                    "the rest of the optimizer",
                ),
            }
        ),
        of=reads("optimizer", OPTIM, _optimizer),
    ),
    of_key(
        "",
        SAMPLING,
        "'group_by_length' if job.documents and job.documents.batching == 'grouped' else None",
        "micro-batches of documents of about one length, as the plan assumes",
        off=UNCHANGED,
    ),
    of_key(
        "",
        LIGER,
        "traits.kernels.loss == 'liger' or None",
        "head and loss in one, as the plan assumes",
        off=UNCHANGED,
    ),
    # Without it Trainer takes a process group of processors for none.
    of_key(
        "",
        ON_PROCESSOR,
        f"cluster.accelerator.vendor == {PROCESSOR!r} or None",
        "the accelerators are processors",
        off=UNCHANGED,
    ),
)
MESH = KeyMapping(
    names=("tp", "cp", "dp_replicate", "dp"),
    keys=(keys.MESH,),
    of=_of_mesh,
)


def _section(title: str, kind: str, *own: KeyMapping) -> Section:
    return Section(
        title=title,
        distributed_type=kind,
        table=(*COMMON, *own, MESH),
    )


FSDP = _section(
    "fsdp_config",
    "FSDP",
    of_key(
        "profile",
        SYNC_EACH_BATCH,
        # transformers does not by itself
        "traits.states.reduces_every_micro_batch and num_micro_batches > 1 or None",
        "gradients are reduced in every micro-batch, and not kept whole",
        of=reads_flag("profile", SYNC_EACH_BATCH, "sync-each-batch"),
        off=UNCHANGED,
        cannot=no_fsdp,
    ),
    of_key(
        "_part",
        keys.FSDP,
        "True",
        "fsdp_config carries the plan",
        # The old options that FSDP2 and plans do not have, or else whether FSDP is on.
        follows=lambda found: (
            tuple(each for each in keys.options(found) if each not in FSDP2_OPTIONS)
            or bool(given(found, keys.FSDP))
        ),
    ),
    of_key(
        "_version",
        VERSION,
        "2",
        "FSDP2 shards parameter by parameter",
        follows=lambda settings: whole(settings, VERSION, 2),
    ),
    of_key("zero_stage", RESHARD, "zero_stage == 3", RESHARDING, follows=_reshards),
    of_key(
        "offload",
        OFFLOAD,
        "offload != 'none'",
        "offload {offload}",
        follows=lambda found: (
            OFFLOADED if flag(found, OFFLOAD, default="offload" in keys.options(found)) else None
        ),
    ),
    _checkpoints(BLOCKS, CHECKPOINTING),
    wrap_row(WRAP),
    _off(keys.DEEPSPEED),
)
REPLICATED = _section(
    "no section",
    "MULTI_GPU",
    KeyMapping(
        names=("zero_stage",),
        keys=(),
        of=reads("zero_stage", keys.FSDP, lambda _: 0),
        cannot=several(
            no_replicas,
            unless({"tp {tp}: the arguments shard over every rank, or over none": "tp > 1"}),
        ),
    ),
    _checkpoints(CHECKPOINTING),
    _off(keys.DEEPSPEED),
    _off(keys.FSDP),
)
DEEPSPEED = _section(
    "deepspeed",
    "DEEPSPEED",
    _checkpoints(CHECKPOINTING),
    *(
        of_key("", f"deepspeed.{name}", "'auto'", _FILLED)
        for name in (
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            "train_batch_size",
            "bf16.enabled",
            "fp16.enabled",
        )
    ),
    beside("deepspeed.gradient_clipping", "'auto'", _FILLED),
    stage_row(
        STAGE,
        _of_stage,
        several(
            no_deepspeed,
            unless({"offload {offload}: the path is not the plan's to know": "'nvme' in offload"}),
        ),
    ),
    devices_row(OPTIMIZER_DEVICE, PARAM_DEVICE, STAGE, 0),
    KeyMapping(
        names=("tp",),
        keys=(),
        of=reads_key(
            "tp",
            "deepspeed.tensor_parallel.autotp_size",
            lambda size: n if (n := as_whole(size) or 0) > 1 else None,
        ),
    ),
    _off(keys.FSDP),
)
SECTIONS = (FSDP, REPLICATED, DEEPSPEED)


def section_of(settings: Settings) -> Section:
    """Return the section that shards: DeepSpeed if both are given."""
    if given(settings, keys.DEEPSPEED):
        return DEEPSPEED
    return FSDP if given(settings, keys.FSDP) else REPLICATED


def part(settings: Settings) -> str | None:
    """Title of what shards; None where nothing does."""
    section = section_of(settings)
    if section is FSDP and whole(settings, VERSION, 2) == 1:
        return "FSDP1"
    return None if section is REPLICATED else section.title


def engine(settings: Settings) -> str | None:
    """The framework that trains, where it is not PyTorch's own."""
    return "deepspeed" if section_of(settings) is DEEPSPEED else None

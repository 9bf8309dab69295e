"""How a plan's decisions stand in TrainingArguments: FSDP2, whole replicas, or DeepSpeed."""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.accelerate.decisions import OFFLOADED, no_fsdp, no_replicas, resharding
from planner.formats.accelerate.decisions_deepspeed import (
    DEEPSPEED_SUPPORT,
    no_deepspeed,
    no_profile,
)
from planner.formats.accelerate.section import Section, recomputes_all, to_mesh
from planner.formats.adapters import unnamed_targets
from planner.formats.decision import (
    KEPT,
    Decision,
    Line,
    Table,
    derived,
    line,
    of_key,
    stated,
    switched,
    unless,
    wrong_precision,
)
from planner.formats.deepspeed.keys import CODES, DEVICES
from planner.formats.format import ALL, Value
from planner.formats.settings import Settings, as_flag, as_whole, decided, flag, given, whole, word
from planner.formats.trainer import keys
from planner.spec.cluster import PROCESSOR
from planner.spec.job import FULL_PRECISIONS
from planner.spec.strategy import OFFLOAD_CODES, Strategy
from planner.spec.traits import TraitValue

_TF32 = "tf32"
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
"""``optim`` and ``optim_args`` by the names of optimizers.yaml."""
_NAMES = {optim: name for name, (optim, _) in OPTIMIZERS.items()} | {
    "adamw_torch": "adam",
    "adamw_bnb_8bit": "adam-8bit-bitsandbytes",
}
SUPPORT: Mapping[str, Mapping[str, TraitValue]] = {
    "accelerate": {"tp": False, "cp": False, "hybrid_sharding": False},
    "deepspeed": {
        **DEEPSPEED_SUPPORT,
        "offload": tuple(code for code in OFFLOAD_CODES if "nvme" not in code),
    },
}
"""By framework what the arguments can say of it: a mesh reaches it in the environment only."""


def problems(context: Context) -> Iterator[str]:
    """What the arguments cannot say whatever the layout: precision, optimizer, profile."""
    yield from no_profile(context)
    yield from unnamed_targets(context)
    yield from wrong_precision(context, ("bf16", "fp16", *FULL_PRECISIONS))
    if context.traits.optimizer.name not in OPTIMIZERS:
        yield f"optimizer {context.traits.optimizer.name}: optim has no name for it"


def mesh(context: Context, strategy: Strategy) -> dict[str, str]:
    """Variables that ParallelismConfig reads; none where every rank shards alike."""
    if max(strategy.tp, strategy.cp, strategy.dp_replicate) == 1:
        return {}
    sizes = {each.key.rpartition(".")[2].upper(): each for each in to_mesh(context, strategy)}
    named = {name: str(each.value) for name, each in sizes.items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **named}


def _of_steps(settings: Settings) -> Iterator[tuple[str, Value]]:
    """Where it is missing the job's batch says it: one step is stated too."""
    yield "_steps", decided(settings, keys.STEPS, given(settings, keys.STEPS))
    if keys.STEPS in settings:
        yield "num_micro_batches", decided(settings, keys.STEPS, whole(settings, keys.STEPS, 1))


def _to_precision(context: Context, _: Strategy) -> Iterator[Line]:
    precision = context.job.precision
    for name in ("bf16", "fp16"):
        yield Line(key=name, value=name == precision, why=f"products in {precision}")
    if precision in FULL_PRECISIONS:
        why = "products on TF32 units" if precision == "tf32" else "no TF32"
        yield Line(key=_TF32, value=precision == "tf32", why=why)


def _of_precision(settings: Settings) -> Iterator[tuple[str, Value]]:
    for name in ("bf16", "fp16"):
        if flag(settings, name):
            yield "precision", decided(settings, name, name)
    if all(name in settings and not flag(settings, name) for name in ("bf16", "fp16")):
        name = "tf32" if flag(settings, _TF32) else "fp32"
        yield "precision", decided(settings, _TF32 if _TF32 in settings else "bf16", name)


def _to_optimizer(context: Context, _: Strategy) -> Iterator[Line]:
    name = context.traits.optimizer.name
    optim, arguments = OPTIMIZERS[name]
    yield Line(key=keys.OPTIM, value=optim, why=f"optimizer {name}")
    yield from line(keys.ARGUMENTS, arguments, "the rest of the optimizer", when=bool(arguments))


def _of_optimizer(settings: Settings) -> Iterator[tuple[str, Value]]:
    name = _NAMES.get(word(settings, keys.OPTIM, "adamw_torch_fused"))
    if name in ("sgd", "sgd-momentum"):
        has_momentum = "momentum" in word(settings, keys.ARGUMENTS)
        name = "sgd-momentum" if has_momentum else "sgd"
    if name:
        yield "optimizer", decided(settings, keys.OPTIM, name)


def _to_sync(context: Context, strategy: Strategy) -> bool | None:
    """Whether the plan counts on it; transformers does not by itself."""
    counts = context.traits.states.reduces_every_micro_batch
    return True if counts and strategy.num_micro_batches > 1 else None


def of_mesh(settings: Settings) -> Iterator[tuple[str, Value]]:
    """Degrees of the sizes under ``parallelism_config``."""
    if not isinstance(given(settings, keys.MESH), dict):
        return
    key = {name: f"{keys.MESH}.{name}_size" for name in ("dp_replicate", "dp_shard", "tp", "cp")}
    sizes = {name: whole(settings, each, 1) for name, each in key.items()}
    sizes["cp"] = max(sizes["cp"], whole(settings, f"{keys.MESH}.sp_size", 1))
    for name in ("tp", "dp_replicate", "cp"):
        yield name, decided(settings, key[name], sizes[name])
    dp = sizes["dp_replicate"] * sizes["dp_shard"]
    yield "dp", decided(settings, key["dp_shard"], dp)


def _checkpoints(key: str, beside: tuple[str, ...] = ()) -> Decision:
    """Every block is recomputed, or none; FSDP and the model have a key each."""
    names = (key, *beside, keys.OLD_CHECKPOINTING)

    def of(settings: Settings) -> Iterator[tuple[str, Value]]:
        for name in reversed(names):
            yield from switched("recompute_layers_per_stage", name, ALL)(settings)

    def to(_: Context, strategy: Strategy) -> tuple[Line, ...]:
        return line(key, recomputes_all(strategy), f"recomputation: {strategy.recompute}")

    return Decision(names=("recompute_layers_per_stage",), keys=names, to=to, of=of)


def _of_fsdp(settings: Settings) -> Iterator[tuple[str, Value]]:
    """Options of the old form that FSDP2 does not have are none of a plan's."""
    strange = [each for each in keys.options(settings) if each not in keys.FSDP2_OPTIONS]
    on = keys.is_on(settings, keys.FSDP)
    yield "_part", decided(settings, keys.FSDP, tuple(strange) or on)


def _off(key: str) -> Decision:
    """What would shard otherwise."""
    return Decision(
        names=("_other",),
        keys=(key,),
        of=lambda settings: [("_other", decided(settings, key, keys.is_on(settings, key)))],
    )


def _of_reshard(settings: Settings) -> Iterator[tuple[str, Value]]:
    named = given(settings, keys.RESHARD)
    keeps = "shard_grad_op" in keys.options(settings)
    reshards = not keeps if named is None else as_flag(named)
    yield "zero_stage", decided(settings, keys.RESHARD, 2 if reshards is False else 3)


def _offload(settings: Settings) -> str | None:
    is_on = flag(settings, keys.OFFLOAD, default="offload" in keys.options(settings))
    return OFFLOADED if is_on else None


def _of_stage(settings: Settings) -> Iterator[tuple[str, Value]]:
    """Of a mapping; a file named here is read by itself."""
    if isinstance(given(settings, keys.DEEPSPEED), dict) or keys.STAGE in settings:
        yield "zero_stage", decided(settings, keys.STAGE, whole(settings, keys.STAGE, 0))
    else:
        yield "zero_stage", decided(settings, keys.DEEPSPEED, None)


def _to_devices(_: Context, strategy: Strategy) -> Iterator[Line]:
    names = (keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE)
    for key, device in zip(names, DEVICES[strategy.offload], strict=True):
        yield Line(key=key, value=device, why=f"offload {strategy.offload}")


def _of_devices(settings: Settings) -> Iterator[tuple[str, Value]]:
    names = (keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE)
    optimizer, weights = (word(settings, key, "none").lower() for key in names)
    code = CODES.get((optimizer, weights))
    if code is None:
        yield "_unknown", decided(settings, names[0], (optimizer, weights))
    elif code != "none":
        yield "offload", decided(settings, names[0], code)


_AUTOTP = "deepspeed.tensor_parallel.autotp_size"
_no_path = unless(
    lambda _, s: "nvme" in s.offload, "offload {s.offload}: the path is not the plan's to know"
)
_no_split = unless(
    lambda _, s: s.tp > 1, "tp {s.tp}: the arguments shard over every rank, or over none"
)


def _to_processor(context: Context, _: Strategy) -> bool | None:
    """Without it Trainer takes a process group of processors for none."""
    return True if context.cluster.accelerator.vendor == PROCESSOR else None


GROUPED = "group_by_length"


def _to_sampling(context: Context, _: Strategy) -> str | None:
    documents = context.job.documents
    return GROUPED if documents and documents.batching == "grouped" else None


def _to_liger(context: Context, _: Strategy) -> bool | None:
    return True if context.traits.kernels.loss == "liger" else None


COMMON: Table = (
    of_key(
        "micro_batch",
        keys.BATCH,
        lambda _, s: s.micro_batch,
        "{s.micro_batch} sequence(s) per micro-batch",
        of=derived("micro_batch", keys.BATCH, lambda settings: whole(settings, keys.BATCH, 8)),
        cannot=lambda context, _: problems(context),
    ),
    Decision(
        names=("num_micro_batches",),
        keys=(keys.STEPS,),
        to=lambda _, s: line(
            keys.STEPS, s.num_micro_batches, f"{s.num_micro_batches} micro-batches per iteration"
        ),
        of=_of_steps,
    ),
    Decision(
        names=("precision",),
        keys=("bf16", "fp16", _TF32),
        off={_TF32: KEPT},
        to=_to_precision,
        of=_of_precision,
    ),
    Decision(
        names=("optimizer",),
        keys=(keys.OPTIM, keys.ARGUMENTS),
        to=_to_optimizer,
        of=_of_optimizer,
    ),
    of_key(
        "",
        keys.SAMPLING,
        _to_sampling,
        "micro-batches of documents of about one length, as the plan assumes",
        off=KEPT,
    ),
    of_key("", keys.LIGER, _to_liger, "head and loss in one, as the plan assumes", off=KEPT),
    of_key("", keys.ON_PROCESSOR, _to_processor, "the accelerators are processors", off=KEPT),
)
"""What stands in a file whatever shards."""
_MESH = Decision(names=("tp", "cp", "dp_replicate", "dp"), keys=(keys.MESH,), of=of_mesh)
FSDP = Section(
    title="fsdp_config",
    distributed_type="FSDP",
    table=(
        *COMMON,
        of_key(
            "profile",
            keys.SYNC_EACH_BATCH,
            _to_sync,
            "gradients are reduced in every micro-batch, and not kept whole",
            of=switched("profile", keys.SYNC_EACH_BATCH, "sync-each-batch"),
            off=KEPT,
            cannot=no_fsdp,
        ),
        of_key("_part", keys.FSDP, lambda *_: True, "fsdp_config carries the plan", of=_of_fsdp),
        of_key(
            "_version",
            keys.VERSION,
            lambda *_: 2,
            "FSDP2 shards parameter by parameter",
            of=derived("_version", keys.VERSION, lambda settings: whole(settings, keys.VERSION, 2)),
        ),
        Decision(
            names=("zero_stage",),
            keys=(keys.RESHARD,),
            to=lambda _, s: line(keys.RESHARD, s.zero_stage == 3, resharding(s)),
            of=_of_reshard,
        ),
        of_key(
            "offload",
            keys.OFFLOAD,
            lambda _, s: s.offload != "none",
            "offload {s.offload}",
            of=derived("offload", keys.OFFLOAD, _offload),
        ),
        _checkpoints(keys.BLOCKS, (keys.CHECKPOINTING,)),
        of_key(
            "",
            keys.WRAP,
            lambda *_: "TRANSFORMER_BASED_WRAP",
            "one unit per transformer block",
            is_default=True,
        ),
        _off(keys.DEEPSPEED),
        _MESH,
    ),
    environment=mesh,
)
REPLICATED = Section(
    title="no section",
    distributed_type="MULTI_GPU",
    table=(
        *COMMON,
        Decision(
            names=("zero_stage",),
            keys=(),
            of=lambda settings: [("zero_stage", decided(settings, keys.FSDP, 0))],
            cannot=lambda context, s: (*no_replicas(context, s), *_no_split(context, s)),
        ),
        _checkpoints(keys.CHECKPOINTING),
        _off(keys.DEEPSPEED),
        _off(keys.FSDP),
        _MESH,
    ),
    environment=mesh,
)
DEEPSPEED = Section(
    title="deepspeed",
    distributed_type="DEEPSPEED",
    table=(
        *COMMON,
        _checkpoints(keys.CHECKPOINTING),
        *(
            of_key("", key, lambda *_: "auto", "Trainer fills it in from its own arguments")
            for key in keys.AUTO
        ),
        of_key(
            "",
            "deepspeed.gradient_clipping",
            lambda *_: "auto",
            "Trainer fills it in from its own arguments",
            is_default=True,
        ),
        Decision(
            names=("zero_stage",),
            keys=(keys.STAGE,),
            to=lambda _, s: line(keys.STAGE, s.zero_stage, f"zero_stage {s.zero_stage}"),
            of=_of_stage,
            cannot=lambda context, s: (*no_deepspeed(context, s), *_no_path(context, s)),
        ),
        Decision(
            names=("offload",),
            keys=(keys.OPTIMIZER_DEVICE, keys.PARAM_DEVICE),
            to=_to_devices,
            of=_of_devices,
        ),
        Decision(
            names=("tp",),
            keys=(),
            of=stated("tp", _AUTOTP, lambda size: n if (n := as_whole(size) or 0) > 1 else None),
        ),
        _off(keys.FSDP),
        _MESH,
    ),
    environment=mesh,
)
SECTIONS = (FSDP, REPLICATED, DEEPSPEED)


def section_of(settings: Settings) -> Section:
    """What shards: DeepSpeed where both are given."""
    if keys.is_on(settings, keys.DEEPSPEED):
        return DEEPSPEED
    return FSDP if keys.is_on(settings, keys.FSDP) else REPLICATED


def part(settings: Settings) -> str | None:
    """Title of what shards; None where nothing does."""
    section = section_of(settings)
    if section is FSDP and whole(settings, keys.VERSION, 2) == 1:
        return "FSDP1"
    return None if section is REPLICATED else section.title


def engine(settings: Settings) -> str | None:
    """The framework that trains, where it is not PyTorch's own."""
    return "deepspeed" if section_of(settings) is DEEPSPEED else None

"""Decisions of a plan in a DeepSpeed file, row by row, and what no key can express."""

from math import prod

from planner.cost.context import Context
from planner.formats.decision import (
    UNCHANGED,
    Decided,
    KeyMapping,
    Table,
    To,
    of_key,
    refusals,
    several,
    writes,
)
from planner.formats.deepspeed.keys import (
    AUTO,
    CODES,
    ENABLED,
    EP,
    EP_ON,
    HPZ,
    LAYERS,
    LENGTH,
    MASTER,
    MICRO,
    MOMENTUM,
    NAMES,
    OLD_SWITCHES,
    PP,
    RATIO,
    REPLICAS,
    SCRIPT,
    SCRIPT_TP,
    SP,
    STAGE,
    STATES,
    STEPS,
    TORCH_ADAM,
    TOTAL,
    TP,
    TYPE,
    TYPES,
    UNTESTED,
    ZERO,
    DeepspeedView,
)
from planner.formats.settings import (
    Refused,
    Settings,
    as_counts,
    as_number,
    as_texts,
    as_whole,
    given,
)
from planner.spec.strategy import Strategy

_DEVICES, _PATHS = (
    [f"{ZERO}.{section}.{name}" for section in OLD_SWITCHES] for name in ("device", "nvme_path")
)
_SWITCHES = [f"{ZERO}.{switch}" for switch in OLD_SWITCHES.values()]

_REFUSALS = refusals(__package__)
no_offload, problems = _REFUSALS["offload"], _REFUSALS["problems"]


def secondary_ranks(context: Context, strategy: Strategy) -> int:
    """Ranks that share a secondary copy of the weights (ZeRO++); 1: none."""
    if strategy.zero_stage != 3 or not context.traits.states.zero3_secondary_weight_bytes:
        return 1
    return min(context.cluster.node.num_accelerators, strategy.num_gpus)


def _of_batch(settings: Settings) -> Decided:
    """The batch triple as far as it determines itself, and the ranks where it states them."""
    file = DeepspeedView(settings=settings)
    names = {
        TOTAL: "global_batch",
        MICRO: "micro_batch",
        STEPS: "num_micro_batches",
        REPLICAS: "dp",
    }
    # 0: not known.
    sizes = {key: file.size(key) for key in names}
    places = {key: key for key in names}
    has_one = bool(sizes[MICRO]) != bool(sizes[TOTAL])
    if has_one and not sizes[STEPS] and AUTO not in (file[MICRO], file[STEPS]):
        sizes[STEPS] = 1
        places[STEPS] = MICRO if sizes[MICRO] else TOTAL
    if file.counts_all_ranks:
        sizes[TOTAL] = 0
    missing = [key for key, size in sizes.items() if not size]
    product = prod(size for key, size in sizes.items() if size and key != TOTAL)
    if missing == [TOTAL]:
        sizes[TOTAL], places[TOTAL] = product, MICRO
    elif len(missing) == 1 and sizes[TOTAL] % product == 0:
        (key,) = missing
        sizes[key], places[key] = sizes[TOTAL] // product, TOTAL
    for key, size in sizes.items():
        if size:
            yield names[key], places[key], size
    if dp := sizes[REPLICAS]:
        tp = file.autotp if file.autotp > 1 else file.script_tp
        yield "num_gpus", places[REPLICAS], dp * tp * file.stages * file.sequence


def _of_precision(settings: Settings) -> Decided:
    enabled = {key: given(settings, key) for key in ENABLED}
    key = next((each for each, is_on in enabled.items() if is_on is True), ENABLED[0])
    if enabled[key] is True or all(each is False for each in enabled.values()):
        yield "precision", key, key.removesuffix(".enabled") if enabled[key] else "fp32"


def _of_optimizer(settings: Settings) -> Decided:
    file = DeepspeedView(settings=settings)
    name, key = NAMES.get(file.optimizer), TYPE
    if name == "adam" and file[STATES] is True:
        name, key = "adam-bf16", STATES
    if name == "sgd" and as_number(file[MOMENTUM]):
        name = "sgd-momentum"
    if name:
        yield "optimizer", key, name


def _of_stage(settings: Settings) -> Decided:
    key = STAGE if STAGE in settings else ZERO
    yield "zero_stage", key, DeepspeedView(settings=settings).stage


def _no_groups(context: Context, strategy: Strategy) -> Refused:
    ranks, num_gpus = secondary_ranks(context, strategy), strategy.num_gpus
    named, is_split = f"{HPZ.partition('.')[2]} {ranks}", strategy.tp * strategy.cp > 1
    return {
        f"{named} with tp or cp: its groups are neighbouring ranks": ranks > 1 and is_split,
        f"{named}: must divide {num_gpus} GPUs": num_gpus % ranks,
    }


def _to_device(state: str, section: str) -> To:
    """Where a state lives, on a local drive by a path that is the user's to know."""
    where = f"None if '{state}' not in offload else 'nvme' if 'nvme' in offload else 'cpu'"
    path = f"'/local_nvme' if '{state}' in offload and 'nvme' in offload else None"
    beside, key = f"{state} do not fit into HBM beside", f"{ZERO}.{section}"
    drive = "change it to where the nodes mount their NVMe drives"
    pinned = f"'{state}' in offload or None", "transfers at the link's rate"
    return several(
        writes({f"{key}.device": (where, beside)}),
        writes({f"{key}.nvme_path": (path, drive)}, is_default=True),
        writes({f"{key}.pin_memory": pinned}, assumed="True"),
    )


def _of_offload(settings: Settings) -> Decided:
    """Yield where states live; nothing for pairs of devices that are not modelled.

    Below stage 3 DeepSpeed keeps weights in HBM, whatever is said of them.
    """
    file = DeepspeedView(settings=settings)
    weights = file.weights_on if file.stage == 3 else "none"
    key = _DEVICES[0] if _DEVICES[0] in settings else _SWITCHES[0]
    code = CODES.get((file.states_on, weights))
    if code and key in settings:
        yield "offload", key, code
    if RATIO in settings and file.offloads and 0.0 < file.ratio <= 1.0:
        # Plans know whole percents, and a part that is offloaded is no 0 %.
        yield "offload_percent", RATIO, max(1, round(100 * file.ratio))


_TOTAL = "dp * micro_batch * num_micro_batches"
_SMALL = (
    "traits.optimizer.name == 'adam-bf16' or None",
    "master weights, gradients and moments in bf16",
)
_SHARDED = (
    "nothing is",
    "optimizer states are",
    "states and gradients are",
    "states, gradients and weights are",
)
_BUCKET = (
    (
        "zero_stage and traits.name == 'deepspeed' "
        "and whole(traits.overlap.gradient_bucket_elements) or None"
    ),
    "elements per message, as the plan assumes",
)
TABLE: Table = (
    KeyMapping(names=("vpp", "schedule", "placement"), keys=(), cannot=_REFUSALS["keys"]),
    KeyMapping(
        names=("global_batch", "micro_batch", "num_micro_batches", "dp", "num_gpus"),
        keys=(TOTAL, MICRO, STEPS, REPLICAS),
        to=writes(
            {
                TOTAL: (
                    f"{_TOTAL} if tp == 1 or pp > 1 else None",
                    "sequences per iteration, over {dp} replicas",
                ),
                MICRO: ("micro_batch", "sequences per micro-batch"),
                STEPS: (
                    "num_micro_batches",
                    f"micro-batches per iteration: {{{_TOTAL}}} sequences over {{dp}} replicas",
                ),
                REPLICAS: (
                    "dp if tp > 1 and pp == 1 or cp > 1 else None",
                    (
                        "replicas; {'stands for train_batch_size, which AutoTP would count over "
                        "all ranks' if tp > 1 and pp == 1 else 'with sequence_parallel_size the "
                        "mesh of the ranks'}"
                    ),
                ),
            }
        ),
        of=_of_batch,
    ),
    KeyMapping(
        names=("precision",),
        keys=ENABLED,
        to=writes(
            {
                f"{name}.enabled": (
                    f"False if job.precision == 'fp32' else job.precision == '{name}' or None",
                    {
                        False: "products in fp32",
                        True: "products in 16 bits, master weights in fp32",
                    },
                )
                for name in ("bf16", "fp16")
            }
        ),
        of=_of_precision,
        cannot=problems,
        off=dict.fromkeys(ENABLED, False),
    ),
    KeyMapping(
        names=("optimizer",),
        keys=(
            MASTER,
            STATES,
            TYPE,
            TORCH_ADAM,
            MOMENTUM,
            UNTESTED,
        ),
        to=writes(
            {
                MASTER: _SMALL,
                STATES: _SMALL,
                TYPE: (
                    lambda context, _: TYPES[context.traits.optimizer.name],
                    "its learning rate and betas are yours to set under optimizer.params",
                ),
                TORCH_ADAM: (
                    "traits.optimizer.name == 'adam-bf16' and offload == 'none' or None",
                    "the fused Adam keeps moments in fp32",
                ),
                MOMENTUM: (
                    "0.9 if traits.optimizer.name == 'sgd-momentum' else None",
                    "keeps the momentum the plan counts",
                ),
                UNTESTED: (
                    (
                        "traits.optimizer.name in ('sgd', 'sgd-momentum', 'adafactor') "
                        "and zero_stage > 0 or None"
                    ),
                    "ZeRO asks for it with this optimizer",
                ),
            }
        ),
        of=_of_optimizer,
        off={MASTER: False, STATES: False, UNTESTED: UNCHANGED},
    ),
    KeyMapping(
        names=("zero_stage",),
        keys=(STAGE,),
        to=several(
            writes(
                {
                    STAGE: (
                        "zero_stage",
                        {
                            stage: f"{what} sharded over {{dp * cp}} ranks"
                            for stage, what in enumerate(_SHARDED)
                        },
                    )
                }
            ),
            writes(
                {
                    f"{ZERO}.overlap_comm": (
                        (
                            "traits.overlap.overlaps_gradient_reduction "
                            "if zero_stage > 0 and pp == 1 else None"
                        ),
                        "gradients are reduced beside the backward pass, as the plan assumes",
                    ),
                    f"{ZERO}.reduce_bucket_size": _BUCKET,
                    f"{ZERO}.allgather_bucket_size": _BUCKET,
                },
                assumed="True",
            ),
        ),
        of=_of_stage,
        cannot=_REFUSALS["stage"],
    ),
    of_key(
        "",
        f"{ZERO}.reduce_scatter",
        "False if traits.optimizer.name == 'muon' and zero_stage == 3 else None",
        "Muon under stage 3 needs whole gradients",
        off=UNCHANGED,
    ),
    of_key(
        "",
        HPZ,
        lambda context, s: ranks if (ranks := secondary_ranks(context, s)) > 1 else None,
        "backward gathers weights inside the node, from a second copy there",
        off=1,
        cannot=_no_groups,
    ),
    KeyMapping(
        names=("offload", "offload_percent"),
        keys=(*_DEVICES, *_PATHS, *_SWITCHES, RATIO),
        to=several(
            _to_device("optimizer", "offload_optimizer"),
            writes(
                {
                    RATIO: (
                        lambda _, s: (
                            s.offload_percent / 100
                            if s.offload != "none" and s.offload_percent < 100
                            else None
                        ),
                        "share of the states that goes, the rest stays in HBM",
                    )
                }
            ),
            _to_device("parameters", "offload_param"),
        ),
        of=_of_offload,
        cannot=no_offload,
        off=dict.fromkeys(_DEVICES, "none") | dict.fromkeys(_PATHS, UNCHANGED),
    ),
    of_key(
        "tp",
        TP,
        "tp if tp > 1 and pp == 1 else None",
        "ranks that split every layer (AutoTP, neighbouring ranks)",
        read=lambda value: size if (size := as_whole(value) or 1) > 1 else None,
        off=0,
        cannot=_REFUSALS["heads"],
    ),
    of_key("cp", SP, "cp if cp > 1 else None", "ranks that split the sequence (Ulysses)", off=1),
    of_key(
        "",
        EP_ON,
        "ep > 1 or None",
        "experts are split over ranks (AutoEP)",
        off=False,
        cannot=_REFUSALS["experts"],
    ),
    of_key(
        "ep",
        EP,
        "ep if ep > 1 else None",
        "ranks that split the experts",
        follows=lambda each: as_whole(given(each, EP)) if given(each, EP_ON) is True else None,
        off=UNCHANGED,
    ),
    of_key(
        "pp",
        PP,
        "pp if pp > 1 else None",
        "your script gives it to PipelineModule(num_stages=...); DeepSpeed does not",
        off=1,
    ),
    of_key("seq_len", LENGTH, "job.seq_len", "tokens per sequence of your data"),
    of_key(
        "tp",
        SCRIPT_TP,
        "tp if tp > 1 and pp > 1 else None",
        "num_mp of your PipeModelDataParallelTopology; the layers must split themselves",
        follows=lambda each: (
            as_whole(given(each, SCRIPT_TP)) if DeepspeedView(settings=each).autotp == 1 else None
        ),
    ),
    of_key(
        "layers_per_stage",
        LAYERS,
        "list(layers_per_stage) if pp > 1 else None",
        "transformer blocks of every stage, for your PipelineModule",
        read=as_counts,
    ),
    of_key(
        "selective_layers_per_stage",
        f"{SCRIPT}.selective_layers_per_stage",
        "list(selective_layers_per_stage) if any(selective_layers_per_stage) else None",
        "of those, the first ones recompute the modules below",
        read=as_counts,
    ),
    of_key(
        "recompute_modules",
        f"{SCRIPT}.recompute_modules",
        "None if not any(selective_layers_per_stage) else list(traits.recompute.selected) "
        "if recompute_modules is None else list(recompute_modules)",
        "what those recompute",
        read=as_texts,
    ),
    of_key(
        "recompute_layers_per_stage",
        f"{SCRIPT}.recompute_layers_per_stage",
        "list(recompute_layers_per_stage) if any(recompute_layers_per_stage) else None",
        "of those, how many run under activation checkpointing",
        read=as_counts,
    ),
)

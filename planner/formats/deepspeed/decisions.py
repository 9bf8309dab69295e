"""Decisions of a plan in a DeepSpeed file, row by row, and what no key can express."""

from collections.abc import Iterator
from math import prod

from planner.cost.context import Context
from planner.formats.decision import (
    UNCHANGED,
    Decided,
    KeyMapping,
    KeyValue,
    Table,
    of_key,
    refusals,
    several,
    told,
    unless,
)
from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
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
    [f"{keys.ZERO}.{section}.{name}" for section in keys.OLD_SWITCHES]
    for name in ("device", "nvme_path")
)
_SWITCHES = [f"{keys.ZERO}.{switch}" for switch in keys.OLD_SWITCHES.values()]


_REFUSALS = refusals(__package__)
no_offload, problems = _REFUSALS["offload"], _REFUSALS["problems"]


def secondary_ranks(context: Context, strategy: Strategy) -> int:
    """Ranks that share a secondary copy of the weights (ZeRO++); 1: none."""
    if strategy.zero_stage != 3 or not context.traits.states.zero3_secondary_weight_bytes:
        return 1
    return min(context.cluster.node.num_accelerators, strategy.num_gpus)


def _to_batch(_: Context, strategy: Strategy) -> Iterator[KeyValue]:
    dp, micro, steps = strategy.dp, strategy.micro_batch, strategy.num_micro_batches
    total, replicas = dp * micro * steps, f"over {dp} replicas"
    batch: dict[str, tuple[object, str]] = {
        keys.TOTAL: (total, f"sequences per iteration, {replicas}"),
        keys.MICRO: (micro, "sequences per micro-batch"),
        keys.STEPS: (steps, f"micro-batches per iteration: {total} sequences {replicas}"),
    }
    if strategy.tp > 1 and strategy.pp == 1:
        why = "replicas; stands for train_batch_size, which AutoTP would count over all ranks"
        batch |= {keys.TOTAL: (None, ""), keys.REPLICAS: (dp, why)}
    elif strategy.cp > 1:
        batch[keys.REPLICAS] = dp, "replicas; with sequence_parallel_size the mesh of the ranks"
    return told(batch)


def _of_batch(settings: Settings) -> Decided:
    """The batch triple as far as it determines itself, and the ranks where it states them."""
    file = DeepspeedView(settings=settings)
    total, micro, steps = keys.TOTAL, keys.MICRO, keys.STEPS
    names = {
        total: "global_batch",
        micro: "micro_batch",
        steps: "num_micro_batches",
        keys.REPLICAS: "dp",
    }
    # 0: not known.
    sizes = {key: file.size(key) or 0 for key in names}
    places = {key: key for key in names}
    has_one = bool(sizes[micro]) != bool(sizes[total])
    if has_one and not sizes[steps] and keys.AUTO not in (file[micro], file[steps]):
        sizes[steps] = 1
        places[steps] = micro if sizes[micro] else total
    if file.counts_all_ranks:
        sizes[total] = 0
    missing = [key for key, size in sizes.items() if not size]
    product = prod(size for key, size in sizes.items() if size and key != total)
    if missing == [total]:
        sizes[total], places[total] = product, micro
    elif len(missing) == 1 and sizes[total] % product == 0:
        (key,) = missing
        sizes[key], places[key] = sizes[total] // product, total
    for key, size in sizes.items():
        if size:
            yield names[key], places[key], size
    tp = file.autotp if file.autotp > 1 else file.script_tp
    if dp := sizes[keys.REPLICAS]:
        yield "num_gpus", places[keys.REPLICAS], dp * tp * file.stages * file.sequence


def _to_precision(context: Context, _: Strategy) -> Iterator[KeyValue]:
    if context.job.precision == "fp32":
        return told(dict.fromkeys(keys.ENABLED, (False, "products in fp32")))
    return told(
        {f"{context.job.precision}.enabled": (True, "products in 16 bits, master weights in fp32")}
    )


def _of_precision(settings: Settings) -> Decided:
    for key in keys.ENABLED:
        if given(settings, key) is True:
            yield "precision", key, key.removesuffix(".enabled")
            return
    if all(given(settings, key) is False for key in keys.ENABLED):
        yield "precision", keys.ENABLED[0], "fp32"


def _to_optimizer(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    name = context.traits.optimizer.name
    small = name == "adam-bf16" or None, "master weights, gradients and moments in bf16"
    yours = "its learning rate and betas are yours to set under optimizer.params"
    is_fused = name == "adam-bf16" and strategy.offload == "none"
    is_untested = name in ("sgd", "sgd-momentum", "adafactor") and strategy.zero_stage > 0
    momentum = 0.9 if name == "sgd-momentum" else None
    return told(
        {
            keys.MASTER: small,
            keys.STATES: small,
            keys.TYPE: (keys.TYPES[name], yours),
            keys.TORCH_ADAM: (is_fused or None, "the fused Adam keeps moments in fp32"),
            keys.MOMENTUM: (momentum, "keeps the momentum the plan counts"),
            keys.UNTESTED: (is_untested or None, "ZeRO asks for it with this optimizer"),
        }
    )


def _of_optimizer(settings: Settings) -> Decided:
    file = DeepspeedView(settings=settings)
    name, key = keys.NAMES.get(file.optimizer), keys.TYPE
    if name == "adam" and file[keys.STATES] is True:
        name, key = "adam-bf16", keys.STATES
    if name == "sgd" and as_number(file[keys.MOMENTUM]):
        name = "sgd-momentum"
    if name:
        yield "optimizer", key, name


def _to_stage(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    what = (
        "nothing is",
        "optimizer states are",
        "states and gradients are",
        "states, gradients and weights are",
    )
    stage, traits = strategy.zero_stage, context.traits
    why = f"{what[stage]} sharded over {strategy.dp * strategy.cp} ranks"
    yield KeyValue(key=keys.STAGE, value=stage, why=why)
    if not stage:
        return
    assumed: dict[str, tuple[object, str]] = {}
    if strategy.pp == 1:
        why = "gradients are reduced beside the backward pass, as the plan assumes"
        assumed["overlap_comm"] = traits.overlap.overlaps_gradient_reduction, why
    if elements := int(traits.overheads.bucket_elements):
        size = elements, "elements per message, as the plan assumes"
        assumed |= {"reduce_bucket_size": size, "allgather_bucket_size": size}
    for name, (value, why) in assumed.items():
        yield KeyValue(
            key=f"{keys.ZERO}.{name}",
            value=value,
            why=why,
            is_assumed=True,
        )


def _of_stage(settings: Settings) -> Decided:
    key = keys.STAGE if keys.STAGE in settings else keys.ZERO
    yield "zero_stage", key, DeepspeedView(settings=settings).stage


def _no_groups(context: Context, strategy: Strategy) -> Refused:
    ranks, num_gpus = secondary_ranks(context, strategy), strategy.num_gpus
    named, is_split = f"{keys.HPZ.partition('.')[2]} {ranks}", strategy.tp * strategy.cp > 1
    return {
        f"{named} with tp or cp: its groups are neighbouring ranks": ranks > 1 and is_split,
        f"{named}: must divide {num_gpus} GPUs": num_gpus % ranks,
    }


def _to_offload(_: Context, strategy: Strategy) -> Iterator[KeyValue]:
    sections = (("optimizer", "offload_optimizer"), ("parameters", "offload_param"))
    for (state, section), where in zip(sections, keys.DEVICES[strategy.offload], strict=True):
        if where == "none":
            continue
        key = f"{keys.ZERO}.{section}"
        yield KeyValue(
            key=f"{key}.device",
            value=where,
            why=f"{state} do not fit into HBM beside",
        )
        if where == "nvme":
            why = "change it to where the nodes mount their NVMe drives"
            yield KeyValue(
                key=f"{key}.nvme_path",
                value="/local_nvme",
                why=why,
                is_default=True,
            )
        why = "transfers at the link's rate"
        yield KeyValue(
            key=f"{key}.pin_memory",
            value=True,
            why=why,
            is_assumed=True,
        )
        if state == "optimizer" and strategy.offload_percent < 100:
            share = strategy.offload_percent / 100
            why = "share of the states that goes, the rest stays in HBM"
            yield KeyValue(key=keys.RATIO, value=share, why=why)


def _of_offload(settings: Settings) -> Decided:
    """Yield where states live; nothing for pairs of devices that are not modelled.

    Below stage 3 DeepSpeed keeps weights in HBM, whatever is said of them.
    """
    file = DeepspeedView(settings=settings)
    weights = file.weights_on if file.stage == 3 else "none"
    key = _DEVICES[0] if _DEVICES[0] in settings else _SWITCHES[0]
    code = keys.CODES.get((file.states_on, weights))
    if code and key in settings:
        yield "offload", key, code
    if keys.RATIO in settings and file.offloads and 0.0 < file.ratio <= 1.0:
        # Plans know whole percents, and a part that is offloaded is no 0 %.
        yield "offload_percent", keys.RATIO, max(1, round(100 * file.ratio))


def _modules(context: Context, strategy: Strategy) -> list[str] | None:
    if not any(strategy.selective_layers_per_stage):
        return None
    modules = strategy.recompute_modules
    return [*(context.traits.recompute.selected if modules is None else modules)]


def _some(counts: tuple[int, ...]) -> list[int] | None:
    return list(counts) if any(counts) else None


def _above_1(degree: int) -> int | None:
    return degree if degree > 1 else None


TABLE: Table = (
    KeyMapping(names=("vpp", "schedule", "placement"), keys=(), cannot=_REFUSALS["keys"]),
    KeyMapping(
        names=("global_batch", "micro_batch", "num_micro_batches", "dp", "num_gpus"),
        keys=(keys.TOTAL, keys.MICRO, keys.STEPS, keys.REPLICAS),
        to=_to_batch,
        of=_of_batch,
    ),
    KeyMapping(
        names=("precision",),
        keys=keys.ENABLED,
        to=_to_precision,
        of=_of_precision,
        cannot=problems,
        off=dict.fromkeys(keys.ENABLED, False),
    ),
    KeyMapping(
        names=("optimizer",),
        keys=(
            keys.MASTER,
            keys.STATES,
            keys.TYPE,
            keys.TORCH_ADAM,
            keys.MOMENTUM,
            keys.UNTESTED,
        ),
        to=_to_optimizer,
        of=_of_optimizer,
        off={keys.MASTER: False, keys.STATES: False, keys.UNTESTED: UNCHANGED},
    ),
    KeyMapping(
        names=("zero_stage",),
        keys=(keys.STAGE,),
        to=_to_stage,
        of=_of_stage,
        cannot=several(
            unless(
                lambda _, s: s.pp > 1 and s.zero_stage > 1,
                "zero_stage {s.zero_stage} with pp {s.pp}: allowed are 0 and 1",
            ),
            unless(
                lambda _, s: s.pp > 1 and s.cp > 1,
                "cp {s.cp} with pp {s.pp}: its pipeline knows no sequence groups",
            ),
        ),
    ),
    of_key(
        "",
        f"{keys.ZERO}.reduce_scatter",
        lambda c, s: False if c.traits.optimizer.name == "muon" and s.zero_stage == 3 else None,
        "Muon under stage 3 needs whole gradients",
        off=UNCHANGED,
    ),
    of_key(
        "",
        keys.HPZ,
        lambda c, s: _above_1(secondary_ranks(c, s)),
        "backward gathers weights inside the node, from a second copy there",
        off=1,
        cannot=_no_groups,
    ),
    KeyMapping(
        names=("offload", "offload_percent"),
        keys=(*_DEVICES, *_PATHS, *_SWITCHES, keys.RATIO),
        to=_to_offload,
        of=_of_offload,
        cannot=no_offload,
        off=dict.fromkeys(_DEVICES, "none") | dict.fromkeys(_PATHS, UNCHANGED),
    ),
    of_key(
        "tp",
        keys.TP,
        lambda _, s: _above_1(s.tp) if s.pp == 1 else None,
        "ranks that split every layer (AutoTP, neighbouring ranks)",
        read=lambda value: _above_1(as_whole(value) or 1),
        off=0,
        cannot=_REFUSALS["heads"],
    ),
    of_key(
        "cp", keys.SP, lambda _, s: _above_1(s.cp), "ranks that split the sequence (Ulysses)", off=1
    ),
    of_key(
        "",
        keys.EP_ON,
        lambda _, s: True if s.ep > 1 else None,
        "experts are split over ranks (AutoEP)",
        off=False,
        cannot=unless(
            lambda _, s: s.ep > 1 and s.pp * s.tp * s.cp > 1,
            "ep {s.ep} with tp, pp or cp: AutoEP is written alone only",
        ),
    ),
    of_key(
        "ep",
        keys.EP,
        lambda _, s: _above_1(s.ep),
        "ranks that split the experts",
        follows=lambda each: (
            as_whole(given(each, keys.EP)) if given(each, keys.EP_ON) is True else None
        ),
        off=UNCHANGED,
    ),
    of_key(
        "pp",
        keys.PP,
        lambda _, s: _above_1(s.pp),
        "your script gives it to PipelineModule(num_stages=...); DeepSpeed does not",
        off=1,
    ),
    of_key("seq_len", keys.LENGTH, lambda c, _: c.job.seq_len, "tokens per sequence of your data"),
    of_key(
        "tp",
        keys.SCRIPT_TP,
        lambda _, s: _above_1(s.tp) if s.pp > 1 else None,
        "num_mp of your PipeModelDataParallelTopology; the layers must split themselves",
        follows=lambda each: (
            as_whole(given(each, keys.SCRIPT_TP))
            if DeepspeedView(settings=each).autotp == 1
            else None
        ),
    ),
    of_key(
        "layers_per_stage",
        keys.LAYERS,
        lambda _, s: list(s.layers_per_stage) if s.pp > 1 else None,
        "transformer blocks of every stage, for your PipelineModule",
        read=as_counts,
    ),
    of_key(
        "selective_layers_per_stage",
        f"{keys.SCRIPT}.selective_layers_per_stage",
        lambda _, s: _some(s.selective_layers_per_stage),
        "of those, the first ones recompute the modules below",
        read=as_counts,
    ),
    of_key(
        "recompute_modules",
        f"{keys.SCRIPT}.recompute_modules",
        _modules,
        "what those recompute",
        read=as_texts,
    ),
    of_key(
        "recompute_layers_per_stage",
        f"{keys.SCRIPT}.recompute_layers_per_stage",
        lambda _, s: _some(s.recompute_layers_per_stage),
        "of those, how many run under activation checkpointing",
        read=as_counts,
    ),
)

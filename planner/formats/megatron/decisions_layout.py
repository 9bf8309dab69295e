"""Degrees, stages, batch and policies of layers in Megatron-LM's options, row by row.

Sources: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py.
"""

from collections.abc import Iterator, Sequence

from planner.cost.context import Context
from planner.formats.decision import (
    Decided,
    KeyValue,
    Table,
    derived,
    says,
    several,
    stated,
    unless,
)
from planner.formats.format import ALL, PerChunk
from planner.formats.megatron.layout import (
    even_chunks,
    layout_text,
    mtp_in,
    per_stage,
    uniform_block,
)
from planner.formats.megatron.options import (
    BATCH,
    CHUNK,
    CHUNKS,
    EMBEDDING,
    ETP,
    FIRST,
    HOST_LAYERS,
    INNER,
    LAST,
    LAYOUT,
    LOSS,
    MICRO,
    MTP,
    PP,
    SP,
    TP,
    accounted,
    choices,
    chunks_in,
    degree,
    names,
    number,
    row,
    whole,
)
from planner.formats.megatron.runtime import exchanges_beside_batches
from planner.formats.rules import Refused
from planner.formats.settings import Settings, flag, given, word
from planner.schedules.closed_form import chunk_layers
from planner.spec.strategy import PLACEMENT_NAMES, Strategy

SCHEDULE = "1f1b"
# Options that cut layers into stages and chunks.
SPLITS = (LAYOUT, CHUNK, CHUNKS, FIRST, LAST, EMBEDDING, LOSS)
# Layers of a chunk that stand for however many it has.
_MANY = 10_000


def chunks_of_strategy(strategy: Strategy) -> tuple[int, ...]:
    """Layers of every model chunk from embedding to head."""
    return chunk_layers(strategy.layers_per_stage, strategy.vpp)


def _to_etp(_: Context, strategy: Strategy) -> Iterator[KeyValue]:
    split = f"split {strategy.etp} ways" if strategy.etp > 1 else "whole"
    stated = strategy.etp if strategy.etp != strategy.tp else None
    return choices({ETP: (stated, f"experts are {split}")})


def _no_stages(context: Context, strategy: Strategy) -> Refused:
    schedule, has_chunks = strategy.schedule, strategy.vpp > 1
    is_bare = context.traits.overlap.pipeline_p2p_overlap == "none"
    exchanges = exchanges_beside_batches(context, strategy)
    runs = f"Megatron-LM runs {SCHEDULE}, with and without chunks"
    return {
        f"schedule: {schedule}; {runs}": schedule != SCHEDULE,
        "pp: 2 with chunks; without overlapped transfers interleaving needs 3 stages": (
            is_bare and has_chunks and strategy.pp == 2
        ),
        "vpp: 1 with stages and overlapped expert exchange, which needs chunks": (
            exchanges and strategy.pp > 1 and not has_chunks
        ),
    }


def _to_chunks(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    chunks = chunks_of_strategy(strategy)
    if strategy.pp > 1 and chunks != even_chunks(sum(chunks), strategy.pp, strategy.vpp):
        layers = ", ".join(map(str, strategy.layers_per_stage))
        why = f"layers per stage, from embedding (E) to loss (L): {layers}"
        yield from choices({LAYOUT: (layout_text(chunks, context.job.mtp_layers), why)})
    elif strategy.pp > 1 and strategy.vpp > 1:
        why = f"interleaved 1F1B: each stage holds {strategy.vpp} chunks of {chunks[0]} layers"
        yield from choices({CHUNK: (chunks[0], why)})


def _of_chunks(settings: Settings) -> Decided:
    pp, chunks = whole(settings, PP), chunks_in(settings)
    if chunks is None:
        vpp, key = whole(settings, CHUNKS), CHUNKS
    else:
        vpp, key = len(chunks) // pp, next((each for each in (*SPLITS, PP) if each in settings), PP)
    if vpp > 1:
        yield "vpp", key, vpp
    if chunks is not None:
        yield "layers_per_stage", key, per_stage(chunks, pp)
    layout = word(settings, LAYOUT)
    if layout and mtp_in(layout) != whole(settings, MTP, 0):
        # Layers of multi-token prediction in a layout, where those are not all.
        yield "_layout_mtp", LAYOUT, mtp_in(layout)


def selected_modules(context: Context, strategy: Strategy) -> tuple[str, ...]:
    """Return the modules that selective recomputation repeats."""
    named = strategy.recompute_modules
    return context.traits.recompute.selected if named is None else named


def _to_policies(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    selective, full, offloaded = strategy.policy_counts
    options: dict[str, tuple[object, str]] = {}
    if any(full):
        how = f"layers recomputed in full, per stage: {', '.join(map(str, full))}"
        method, units = "uniform", "layers per recomputed unit"
        block: int | None = 1
        if full != strategy.layers_per_stage:
            method, units = "block", "of every model chunk, as many layers"
            block = uniform_block(chunks_of_strategy(strategy), full)
        options = {
            "--recompute-granularity": ("full", how),
            "--recompute-method": (method, how),
            "--recompute-num-layers": (block, units),
        }
    elif any(selective):
        cheap = "the cheap, large activations are recomputed in backward"
        options = {
            "--recompute-granularity": ("selective", cheap),
            "--recompute-modules": (selected_modules(context, strategy), cheap),
        }
    where = "layers whose saved activations go to the host"
    return choices({**options, HOST_LAYERS: (offloaded[0] or None, where)})


def _of_policies(settings: Settings) -> Decided:
    """Yield the policies in the chunks; in equal ones whose number is the recipe's, in each one."""
    chunks, pp = chunks_in(settings), whole(settings, PP)
    has_ends = any(number(settings, option) is not None for option in (FIRST, LAST))
    is_uneven = bool(word(settings, LAYOUT)) or has_ends or any(accounted(settings))
    if chunks is not None:
        yield from _policies(settings, chunks, per_stage(chunks, pp))
    elif "--num-layers" not in settings and not is_uneven:
        for name, key, value in _policies(settings, (_MANY,), (_MANY,) * min(pp, 2)):
            if name not in ("recompute_modules", "_recompute_unit"):
                value = ALL if value[0] == _MANY else PerChunk(value[0])
            yield name, key, value


def _policies(settings: Settings, chunks: Sequence[int], layers: tuple[int, ...]) -> Decided:
    key, modules, unit = "--recompute-granularity", "--recompute-modules", "--recompute-num-layers"
    granularity = word(settings, key)
    if flag(settings, "--recompute-activations") or granularity == "selective":
        yield "selective_layers_per_stage", key, layers
        selected = names(settings, modules, ("core_attn",))
        yield "recompute_modules", modules, selected
    elif granularity == "full":
        full = layers
        if word(settings, "--recompute-method") == "block":
            most = whole(settings, unit, 0)
            full = per_stage([min(n, most) for n in chunks], len(layers))
        yield "recompute_layers_per_stage", unit, full
        # Whether a unit of recomputation is given: Megatron has no default.
        yield "_recompute_unit", unit, unit in settings
    offloaded = whole(settings, HOST_LAYERS, 0)
    if offloaded > 0 and len(layers) == 1:
        counts = (min(offloaded, layers[0]),)
        yield "offloaded_layers_per_stage", HOST_LAYERS, counts


def _no_policies(context: Context, strategy: Strategy) -> Refused:
    layers, (selective, full, offloaded) = strategy.layers_per_stage, strategy.policy_counts
    modules, chunks = selected_modules(context, strategy), chunks_of_strategy(strategy)
    is_mixed, is_offloaded = any(selective) and any(full), any(offloaded)
    is_part = any(selective) and selective != layers and not is_mixed
    no_block = any(full) and full != layers and uniform_block(chunks, full) is None
    exchanges = exchanges_beside_batches(context, strategy)
    of_full = f"recompute_layers_per_stage: {list(full)}"
    of_part = f"selective_layers_per_stage: {list(selective)} of {list(layers)}"
    offload, forbids = "offloaded_layers_per_stage", "overlapped expert exchange, which forbids it"
    one_number = "--recompute-num-layers is one number for every chunk"
    return {
        "recomputation: some layers in full, others selectively; one policy holds everywhere": (
            is_mixed
        ),
        f"{of_part}; selective recomputation takes all layers": is_part,
        f"{of_full}; {one_number}, and chunks hold {list(chunks)}": no_block and not is_mixed,
        "recompute_modules: none; selective recomputation needs at least one": (
            any(selective) and not modules
        ),
        f"{offload}: beside recomputation; Megatron-LM does one or the other": (
            is_offloaded and (any(selective) or any(full))
        ),
        f"{offload}: with pipeline stages; only without": is_offloaded and strategy.pp > 1,
        f"{offload}: all {sum(offloaded)} layers; one must stay": (
            is_offloaded and offloaded == layers
        ),
        f"recompute_layers_per_stage: beside {forbids}": exchanges and any(full),
        f"recompute_modules: moe, beside {forbids}": (
            exchanges and any(selective) and "moe" in modules
        ),
    }


ROWS: Table = (
    degree(
        "tp",
        "--tensor-model-parallel-size",
        "every layer is split over {s.tp} ranks",
        least=1,
    ),
    row(
        "sequence_parallel",
        SP,
        says(
            SP,
            lambda _, s: s.sequence_parallel or None,
            "norms and residuals are split over the tensor-parallel ranks too",
        ),
        derived(
            "sequence_parallel",
            SP,
            lambda settings: (flag(settings, SP) and whole(settings, TP) > 1) or None,
        ),
        unless(
            lambda c, s: c.model.moe and s.tp > 1 and not s.sequence_parallel,
            "sequence_parallel: off; a mixture with tensor parallelism needs it in training",
        ),
    ),
    degree("cp", "--context-parallel-size", "every sequence is split over {s.cp} ranks"),
    degree("ep", "--expert-model-parallel-size", "experts are shared out over {s.ep} ranks"),
    row(
        "etp",
        ETP,
        _to_etp,
        # As stated, and what holds: experts are split as other layers are where nothing is.
        several(
            stated("etp", ETP),
            derived(ETP, ETP, lambda settings: whole(settings, ETP, whole(settings, TP))),
        ),
        unless(
            lambda c, s: c.model.moe and c.model.moe.expert_bias and s.etp > 1,
            "etp: {s.etp} with biases in experts, which are not split",
        ),
    ),
    row(
        "placement",
        INNER,
        says(
            INNER,
            lambda _, s: s.placement != PLACEMENT_NAMES[0] or None,
            "neighbouring ranks hold pipeline stages, data-parallel ranks are further apart",
        ),
        derived(
            "placement",
            INNER,
            lambda settings: PLACEMENT_NAMES[1] if flag(settings, INNER) else None,
        ),
    ),
    row(
        "pp schedule",
        PP,
        says(PP, lambda _, s: s.pp, "layers are split into {s.pp} pipeline stages"),
        several(
            stated("pp", PP),
            derived("schedule", PP, lambda each: SCHEDULE if whole(each, PP) > 1 else None),
        ),
        _no_stages,
    ),
    row("layers_per_stage vpp", " ".join(SPLITS), _to_chunks, _of_chunks),
    row(
        "mtp_layers",
        MTP,
        says(
            MTP,
            lambda c, _: c.job.mtp_layers or None,
            "layers that predict further tokens, on the last stage",
        ),
        derived(
            "mtp_layers",
            MTP,
            lambda settings: given(settings, MTP) if MTP in settings else 0,
        ),
    ),
    row(
        "micro_batch",
        MICRO,
        says(
            MICRO,
            lambda _, s: s.micro_batch,
            "{s.num_micro_batches} micro-batches per iteration and replica",
        ),
        stated("micro_batch", MICRO),
    ),
    row(
        "global_batch",
        BATCH,
        says(
            BATCH,
            lambda c, _: c.job.global_batch,
            "shared out over {s.dp} data-parallel replicas",
        ),
        stated("global_batch", BATCH),
    ),
    row(
        "seq_len",
        "--seq-length --encoder-seq-length",
        says("--seq-length", lambda c, _: c.job.seq_len, "tokens per sequence, as planned"),
        several(stated("seq_len", "--encoder-seq-length"), stated("seq_len", "--seq-length")),
    ),
    row(
        "selective_layers_per_stage recompute_layers_per_stage offloaded_layers_per_stage "
        "recompute_modules",
        "--recompute-granularity --recompute-modules --recompute-method --recompute-num-layers "
        "--recompute-activations --cpu-offloading-num-layers",
        _to_policies,
        _of_policies,
        _no_policies,
    ),
)

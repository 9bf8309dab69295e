"""Megatron-LM's table: every decision with its options, what it says there, and what it cannot.

Sources: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.formats.decision import (
    Decided,
    KeyValue,
    Table,
    changes,
    decided_in,
    lines_of,
    nothing,
    of_key,
    reads,
    reads_key,
    several,
)
from planner.formats.format import ALL, Located, ParsedConfig, PerChunk
from planner.formats.megatron.model import (
    SIZES,
    runtime_choices,
    shape_choices,
    shape_reasons,
)
from planner.formats.megatron.options import (
    BATCH,
    CHUNK,
    CHUNKS,
    CP,
    ETP,
    LAYERS,
    LAYOUT,
    MICRO,
    MTP,
    PARTS,
    PATTERN,
    PP,
    SP,
    SPLITS,
    STEPS,
    TP,
    alike,
    chunks_in,
    degree,
    even_chunks,
    last_batch,
    layout_text,
    load_options,
    names,
    number,
    options,
    parts_in,
    per_stage,
    row,
    uniform_block,
    whole,
    with_open,
    word,
)
from planner.formats.megatron.states import (
    CHECKPOINTS,
    REFUSALS,
    STATES,
    of_runtime,
)
from planner.formats.settings import Settings, flag, given
from planner.schedules.closed_form import chunk_layers
from planner.spec.model import ModelSpec
from planner.spec.strategy import PLACEMENT_NAMES, Strategy

SCHEDULE = "1f1b"
# Layers of a chunk that stand for however many it has.
_MANY = 10_000


def _to_chunks(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    pp, vpp = strategy.pp, strategy.vpp
    chunks = chunk_layers(strategy.layers_per_stage, vpp)
    if PARTS.intersection(context.model.layer_pattern):
        why = "attention (*), Mamba-2 (M), experts (E) and MLPs (-) of the parts of the pipeline"
        yield from alike({PATTERN: _pattern(context, chunks if pp > 1 else ())}, why)
    elif pp > 1 and chunks != even_chunks(sum(chunks), pp, vpp):
        layers = ", ".join(map(str, strategy.layers_per_stage))
        why = f"layers per stage, from embedding (E) to loss (L): {layers}"
        yield from alike({LAYOUT: layout_text(chunks, context.job.mtp_layers)}, why)
    elif pp > 1 and vpp > 1:
        why = f"interleaved 1F1B: each stage holds {vpp} chunks of {chunks[0]} layers"
        yield from alike({"--num-layers-per-virtual-pipeline-stage": chunks[0]}, why)


def _pattern(context: Context, chunks: Sequence[int]) -> str:
    """Letters of all layers, | between chunks, and / before each that predicts a further token."""
    model = context.model
    letters = iter(model.layer_pattern)
    parts = ["".join(islice(letters, count)) for count in chunks]
    main = "|".join(parts) or model.layer_pattern
    further = model.mtp_pattern or main[-1]
    return main + f"/{further}" * context.job.mtp_layers


def _of_chunks(settings: Settings) -> Decided:
    pp, chunks = whole(settings, PP), chunks_in(settings)
    vpp, key = whole(settings, CHUNKS), CHUNKS
    if chunks is not None:
        vpp = len(chunks) // pp
        key = next((each for each in SPLITS if each in settings), PP)
    elif size := whole(settings, CHUNK, 0):
        # The last chunks are smaller where layers do not divide.
        vpp, key = max(1, -(-whole(settings, LAYERS, 0) // (pp * size))), CHUNK
    if vpp > 1:
        yield "vpp", key, vpp
    if chunks is not None:
        yield "layers_per_stage", key, per_stage(chunks, pp)
    layout = word(settings, LAYOUT)
    mtp_layers = "".join(parts_in(layout)).count("m")
    if layout and (chunks is None or mtp_layers != whole(settings, MTP, 0)):
        # Made for other stages, or without all layers of multi-token prediction.
        yield "_layout", LAYOUT, layout


def selected_modules(context: Context, strategy: Strategy) -> tuple[str, ...]:
    """Return the modules that selective recomputation repeats."""
    named = strategy.recompute_modules
    return context.traits.recompute.selected if named is None else named


def _unit(_: Context, strategy: Strategy) -> int | None:
    """Layers of a recomputed unit, or of every model chunk the first ones that are recomputed."""
    full = strategy.recompute_layers_per_stage
    if not any(full) or full == strategy.layers_per_stage:
        return 1 if any(full) else None
    return uniform_block(chunk_layers(strategy.layers_per_stage, strategy.vpp), full)


def _of_policies(settings: Settings) -> Decided:
    """Yield the policies in the chunks; where nobody knows their layers, in each chunk alike."""
    chunks, pp = chunks_in(settings), whole(settings, PP)
    if chunks is not None:
        yield from _policies(settings, chunks, per_stage(chunks, pp))
        return
    for name, key, value in _policies(settings, (_MANY,), (_MANY,) * min(pp, 2)):
        if name not in ("recompute_modules", "_recompute_unit"):
            value = ALL if value[0] == _MANY else PerChunk(value[0])
        yield name, key, value


def _policies(settings: Settings, chunks: Sequence[int], layers: tuple[int, ...]) -> Decided:
    key, modules, unit = "--recompute-granularity", "--recompute-modules", "--recompute-num-layers"
    granularity = word(settings, key)
    if flag(settings, "--recompute-activations") or granularity == "selective":
        yield "selective_layers_per_stage", key, layers
        yield "recompute_modules", modules, names(settings, modules, ("core_attn",))
    elif granularity == "full":
        full = layers
        if word(settings, "--recompute-method") == "block":
            most = whole(settings, unit, 0)
            full = per_stage([min(n, most) for n in chunks], len(layers))
        yield "recompute_layers_per_stage", unit, full
        # Whether a unit of recomputation is given: Megatron has no default.
        yield "_recompute_unit", unit, unit in settings
    offloaded = whole(settings, "--cpu-offloading-num-layers", 0)
    if offloaded > 0 and len(layers) == 1:
        counts = (min(offloaded, layers[0]),)
        yield "offloaded_layers_per_stage", "--cpu-offloading-num-layers", counts


def _no_policies(context: Context, strategy: Strategy) -> Iterator[str]:
    full = strategy.recompute_layers_per_stage
    chunks = chunk_layers(strategy.layers_per_stage, strategy.vpp)
    is_uneven = any(full) and full != strategy.layers_per_stage
    return REFUSALS["policies"](
        context,
        strategy,
        modules=selected_modules(context, strategy),
        chunks=chunks,
        no_block=is_uneven and uniform_block(chunks, full) is None,
    )


_IN_FULL = "layers recomputed in full, per stage: {recompute_layers_per_stage}"
_CHEAP = "the cheap, large activations are recomputed in backward"
# Decisions: what a repair of a file changes.
ROWS: Table = (
    of_key("tp", TP, "tp", "every layer is split over {tp} ranks"),
    of_key(
        "sequence_parallel",
        SP,
        "sequence_parallel or None",
        "norms and residuals are split over the tensor-parallel ranks too",
        follows=lambda settings: (whole(settings, TP) > 1 and flag(settings, SP)) or None,
        cannot=REFUSALS["sequence_parallel"],
    ),
    degree("cp", "--context-parallel-size", "every sequence is split over {cp} ranks"),
    degree("ep", "--expert-model-parallel-size", "experts are shared out over {ep} ranks"),
    row(
        "etp",
        ETP,
        options(
            {
                ETP: (
                    "etp if etp != tp else None",
                    "experts are {'split ' + str(etp) + ' ways' if etp > 1 else 'whole'}",
                )
            }
        ),
        # As stated, and what holds: experts are split as other layers are where nothing is.
        several(
            reads_key("etp", ETP),
            reads(ETP, ETP, lambda settings: whole(settings, ETP, whole(settings, TP))),
        ),
        REFUSALS["etp"],
    ),
    of_key(
        "placement",
        "--use-tp-pp-dp-mapping",
        f"placement != {PLACEMENT_NAMES[0]!r} or None",
        "neighbouring ranks hold pipeline stages, data-parallel ranks are further apart",
        read=lambda is_inner: PLACEMENT_NAMES[1] if is_inner else None,
    ),
    of_key(
        "pp",
        PP,
        "pp",
        "layers are split into {pp} pipeline stages",
        of=several(
            reads_key("pp", PP),
            reads("schedule", PP, lambda each: SCHEDULE if whole(each, PP) > 1 else None),
        ),
        cannot=REFUSALS["stages"],
    ),
    row("layers_per_stage vpp", " ".join(SPLITS), _to_chunks, _of_chunks),
    of_key(
        "mtp_layers",
        MTP,
        "job.mtp_layers or None",
        "layers that predict further tokens, on the last stage",
        follows=lambda settings: given(settings, MTP) if MTP in settings else 0,
    ),
    of_key(
        "micro_batch",
        "--micro-batch-size",
        "micro_batch",
        "{num_micro_batches} micro-batches per iteration and replica",
    ),
    of_key(
        "global_batch",
        BATCH,
        "job.global_batch",
        "shared out over {dp} data-parallel replicas",
        # Most of a training takes the last batch of a schedule.
        of=several(reads_key("global_batch", BATCH), reads("global_batch", STEPS, last_batch)),
        more=(STEPS,),
    ),
    of_key(
        "seq_len",
        "--seq-length",
        "job.seq_len",
        "tokens per sequence, as planned",
        of=several(
            reads_key("seq_len", "--encoder-seq-length"), reads_key("seq_len", "--seq-length")
        ),
        more=("--encoder-seq-length",),
    ),
    row(
        "selective_layers_per_stage recompute_layers_per_stage offloaded_layers_per_stage "
        "recompute_modules",
        "--recompute-granularity --recompute-modules --recompute-method --recompute-num-layers "
        "--recompute-activations --cpu-offloading-num-layers",
        options(
            {
                "--recompute-granularity": (
                    (
                        "'full' if any(recompute_layers_per_stage) "
                        "else 'selective' if any(selective_layers_per_stage) else None"
                    ),
                    {"full": _IN_FULL, "selective": _CHEAP},
                ),
                "--recompute-method": (
                    (
                        "None if not any(recompute_layers_per_stage) else 'uniform' "
                        "if recompute_layers_per_stage == layers_per_stage else 'block'"
                    ),
                    _IN_FULL,
                ),
                "--recompute-num-layers": (
                    _unit,
                    (
                        "{'layers per recomputed unit' if recompute_layers_per_stage == "
                        "layers_per_stage else 'of every model chunk, as many layers'}"
                    ),
                ),
                "--recompute-modules": (
                    lambda context, strategy: (
                        selected_modules(context, strategy)
                        if any(strategy.selective_layers_per_stage)
                        and not any(strategy.recompute_layers_per_stage)
                        else None
                    ),
                    _CHEAP,
                ),
                "--cpu-offloading-num-layers": (
                    "sum(offloaded_layers_per_stage) or None",
                    "layers whose saved activations go to the host",
                ),
            }
        ),
        _of_policies,
        _no_policies,
    ),
    *STATES,
)
TABLE: Table = [own if own is CHECKPOINTS else with_open(own) for own in ROWS]


def _of_groups(settings: Settings) -> Decided:
    heads = number(settings, "--num-attention-heads")
    if flag(settings, "--group-query-attention"):
        yield "model.num_kv_heads", "--num-query-groups", whole(settings, "--num-query-groups")
    elif heads is not None:
        yield "model.num_kv_heads", "--group-query-attention", heads


MODEL: Table = (
    row("", "", lambda c, _: shape_choices(c), nothing, lambda c, _: shape_reasons(c)),
    *(row(name, key, nothing, reads_key(name, key)) for name, key in SIZES.items()),
    row("model.num_kv_heads", "--group-query-attention --num-query-groups", nothing, _of_groups),
)
# All that an args file says, in its order.
FILE: Table = (
    *MODEL,
    *TABLE,
    row("gradient_bytes expert_exchange", "", runtime_choices, of_runtime, REFUSALS["gradients"]),
)
# Options that say how a job is parallelized, and what it is.
OWNED = frozenset(key for row in (*MODEL, *TABLE) for key in row.keys)


def problems(context: Context) -> Iterator[str]:
    """Yield what no option of Megatron-LM expresses for any layout: the model, the optimizer."""
    yield from shape_reasons(context)
    yield from REFUSALS["optimizer"](context)
    yield from REFUSALS["profile"](context)


def left_open(settings: Settings) -> dict[str, Located]:
    """Decisions that are stated as numbers, nobody knows which."""
    return {
        row.names[0]: settings[row.keys[0]]
        for row in FILE
        if row.keys
        and row.keys[0] in settings
        and given(settings, row.keys[0]) is None
        and load_options()[row.keys[0]].kind == "int"
    }


def decisions_of(settings: Settings, num_gpus: Located | None = None) -> dict[str, Located]:
    """Everything the options decide; what a default of Megatron decides stands in line 0."""
    found = decided_in(FILE, settings)
    if num_gpus is None:
        return found
    found["num_gpus"] = num_gpus
    inner = whole(settings, TP) * whole(settings, PP) * whole(settings, CP)
    if left_open(settings) or num_gpus.value % inner:
        return found
    dp, micro = num_gpus.value // inner, whole(settings, MICRO, 0)
    found["dp"] = replace(num_gpus, value=dp)
    if not micro:
        return found
    batch = found.setdefault("global_batch", Located(value=micro * dp, key=BATCH))
    if batch.value > 0 and batch.value % (micro * dp) == 0:
        found["num_micro_batches"] = replace(batch, value=batch.value // (micro * dp))
    return found


def with_layers(reading: ParsedConfig, options: Settings, model: ModelSpec) -> ParsedConfig:
    """The reading with the stages of a model whose number of layers the options leave open."""
    if LAYERS in options or "pp" in reading.left_open:
        return reading
    whole_model = {**options, LAYERS: Located(value=model.num_layers, key=LAYERS)}
    rows = [row for row in ROWS if {"vpp", "recompute_modules"} & {*row.names}]
    split = decided_in(rows, whole_model)
    return replace(reading, decisions={**reading.decisions, **split})


def lines_by_option(table: Table, context: Context, strategy: Strategy) -> dict[str, KeyValue]:
    """Return a plan in Megatron's options, by key; chunks of a stage are given by number."""
    lines = {line.key: line for line in lines_of(table, context, strategy)}
    lines.pop(CHUNK, None)
    if strategy.vpp > 1:
        lines[CHUNKS] = KeyValue(key=CHUNKS, value=strategy.vpp, why="chunks per stage")
    return lines


def edits(table: Table, settings: Settings, lines: Iterable[KeyValue]) -> dict[str, Any]:
    """The options of a file that change, and to what; REMOVED: the option goes.

    One that says what Megatron does without it counts as not given, and is not added.
    """
    keys = {key for row in table for key in row.keys}
    others = [
        KeyValue(key=key, value=each.value, is_assumed=True)
        for key, each in settings.items()
        if key not in keys
    ]
    said = {key: each for key, each in settings.items() if not _is_default(key, each.value)}
    found = changes(table, said, [*others, *lines])

    def is_said(key: str, value: object) -> bool:
        is_same = value is not REMOVED and given(settings, key) == value
        return is_same if key in settings else _is_default(key, value)

    return {key: value for key, value in found.items() if not is_said(key, value)}


def _is_default(key: str, value: object) -> bool:
    """Return True if Megatron does the same without the option."""
    option = load_options().get(key)
    return option is not None and option.takes_values and str(value) == option.default

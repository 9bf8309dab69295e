"""Rules of pipelining: schedules, stages, micro-batches, and where the layers are."""

from collections import Counter
from collections.abc import Iterator, Mapping

from planner.formats.format import Broken, FormatRule, Value, World, rule
from planner.formats.torchtitan import decisions as key
from planner.formats.torchtitan.known import config_of, degree, effective
from planner.formats.torchtitan.layout import (
    OTHER_SCHEDULES,
    SCHEDULE_NAMES,
    SINGLE,
    default_counts,
    layers_in,
    num_parts,
    schedule_named,
)
from planner.spec.strategy import V_SHAPED

Settings = Mapping[str, Value]
SPLIT_BACKWARD = ("zb-interleaved", "zb-v", "dualpipe-v")
ROUNDS = ("interleaved", "zb-interleaved")


def broken(settings: Settings, name: str, message: str) -> Broken:
    """How a rule is broken, with the key as the file spells it."""
    return Broken(key=settings[name].key if name in settings else f"--{name}", message=message)


def _pp(settings: Settings) -> int:
    return degree(settings, "pipeline_parallel")


def _schedule(settings: Settings) -> str:
    return schedule_named(str(effective(settings, key.SCHEDULE)))


def _num_layers(settings: Settings, world: World) -> int:
    known = config_of(settings).model.get("num_layers", 0)
    return int(known or world.decisions.get("model.num_layers") or 0)


def _parts(settings: Settings, world: World) -> int:
    """Model parts that are listed, or that torchtitan makes; 0: not known."""
    listed, layers = effective(settings, key.PARTS), _num_layers(settings, world)
    per_part = effective(settings, key.LAYERS)
    if listed is not None:
        return len(listed)
    if per_part is not None and (per_part < 1 or not layers):
        return 0
    weights = (effective(settings, key.FIRST_LESS), effective(settings, key.LAST_LESS))
    return num_parts(layers, _pp(settings), _schedule(settings), per_part, *weights)


def _micro_batches(settings: Settings) -> int:
    """Of one step of the pipeline; 0 where the batch is not divided."""
    size, local = effective(settings, key.MICRO_BATCH), effective(settings, key.LOCAL_BATCH)
    return int(local // size) if size > 0 and local % size == 0 else 0


def micro_batch_is_positive(settings: Settings, _: World) -> Iterator[Broken]:
    """A micro-batch of the pipeline holds a sequence at least."""
    size = effective(settings, key.MICRO_BATCH)
    if size < 1:
        yield broken(settings, key.MICRO_BATCH, f"{size} given; needs 1 or more")


def micro_batch_divides_local(settings: Settings, _: World) -> Iterator[Broken]:
    """Micro-batches of the pipeline make up the local batch."""
    size, local = effective(settings, key.MICRO_BATCH), effective(settings, key.LOCAL_BATCH)
    if _pp(settings) > 1 and size > 0 and local % size:
        message = f"{size} given; needs a divisor of the local batch {local}"
        yield broken(settings, key.MICRO_BATCH, message)


def schedule_is_known(settings: Settings, _: World) -> Iterator[Broken]:
    """The schedule is one of torch's."""
    given = effective(settings, key.SCHEDULE)
    if _pp(settings) > 1 and not _schedule(settings):
        names = ", ".join((*SCHEDULE_NAMES.values(), *OTHER_SCHEDULES))
        yield broken(settings, key.SCHEDULE, f"{given!r} given; allowed are {names}")


def tied_model_has_one_stage(settings: Settings, _: World) -> Iterator[Broken]:
    """Models with tied embeddings are not pipelined."""
    pp = _pp(settings)
    if pp > 1 and config_of(settings).model.get("tied_embeddings"):
        message = f"{pp} given; the config ties embedding and head, which allows 1"
        yield broken(settings, key.DEGREES["pp"], message)


def stages_fill_ranks(settings: Settings, world: World) -> Iterator[Broken]:
    """Model parts are dealt out evenly over the pipeline's ranks."""
    pp, parts = _pp(settings), _parts(settings, world)
    if pp > 1 and parts % pp:
        name = key.PARTS if effective(settings, key.PARTS) is not None else key.LAYERS
        yield broken(settings, name, f"{parts} model parts; needs a multiple of {pp} stages")


def stages_fit_schedule(settings: Settings, world: World) -> Iterator[Broken]:
    """1F1B and GPipe take one part per rank where the number follows from layers per stage.

    Interleaved schedules then take two at least.
    """
    pp, parts, schedule = _pp(settings), _parts(settings, world), _schedule(settings)
    computed = effective(settings, key.PARTS) is None and effective(settings, key.LAYERS)
    if pp < 2 or not computed or not parts or parts % pp or not schedule:
        return
    each = parts // pp
    if schedule in SINGLE and each != 1:
        yield broken(settings, key.LAYERS, f"{each} model parts per rank; the schedule takes 1")
    if schedule not in SINGLE and schedule != "other" and each < 2:
        yield broken(settings, key.LAYERS, f"{each} model part per rank; the schedule needs 2")


def listed_parts_fit_schedule(settings: Settings, _: World) -> Iterator[Broken]:
    """1F1B and GPipe run the first listed part of every rank, and forget the others."""
    pp, schedule, listed = _pp(settings), _schedule(settings), effective(settings, key.PARTS)
    if pp > 1 and listed is not None and schedule in SINGLE and len(listed) > pp:
        message = f"{len(listed)} model parts; the schedule takes one per rank, {pp}"
        yield broken(settings, key.PARTS, message)


def v_schedule_has_two_parts(settings: Settings, world: World) -> Iterator[Broken]:
    """V-shaped schedules take two model parts per rank."""
    pp, parts, schedule = _pp(settings), _parts(settings, world), _schedule(settings)
    if pp > 1 and schedule in V_SHAPED and parts and parts % pp == 0 and parts != 2 * pp:
        name = key.PARTS if effective(settings, key.PARTS) is not None else key.LAYERS
        yield broken(settings, name, f"{parts} model parts; the schedule takes {2 * pp}")


def micro_batches_fill_pipeline(settings: Settings, world: World) -> Iterator[Broken]:
    """1F1B needs as many micro-batches as stages, DualPipeV as many as model parts."""
    pp, schedule, number = _pp(settings), _schedule(settings), _micro_batches(settings)
    least = {"1f1b": pp, "dualpipe-v": _parts(settings, world)}.get(schedule, 0)
    if pp > 1 and number and number < least:
        local = effective(settings, key.LOCAL_BATCH)
        message = f"{local} given, {number} micro-batches; the schedule needs {least}"
        yield broken(settings, key.LOCAL_BATCH, message)


def micro_batches_make_rounds(settings: Settings, _: World) -> Iterator[Broken]:
    """Interleaved schedules run micro-batches in equal rounds of at least one per stage."""
    pp, number = _pp(settings), _micro_batches(settings)
    if pp < 2 or not number or _schedule(settings) not in ROUNDS:
        return
    rounds = max(1, number // pp)
    if number % rounds:
        message = f"{number} micro-batches; interleaving needs a multiple of {rounds} rounds"
        yield broken(settings, key.LOCAL_BATCH, message)


def split_backward_is_eager(settings: Settings, _: World) -> Iterator[Broken]:
    """Schedules that split the backward do not run compiled blocks."""
    compiles = effective(settings, "compile.enable")
    compiles = compiles and "model" in effective(settings, "compile.components")
    if _pp(settings) > 1 and compiles and _schedule(settings) in SPLIT_BACKWARD:
        given = effective(settings, key.SCHEDULE)
        message = f"{given} given with compiled blocks; needs --compile.no-enable"
        yield broken(settings, key.SCHEDULE, message)


def stage_weights_fit(settings: Settings, world: World) -> Iterator[Broken]:
    """Embedding and head weigh no more layers than a model part has, and every part has some."""
    layers, parts = _num_layers(settings, world), _parts(settings, world)
    if _pp(settings) < 2 or not layers or not parts or effective(settings, key.PARTS) is not None:
        return
    first, last = effective(settings, key.FIRST_LESS), effective(settings, key.LAST_LESS)
    if default_counts(layers, parts, first, last) is None:
        given = f"{parts} model parts of {layers} layers, embedding {first} and head {last}"
        yield broken(settings, key.FIRST_LESS, f"{given}; a part needs a layer and its weight")


def parts_hold_all_layers(settings: Settings, world: World) -> Iterator[Broken]:
    """Every layer stands in one model part; torchtitan drops those that are missing."""
    listed, layers = effective(settings, key.PARTS), _num_layers(settings, world)
    if _pp(settings) < 2 or listed is None or not layers:
        return
    counts = Counter(layer for part in listed for layer in layers_in(part))
    wrong = [layer for layer in range(layers) if counts[layer] != 1]
    wrong += [layer for layer in counts if layer >= layers]
    if wrong:
        some = ", ".join(f"layers.{layer}" for layer in wrong[:4])
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        message = f"{some}{more} not in exactly one part; the model has layers.0 to {layers - 1}"
        yield broken(settings, key.PARTS, message)


def parts_hold_both_ends(settings: Settings, _: World) -> Iterator[Broken]:
    """The first model part holds the embedding, the last one the norm and the head."""
    listed = effective(settings, key.PARTS)
    if _pp(settings) < 2 or not listed:
        return
    ends = ((listed[0], "tok_embeddings", "first"), (listed[-1], "norm", "last"))
    for part, name, where in (*ends, (listed[-1], "lm_head", "last")):
        if name not in part:
            yield broken(settings, key.PARTS, f"{name} is not in the {where} part; it must be")


_TRAINER = "torchtitan/trainer.py"
_PIPELINE = "torchtitan/distributed/pipeline_parallel.py"
_SCHEDULES = "torch/distributed/pipelining/schedules.py"
PIPELINE_RULES: tuple[FormatRule, ...] = (
    rule(micro_batch_is_positive, _TRAINER),
    rule(micro_batch_divides_local, _TRAINER),
    rule(schedule_is_known, _SCHEDULES),
    rule(tied_model_has_one_stage, "torchtitan/models/common/decoder.py"),
    rule(stages_fill_ranks, _PIPELINE),
    rule(stages_fit_schedule, _PIPELINE),
    rule(
        listed_parts_fit_schedule,
        "not checked: torchtitan/distributed/pipeline_parallel.py hands on the first part only",
        enforced=False,
    ),
    rule(v_schedule_has_two_parts, _PIPELINE),
    rule(micro_batches_fill_pipeline, _SCHEDULES),
    rule(micro_batches_make_rounds, _SCHEDULES),
    rule(
        split_backward_is_eager,
        f"not checked: {_SCHEDULES} looks for wrapped modules, blocks are compiled in place",
        enforced=False,
        severity="warning",
    ),
    rule(stage_weights_fit, _PIPELINE),
    rule(
        parts_hold_all_layers,
        "not checked: torchtitan/distributed/pipeline_parallel.py keeps the layers it is told",
        enforced=False,
    ),
    rule(
        parts_hold_both_ends,
        "not checked: torchtitan/distributed/pipeline_parallel.py, fails in the first step",
        enforced=False,
    ),
)

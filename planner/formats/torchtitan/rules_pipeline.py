"""Rules of pipelining: schedules, stages, micro-batches, and where the layers are."""

from collections import Counter

from planner.formats.format import FormatRule, World
from planner.formats.rules import Rules, Violations
from planner.formats.settings import Settings
from planner.formats.torchtitan import keys as key
from planner.formats.torchtitan import rules
from planner.formats.torchtitan.layout import (
    OTHER_SCHEDULES,
    SCHEDULE_NAMES,
    SINGLE,
    default_counts,
    layers_in,
    num_parts,
    schedule_named,
    splits_backward,
)
from planner.formats.torchtitan.rules import TorchtitanView, of_release
from planner.spec.strategy import V_SHAPED

ROUNDS = ("interleaved", "zb-interleaved")
PP = key.DEGREES["pp"]
_TRAINER = "torchtitan/trainer.py"
_PIPELINE = "torchtitan/distributed/pipeline_parallel.py"
_SCHEDULES = "torch/distributed/pipelining/schedules.py"


def _piped(settings: Settings, world: World) -> TorchtitanView | None:
    file = of_release(settings, world)
    return file if file and file.degree("pp") > 1 else None


rule = Rules(_piped)


def _schedule(file: TorchtitanView) -> str:
    return schedule_named(str(file[key.SCHEDULE]))


def _weights(file: TorchtitanView) -> tuple[int, int]:
    """Layers that embedding and head weigh as much as."""
    return file[key.FIRST_LESS], file[key.LAST_LESS]


def _parts(file: TorchtitanView) -> int:
    """Model parts that are listed, or that torchtitan makes; 0: not known."""
    listed, layers, per_part = file[key.PARTS], file.model("num_layers"), file[key.LAYERS]
    if listed is not None:
        return len(listed)
    if per_part is not None and (per_part < 1 or not layers):
        return 0
    return num_parts(layers, file.degree("pp"), _schedule(file), per_part, *_weights(file))


def _decides_parts(file: TorchtitanView) -> str:
    """The key that says how many model parts there are."""
    return key.LAYERS if file[key.PARTS] is None else key.PARTS


def _micro_batches(file: TorchtitanView) -> int:
    """Of one step of the pipeline; 0 where the batch is not divided."""
    size, local = file[key.MICRO_BATCH], file[key.LOCAL_BATCH]
    return int(local // size) if size > 0 and local % size == 0 else 0


@rule(_TRAINER)
def micro_batch_divides_local(file: TorchtitanView) -> Violations:
    """Micro-batches of the pipeline make up the local batch."""
    size, local = file[key.MICRO_BATCH], file[key.LOCAL_BATCH]
    if size > 0 and local % size:
        yield key.MICRO_BATCH, f"{size} given; needs a divisor of the local batch {local}"


@rule(
    _SCHEDULES,
    key=key.SCHEDULE,
    says=(
        f"{{given!r}} given; allowed are {', '.join((*SCHEDULE_NAMES.values(), *OTHER_SCHEDULES))}"
    ),
)
def schedule_is_known(file: TorchtitanView) -> bool:
    """The schedule is one of torch's."""
    return not _schedule(file)


@rule("torchtitan/models/common/decoder.py")
def tied_model_has_one_stage(file: TorchtitanView) -> Violations:
    """Models with tied embeddings are not pipelined."""
    if file.config.model.get("tied_embeddings"):
        message = "given; the config ties embedding and head, which allows 1"
        yield PP, f"{file.degree('pp')} {message}"


@rule(_PIPELINE)
def stages_fill_ranks(file: TorchtitanView) -> Violations:
    """Model parts are dealt out evenly over the pipeline's ranks."""
    pp, parts = file.degree("pp"), _parts(file)
    if parts % pp:
        yield _decides_parts(file), f"{parts} model parts; needs a multiple of {pp} stages"


@rule(_PIPELINE)
def stages_fit_schedule(file: TorchtitanView) -> Violations:
    """1F1B and GPipe take one part per rank where the number follows from layers per stage.

    Interleaved schedules then take two at least.
    """
    pp, parts, schedule = file.degree("pp"), _parts(file), _schedule(file)
    computed = file[key.PARTS] is None and file[key.LAYERS]
    if not computed or not parts or parts % pp or not schedule:
        return
    each = parts // pp
    if schedule in SINGLE and each != 1:
        yield key.LAYERS, f"{each} model parts per rank; the schedule takes 1"
    if schedule not in SINGLE and schedule != "other" and each < 2:
        yield key.LAYERS, f"{each} model part per rank; the schedule needs 2"


@rule(
    "not checked: torchtitan/distributed/pipeline_parallel.py hands on the first part only",
    enforced=False,
)
def listed_parts_fit_schedule(file: TorchtitanView) -> Violations:
    """1F1B and GPipe run the first listed part of every rank, and forget the others."""
    pp, listed = file.degree("pp"), file[key.PARTS]
    if listed is not None and _schedule(file) in SINGLE and len(listed) > pp:
        yield key.PARTS, f"{len(listed)} model parts; the schedule takes one per rank, {pp}"


@rule(_PIPELINE)
def v_schedule_has_two_parts(file: TorchtitanView) -> Violations:
    """V-shaped schedules take two model parts per rank."""
    pp, parts = file.degree("pp"), _parts(file)
    if _schedule(file) in V_SHAPED and parts and parts % pp == 0 and parts != 2 * pp:
        yield _decides_parts(file), f"{parts} model parts; the schedule takes {2 * pp}"


@rule(_SCHEDULES)
def micro_batches_fill_pipeline(file: TorchtitanView) -> Violations:
    """1F1B needs as many micro-batches as stages, DualPipeV as many as model parts."""
    least = {"1f1b": file.degree("pp"), "dualpipe-v": _parts(file)}.get(_schedule(file), 0)
    number = _micro_batches(file)
    if number and number < least:
        given = f"{file[key.LOCAL_BATCH]} given, {number} micro-batches"
        yield key.LOCAL_BATCH, f"{given}; the schedule needs {least}"


@rule(_SCHEDULES)
def micro_batches_make_rounds(file: TorchtitanView) -> Violations:
    """Interleaved schedules run micro-batches in equal rounds of at least one per stage."""
    number = _micro_batches(file)
    rounds = max(1, number // file.degree("pp"))
    if number and _schedule(file) in ROUNDS and number % rounds:
        message = f"{number} micro-batches; interleaving needs a multiple of {rounds} rounds"
        yield key.LOCAL_BATCH, message


@rule(
    f"not checked: {_SCHEDULES} looks for wrapped modules, blocks are compiled in place",
    key=key.SCHEDULE,
    says="{given} given with compiled blocks; needs --compile.no-enable",
    enforced=False,
    severity="warning",
)
def split_backward_is_eager(file: TorchtitanView) -> bool:
    """Schedules that split the backward do not run compiled blocks."""
    return bool(file.compiles_blocks and splits_backward(_schedule(file)))


@rule(_PIPELINE)
def stage_weights_fit(file: TorchtitanView) -> Violations:
    """Embedding and head weigh no more layers than a model part has, and every part has some."""
    layers, parts, (first, last) = file.model("num_layers"), _parts(file), _weights(file)
    if not layers or not parts or file[key.PARTS] is not None:
        return
    if default_counts(layers, parts, first, last) is None:
        given = f"{parts} model parts of {layers} layers, embedding {first} and head {last}"
        yield key.FIRST_LESS, f"{given}; a part needs a layer and its weight"


@rule(
    "not checked: torchtitan/distributed/pipeline_parallel.py keeps the layers it is told",
    enforced=False,
)
def parts_hold_all_layers(file: TorchtitanView) -> Violations:
    """Every layer stands in one model part; torchtitan drops those that are missing."""
    listed, layers = file[key.PARTS], file.model("num_layers")
    if listed is None or not layers:
        return
    counts = Counter(layer for part in listed for layer in layers_in(part))
    wrong = [layer for layer in range(layers) if counts[layer] != 1]
    wrong += [layer for layer in counts if layer >= layers]
    if wrong:
        some = ", ".join(f"layers.{layer}" for layer in wrong[:4])
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        message = f"{some}{more} not in exactly one part; the model has layers.0 to {layers - 1}"
        yield key.PARTS, message


@rule(
    "not checked: torchtitan/distributed/pipeline_parallel.py, fails in the first step",
    enforced=False,
)
def parts_hold_both_ends(file: TorchtitanView) -> Violations:
    """The first model part holds the embedding, the last one the norm and the head."""
    listed = file[key.PARTS] or ()
    ends = (("tok_embeddings", 0, "first"), ("norm", -1, "last"), ("lm_head", -1, "last"))
    for name, at, where in ends if listed else ():
        if name not in listed[at]:
            yield key.PARTS, f"{name} is not in the {where} part; it must be"


RULES: tuple[FormatRule, ...] = (*rules.rule, *rule)

"""Reads a script that starts verl: its overrides, what they decide, and what is wrong."""

from collections.abc import Iterator, Mapping, Sequence

from planner.formats.finding import Finding
from planner.formats.format import ALL, Reading, SourceText, Value
from planner.formats.megatron.decisions import decisions_of
from planner.formats.settings import Settings, decided, finding_at, flag, given, whole, word
from planner.formats.shell.launched import open_processes, processes
from planner.formats.verl import megatron
from planner.formats.verl.batch import Batch, batch_of, of_batch
from planner.formats.verl.content import Content, content_of
from planner.formats.verl.priced import (
    BF16,
    PRECISIONS,
    beside,
    engine_of,
    held_share,
    is_experimental,
    optimizer_of,
    training_of,
    traits_of,
    unpriced,
)
from planner.formats.verl.program import ENGINE, GPUS, MEGATRON, NAME
from planner.formats.verl.starts import VERL, is_started

_OPEN = {"sequence_ranks": "cp", "shard_ranks": "dp_replicate"}
"""What FSDP's words decide that cuts up the GPUs."""
_SIZES = dict(zip(megatron.SIZES, ("tp", "pp", "cp", "ep", "etp"), strict=False))
"""And what Megatron's do."""
_COUNTS = ("nodes", "per_node")
_NONE: Mapping[str, Sequence[str]] = {"keys": ()}


def recognise(source: SourceText) -> bool:
    """Whether a script starts a program of verl's that is read."""
    return is_started(source, VERL, content_of)


def read(source: SourceText) -> Reading:
    """Understand a script; InputError where no command of it starts verl with overrides."""
    content = content_of(source)
    words = content.program.read(content.settings)
    engine = words[ENGINE] = engine_of(words, content.config)
    num_gpus = _num_gpus(words, content)
    found, batch = _decided(words, content, engine, num_gpus)
    why = unpriced(words, engine, content.module)
    is_fixed = batch.is_filled
    return Reading(
        format=NAME,
        path=source.path,
        settings={**content.settings, **content.launched, **words, **_counted(num_gpus)},
        decisions=found,
        findings=(*content.findings, *_notes(source, words, why)),
        left_open=_left_open(content, engine, num_gpus),
        unpriced=why,
        made_for=content.module if is_experimental(content.module) else "",
        training=training_of(words) if engine.value != MEGATRON and not why else None,
        traits=tuple(traits_of(words, engine)),
        longest=batch.length if batch.length.value and not is_fixed else None,
        supposes=tuple(_supposes(words, batch)),
        named_model=words["model"] if isinstance(words["model"].value, str) else content.model,
        held_share=held_share(words),
    )


def _counted(num_gpus: Value | None) -> dict[str, Value]:
    return {} if num_gpus is None else {GPUS: num_gpus}


def _num_gpus(words: Settings, content: Content) -> Value | None:
    """Nodes times processes: of Ray by the trainer's own keys, else of torchrun."""
    if "nodes" not in words:
        return processes(content.launched)
    nodes, each = whole(words, "nodes", 0), whole(words, "per_node", 0)
    place = words["per_node"] if words["per_node"].line else words["nodes"]
    return Value(value=nodes * each, key=place.key, line=place.line) if nodes and each else None


def _decided(
    words: Settings, content: Content, engine: Value, num_gpus: Value | None
) -> tuple[dict[str, Value], Batch]:
    if engine.value == MEGATRON:
        section = megatron.SECTIONS["nodes" not in words]
        options = megatron.as_options(content.settings, section)
        found = decisions_of(options, num_gpus)
    else:
        found = dict(_of_fsdp(words, num_gpus))
        if num_gpus is not None:
            found["num_gpus"] = num_gpus
    tp, pp, cp = (_size(found, name) for name in ("tp", "pp", "cp"))
    dp = None
    if num_gpus is not None and num_gpus.value % (tp * pp * cp) == 0:
        dp = num_gpus.value // (tp * pp * cp)
    pieces = tp * (2 * cp if cp > 1 else 1)
    batch = batch_of(words, dp, ranks=cp, pieces=pieces)
    return found | dict(of_batch(batch)), batch


def _size(found: Mapping[str, Value], name: str) -> int:
    size = found[name].value if name in found else 1
    return size if isinstance(size, int) and size > 0 else 1


def _of_fsdp(words: Settings, num_gpus: Value | None) -> Iterator[tuple[str, Value]]:
    """What FSDP's keys decide: verl/workers/fsdp_workers.py _build_model_optimizer."""
    keeps = "reshards" in words and not flag(words, "reshards", default=True)
    yield "zero_stage", decided(words, "reshards" if keeps else ENGINE, 2 if keeps else 3)
    if whole(words, "sequence_ranks", 1) > 1:
        yield "cp", decided(words, "sequence_ranks", whole(words, "sequence_ranks", 1))
    size = whole(words, "shard_ranks", -1)
    is_split = num_gpus is not None and 0 < size < num_gpus.value and num_gpus.value % size == 0
    if num_gpus is not None and is_split and size % whole(words, "sequence_ranks", 1) == 0:
        yield "dp_replicate", decided(words, "shard_ranks", num_gpus.value // size)
    if _offloads(words):
        yield "offload", decided(words, "offloads", "optimizer+parameters:host")
    if flag(words, "checkpointing"):
        yield "recompute_layers_per_stage", decided(words, "checkpointing", ALL)
    dtype = PRECISIONS.get(word(words, "dtype", "bfloat16").lower(), "bf16")
    yield "precision", decided(words, "dtype" if "dtype" in words else ENGINE, dtype)
    name = optimizer_of(words)
    if name is not None:
        yield "optimizer", decided(words, "optimizer", name)
    if word(words, "held") in BF16:
        yield "profile", decided(words, "held", "pure-bf16")


def _offloads(words: Settings) -> bool:
    """Whether states are on the host in the step too: ``param_offload`` brings them back for it."""
    if "offloads_at_all" in words:
        return flag(words, "offloads_at_all") and flag(words, "offloads")
    return flag(words, "offloads") and given(words, ENGINE) == "fsdp2"


def _left_open(content: Content, engine: Value, num_gpus: Value | None) -> dict[str, Value]:
    """Decisions by variables that nobody knows."""
    found: dict[str, Value] = {}
    words, is_megatron = content.program.words, engine.value == MEGATRON
    for key in content.open_keys:
        section, _, name = key.rpartition(".")
        if is_megatron and section in megatron.SECTIONS and name in _SIZES:
            found[_SIZES[name]] = content.settings[key]
        of_word = (each for word, each in _OPEN.items() if key in words.get(word, _NONE)["keys"])
        found |= {} if is_megatron else dict.fromkeys(of_word, content.settings[key])
    if num_gpus is not None:
        return found
    counts = (key for name in _COUNTS for key in words.get(name, _NONE)["keys"])
    stated = [content.settings[key] for key in counts if key in content.open_keys]
    return found | ({"num_gpus": stated[0]} if stated else open_processes(content.launched))


def _notes(source: SourceText, words: Settings, why: str) -> Iterator[Finding]:
    text = f"{why}; nothing of it is checked" if "experimental" in why else beside(words)
    if text and (not why or "experimental" in why):
        place = Value(value=None, key=words["model"].key)
        yield finding_at("job.unpriced", source.path, place, text, "note")


def _supposes(words: Settings, batch: Batch) -> Iterator[str]:
    if batch.bound and batch.micro:
        yield (
            f"micro-batches filled to {batch.bound.key}: {batch.micro.value} of "
            f"{batch.length.value} tokens"
        )
    held = held_share(words)
    if held is not None:
        yield f"{held.value:.0%} of HBM is not the training's: {held.key}"

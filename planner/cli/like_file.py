"""``--like FILE``: the job that a configuration file states, for a search of its layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.formats.format import Format, Reading
    from planner.spec.training import Training

_WORDS = ("precision", "optimizer", "profile")


def reading_of(name: str) -> "tuple[Format, Reading]":
    """The file with its format and model; InputError where plans say nothing of it."""
    from planner.check.job import AUTO
    from planner.check.own_model import with_model
    from planner.check.recognise import format_of, source_of
    from planner.errors import InputError

    source = source_of(name)
    kind = format_of(source, AUTO)
    reading = with_model(kind.read(source))
    made_for = f"is for {reading.made_for}, which is not priced" if reading.made_for else ""
    if problem := reading.unpriced or made_for:
        raise InputError.single("command line", "--like", f"{Path(name).name}: {problem}")
    return kind, reading


def file_defaults(name: str) -> dict[str, Any]:
    """Options that the file's job stands in for: model, length, precision, what is trained."""
    kind, reading = reading_of(name)
    own = kind.framework_of(reading)
    found: dict[str, Any] = {"framework": kind.name if own == kind.framework else own}
    if reading.own_model is not None and "" in reading.own_model.places:
        found["model"] = reading.own_model.spec.name
    stated = {each: value.value for each, value in reading.decisions.items()}
    found |= {word: stated[word] for word in _WORDS if stated.get(word)}
    length = stated.get("seq_len") or (reading.longest and reading.longest.value)
    if isinstance(length, int):
        found["seq_len"] = length
    return found | training_defaults(reading.training)


def training_defaults(training: "Training | None") -> dict[str, Any]:
    """Options that say what is trained; none where that is everything, or not stated."""
    from planner.spec.training import target_words

    if training is None or not training.is_frozen:
        return {}
    return {
        "train": training.mode,
        "lora_rank": training.rank,
        "lora_targets": target_words(training.targets),
    }


def file_settings(name: str) -> list[str]:
    """Traits that the file states."""
    return [f"traits.{path}={value}" for path, value in reading_of(name)[1].traits]


def file_batch(name: str, cluster: str) -> int | None:
    """Sequences per iteration, as the file has them on its own GPUs, else on the cluster's."""
    from planner.catalog.clusters import load_cluster
    from planner.check.degrees import batch_of, gpus_of
    from planner.check.values import Values

    _, reading = reading_of(name)
    values = Values(reading)
    of_cluster = load_cluster(cluster).num_accelerators
    gpus = gpus_of(values, asked=None, of_cluster=of_cluster)
    is_said: Sequence[str] = ("global_batch", "micro_batch")
    if gpus.dp is None or not any(each in reading.decisions for each in is_said):
        return None
    batch = batch_of(values, gpus.dp, asked=None)
    return batch.global_batch if batch else None

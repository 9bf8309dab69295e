"""Reads a script that starts OpenRLHF: its options, what they decide, what is not priced."""

from collections.abc import Iterator, Mapping

from planner.formats.deepspeed.keys import CODES
from planner.formats.finding import Finding, listed
from planner.formats.format import ALL, Reading, SourceText, Value
from planner.formats.openrlhf.content import Content, content_of
from planner.formats.settings import (
    Settings,
    as_number,
    decided,
    finding_at,
    flag,
    given,
    whole,
    word,
)
from planner.formats.verl.batch import Batch, batch_of, of_batch
from planner.formats.verl.starts import OPENRLHF, is_started

NAME = "openrlhf"
PRECISIONS = ("bf16", "fp16")
_OPEN = {"nodes": "num_gpus", "per_node": "num_gpus", "tensor": "tp"}
"""Words that cut up the GPUs."""
SHOWN = 6
"""Options that a note lists."""


def recognise(source: SourceText) -> bool:
    """Whether a script starts a program of OpenRLHF that is read."""
    return is_started(source, OPENRLHF, content_of)


def read(source: SourceText) -> Reading:
    """Understand a script; InputError where no command of it starts OpenRLHF."""
    content = content_of(source)
    words = _words(content)
    num_gpus = _num_gpus(words, content)
    why = unpriced(words)
    decisions, batch = _decided(words, num_gpus)
    return Reading(
        format=NAME,
        path=source.path,
        settings={**content.settings, **words},
        decisions=decisions,
        findings=tuple(_notes(source, words, content, why)),
        left_open=_left_open(content),
        unpriced=why,
        longest=batch.length if batch.length.value else None,
        supposes=tuple(_supposes(words, batch)),
        named_model=words["model"] if isinstance(words["model"].value, str) else None,
        held_share=held_share(words),
    )


def _words(content: Content) -> dict[str, Value]:
    """Values by word; prompt and answer bound a sequence where either is given."""
    opened = {each.key.removeprefix("--"): each for each in content.open_keys}
    words = content.program.read({**content.settings, **opened})
    sizes = [words.pop(name) for name in ("prompt", "response") if name in words]
    stated = [each for each in sizes if each.line]
    if stated:
        is_known = all(isinstance(each.value, int) for each in sizes)
        total = sum(each.value for each in sizes) if is_known else None
        key = " + ".join(each.key.removeprefix("--") for each in sizes)
        words["length"] = Value(value=total, key=f"--{key}", line=stated[0].line)
    return words


def _num_gpus(words: Settings, content: Content) -> Value | None:
    """The actor's, under Ray; else what the launcher says."""
    if "nodes" not in words:
        return content.num_gpus
    nodes, each = whole(words, "nodes", 0), whole(words, "per_node", 0)
    return decided(words, "per_node", nodes * each) if nodes and each else None


def _decided(words: Settings, num_gpus: Value | None) -> tuple[dict[str, Value], Batch]:
    found = dict(_of_options(words))
    tp = whole(words, "tensor", 1)
    dp = num_gpus.value // tp if num_gpus and tp > 0 and num_gpus.value % tp == 0 else None
    length = words["length"].value
    known = {**words, "length": decided(words, "length", length if isinstance(length, int) else 0)}
    batch = batch_of(known, dp, ranks=1, pieces=1)
    found |= dict(of_batch(batch))
    if batch.micro and not batch.bound and whole(words, "sequences", 0):
        found.pop("num_micro_batches", None)
        found["global_batch"] = decided(words, "sequences", whole(words, "sequences", 0))
    if num_gpus is not None:
        found["num_gpus"] = num_gpus
    return found, batch


def _of_options(words: Settings) -> Iterator[tuple[str, Value]]:
    """What options decide: openrlhf/utils/deepspeed/deepspeed_utils.py get_train_ds_config."""
    yield "zero_stage", decided(words, "zero", whole(words, "zero", 2))
    if flag(words, "adam_offload"):
        yield "offload", decided(words, "adam_offload", CODES[("cpu", "none")])
    if whole(words, "tensor", 1) > 1:
        yield "tp", decided(words, "tensor", whole(words, "tensor", 1))
    if flag(words, "checkpointing"):
        yield "recompute_layers_per_stage", decided(words, "checkpointing", ALL)
    dtype = word(words, "dtype", "bf16")
    yield "precision", decided(words, "dtype", dtype if dtype in PRECISIONS else "bf16")
    yield "optimizer", decided(words, "optimizer", "adam")


def unpriced(words: Settings) -> str:
    """Why plans say nothing of memory and time; empty where they do."""
    reasons = {
        "ring": (whole(words, "ring", 1) > 1, "ring attention is not modelled under DeepSpeed"),
        "zpg": (whole(words, "zpg", 1) > 1, "second shards within a node are not modelled"),
        "rank": (whole(words, "rank", 0) > 0, "adapters under DeepSpeed are not modelled"),
        "four_bits": (flag(words, "four_bits"), "weights in 4 bits are not trained"),
        "grad_dtype": (given(words, "grad_dtype") is not None, "gradients of another kind"),
        "optimizer": (word(words, "optimizer", "adam") != "adam", "plans price adam"),
    }
    for name, (is_so, why) in reasons.items():
        if is_so:
            return f"{words[name].key} {given(words, name)}: {why}"
    return ""


def held_share(words: Settings) -> Value | None:
    """The share of HBM that vLLM keeps on the actor's GPUs while those train.

    Only with all models together, and where it does not sleep.
    """
    share = as_number(given(words, "engine_share")) if "engine_share" in words else None
    shares = flag(words, "together") and not flag(words, "asynchronous")
    if share is None or not 0 < share < 1 or not shares or flag(words, "engine_frees"):
        return None
    return decided(words, "engine_share", share)


def beside(words: Settings) -> str:
    """What of reinforcement learning is not priced, in words; empty for fine-tuning."""
    if "engine_share" not in words:
        return ""
    shared = flag(words, "together")
    found = ["generation and log-probabilities"]
    if as_number(given(words, "kl")) != 0:
        where = ", whose weights share these GPUs" * (shared or flag(words, "with_reference"))
        found.append(f"the reference model{where}")
    if word(words, "estimator", "gae") == "gae":
        found.append(f"the critic{', whose states share these GPUs' * shared}")
    share = words["engine_share"]
    holds = f"vLLM has GPUs of its own ({words['together'].key} is not given)"
    if shared and flag(words, "engine_frees"):
        holds = f"vLLM gives its memory ({share.key} {share.value}) back before"
    elif held_share(words):
        holds = f"{share.value} of HBM is vLLM's ({share.key}), and taken off"
    elif shared:
        holds = "vLLM has GPUs of its own, as training is asynchronous"
    names = f"{', '.join(found[:-1])} and {found[-1]}" if found[1:] else found[0]
    return f"priced is the actor's training step; not {names}; {holds}"


def _left_open(content: Content) -> dict[str, Value]:
    """Decisions by variables that nobody knows."""
    opened: Mapping[str, Value] = {each.key.removeprefix("--"): each for each in content.open_keys}
    words = content.program.words
    return {
        decision: opened[key]
        for name, decision in _OPEN.items()
        for key in (words[name]["keys"] if name in words else ())
        if key in opened
    }


def _notes(source: SourceText, words: Settings, content: Content, why: str) -> Iterator[Finding]:
    decides = [each for each in content.open_keys if each.key[2:] in content.program.keys]
    if decides:
        names = listed([each.key for each in decides][:SHOWN])
        message = f"{names}: made by the shell from what the file does not say; not known"
        yield finding_at(f"{NAME}.unresolved", source.path, decides[0], message, "note")
    text = beside(words)
    if text and not why:
        place = Value(value=None, key=words["model"].key)
        yield finding_at("job.unpriced", source.path, place, text, "note")


def _supposes(words: Settings, batch: Batch) -> Iterator[str]:
    if batch.bound and batch.micro:
        each = f"{batch.micro.value} of {batch.length.value} tokens"
        yield f"micro-batches filled to {batch.bound.key}: {each}"
    held = held_share(words)
    if held is not None:
        yield f"{held.value:.0%} of HBM is not the training's: {held.key}"

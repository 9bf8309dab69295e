"""What Accelerate's file has no key for, as a comment: the training script must do it.

``# training script: micro_batch=2 num_micro_batches=4 ...``; unknown keys, which a block of our own
would be, stop ``accelerate launch``.
"""

import re

from planner.cost.context import Context
from planner.formats.accelerate.section import Section, recomputes_all
from planner.formats.format import ALL, Value
from planner.spec.strategy import Strategy

HEAD = "# training script: "
CHECKPOINTING = "gradient_checkpointing"
_LINE = re.compile(rf"^{HEAD}(.*)$", re.MULTILINE)
_WORD = re.compile(r"([a-z_]+)=([\w:.=-]+)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}")
_WORDS = ("optimizer",)
_NUMBERS = ("micro_batch", "num_micro_batches", "seq_len")
_OUTSIDE = ("DEEPSPEED", "MULTI_GPU")
"""Types whose section has no key for checkpointing."""


def line(context: Context, strategy: Strategy, section: Section) -> str:
    """The comment of a strategy."""
    said: dict[str, object] = {
        "micro_batch": strategy.micro_batch,
        "num_micro_batches": strategy.num_micro_batches,
        "seq_len": context.job.seq_len,
        "optimizer": context.traits.optimizer.name,
    }
    if section.distributed_type in _OUTSIDE:
        said[CHECKPOINTING] = str(recomputes_all(strategy)).lower()
    return HEAD + " ".join(f"{name}={value}" for name, value in said.items())


def decisions(text: str) -> dict[str, Value]:
    """What the comment of a file says, by the names of DECISIONS."""
    match = _LINE.search(text)
    if match is None:
        return {}
    number = text.count("\n", 0, match.start()) + 1
    found: dict[str, Value] = {}
    for name, word in _WORD.findall(match[1]):
        if name == CHECKPOINTING and word == "true":
            decided: tuple[str, object] = ("recompute_layers_per_stage", ALL)
        elif name in _NUMBERS:
            decided = (name, int(word) if _NUMBER.fullmatch(word) else word)
        elif name in _WORDS:
            decided = (name, word)
        else:
            continue
        found[decided[0]] = Value(value=decided[1], key=f"{HEAD[2:]}{name}", line=number)
    return found


def exchange_of(text: str) -> Value | None:
    """How replicas keep in step where the comment says more than plain all-reduces."""
    match = re.search(rf"^{HEAD}.*\bgradient_exchange=(\S+)", text, re.MULTILINE)
    if match is None:
        return None
    line = text.count("\n", 0, match.start()) + 1
    return Value(value=match[1], key=f"{HEAD[2:]}gradient_exchange", line=line)


def rewritten(text: str, comment: str) -> str:
    """The file with another comment in place of the one it has; without one nothing changes."""
    return _LINE.sub(lambda _: comment, text, count=1)

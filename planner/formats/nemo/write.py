"""Writes what a repair changes into NeMo's YAML, in its own keys."""

from collections.abc import Iterator
from typing import Any

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.documents.yaml_edit import edited
from planner.documents.yaml_text import Path
from planner.errors import ExpressError
from planner.formats.decision import Line, Table, lines_of
from planner.formats.format import SourceText
from planner.formats.megatron import decisions, settings
from planner.formats.nemo.keys import (
    CARRIED,
    DISTRIBUTED,
    OF_CORE,
    OPTIMIZER,
    as_options,
    spelled,
)
from planner.formats.nemo.read import read
from planner.spec.strategy import Strategy

_OF_JOB = {"global_batch", "seq_len", "precision", "optimizer", "mtp_layers"}
"""What no repair changes."""
UNSHARDED = "fused_adam"


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions; ExpressError where no key carries them."""
    found = {
        _path(option): _value(option, value)
        for option, value in _edits(source, context, strategy).items()
        if option in CARRIED or option == DISTRIBUTED
    }
    text = edited(source.path, source.text, found)
    left = _edits(SourceText(path=source.path, text=text), context, strategy)
    if left:
        names = ", ".join(spelled(option) for option in left)
        raise ExpressError(f"{source.path} cannot carry the plan: NeMo has no key for {names}")
    return text


def _rows() -> Table:
    return [row for row in decisions.TABLE if not _OF_JOB.issuperset(row.names)]


def _edits(source: SourceText, context: Context, strategy: Strategy) -> dict[str, Any]:
    """Options that a file does not say as the plan does, and what they become."""
    stated = as_options(read(source).settings)
    return decisions.edits(_rows(), stated, _lines(context, strategy))


def _lines(context: Context, strategy: Strategy) -> Iterator[Line]:
    """What options say of the plan; chunks of a stage are given by number."""
    for line in lines_of(_rows(), context, strategy):
        if line.key != settings.CHUNK:
            yield line
    if strategy.vpp > 1:
        yield Line(key=settings.CHUNKS, value=strategy.vpp)


def _path(option: str) -> Path:
    key = OPTIMIZER if option == DISTRIBUTED else CARRIED[option]
    return tuple(key.split("."))


def _value(option: str, value: object) -> object:
    """As the file says it: what is none stands there as null or false."""
    if option == DISTRIBUTED:
        return UNSHARDED if value is REMOVED else OF_CORE
    if option == "--sequence-parallel":
        return value is not REMOVED
    if value is REMOVED:
        return 1 if option in (settings.TP, settings.PP, "--context-parallel-size") else None
    return value

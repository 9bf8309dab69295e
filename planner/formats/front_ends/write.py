"""Writes what a repair changes into a front end's file, in its own words."""

from collections.abc import Iterator
from typing import Any

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.documents.json_edit import edited as edited_json
from planner.documents.nodes import Path
from planner.documents.yaml_edit import edited as edited_yaml
from planner.errors import ExpressError
from planner.formats.decision import changes, lines_of, unlike_layers
from planner.formats.format import Reading, SourceText
from planner.formats.front_ends.content import FILES, is_json
from planner.formats.front_ends.read import read
from planner.formats.front_ends.tools import Tool
from planner.formats.settings import Settings
from planner.formats.trainer import keys
from planner.formats.trainer.mapping import section_of
from planner.spec.strategy import FIELD_DEFAULTS, SEARCHED_FIELDS, Strategy

CARRIED = (
    *(keys.BATCH, keys.STEPS, keys.CHECKPOINTING),
    *(keys.BLOCKS, keys.RESHARD, keys.OFFLOAD),
)
"""Keys of TrainingArguments that a repair may change; what shards is left as it is."""
_FOLLOWS = ("dp", "etp", "placement")
"""What no key needs to say."""


def write_into(source: SourceText, context: Context, strategy: Strategy, tool: Tool) -> str:
    """The file with the strategy's decisions; ExpressError where no key of it carries them."""
    if not (is_json(source) or source.path.lower().endswith(FILES)):
        message = "a command's options are for you to change; its YAML or JSON would be edited"
        raise ExpressError(f"{source.path}: {message}")
    before = read(source, tool)
    section = section_of(before.settings)
    lines = lines_of(section.table, context, strategy)
    found = {
        _path(tool, before.settings, key): _value(tool, key, value)
        for key, value in changes(section.table, before.settings, lines).items()
        if key in CARRIED
    }
    if is_json(source):
        keyed = {tuple(map(str, path)): value for path, value in found.items()}
        text = edited_json(source.path, source.text, keyed)
    else:
        text = edited_yaml(source.path, source.text, found)
    reasons = [*_unsaid(read(SourceText(path=source.path, text=text), tool), strategy)]
    if reasons:
        lines_ = "\n".join(f"  {reason}" for reason in reasons)
        raise ExpressError(f"{source.path} cannot carry the plan:\n{lines_}")
    return text


def _path(tool: Tool, settings: Settings, key: str) -> Path:
    """Where a key of TrainingArguments stands in the file, or would stand."""
    own = {full: name for name, full in (*tool.arguments.items(), *tool.inverse.items())}
    stated = settings.get(key)
    name = stated.key if stated and stated.line else own.get(key, key)
    return tuple(name.split("."))


def _value(tool: Tool, key: str, value: object) -> Any:  # noqa: ANN401
    return (not value) if key in tool.inverse.values() and value is not REMOVED else value


def _unsaid(reading: Reading, strategy: Strategy) -> Iterator[str]:
    """What of a strategy the file, read again, does not say."""
    yield from unlike_layers(strategy)
    stated = {name: value.value for name, value in reading.decisions.items()}
    for name in SEARCHED_FIELDS:
        wanted = getattr(strategy, name)
        usual = wanted if name in _FOLLOWS else FIELD_DEFAULTS[name]
        if stated.get(name, usual) != wanted:
            yield f"{name} {wanted}: no key of this file carries it, or another file does"
    if stated.get("num_micro_batches", strategy.num_micro_batches) != strategy.num_micro_batches:
        yield f"num_micro_batches {strategy.num_micro_batches}: no key of this file carries it"
    if ("recompute_layers_per_stage" in stated) != (strategy.recompute == "full"):
        yield f"recomputation {strategy.recompute}: no key of this file carries it"

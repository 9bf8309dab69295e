"""Reads the files of a front end: settings of TrainingArguments, what they decide and train."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.documents.tree import keys_at_top, parsed_yaml
from planner.errors import InputError
from planner.formats.decision import decided_in
from planner.formats.format import Finding, Reading, SourceText, Value, listed
from planner.formats.front_ends.content import (
    FILES,
    Content,
    content_of,
    is_json,
    is_script,
)
from planner.formats.front_ends.tools import Tool, is_of
from planner.formats.front_ends.trained import (
    holds_16_bits,
    is_one_of,
    training_of,
    traits_of,
    unpriced,
)
from planner.formats.front_ends.words import Translation, translated
from planner.formats.settings import Settings, as_whole, decided, finding_at, given, whole
from planner.formats.trainer import keys
from planner.formats.trainer.mapping import DEEPSPEED, REPLICATED, section_of
from planner.frameworks.optimizers import optimizer_names
from planner.spec.training import FULL, Training

IN_16_BITS = "pure-bf16"
"""The profile of weights, gradients and states in 16 bits, where nothing shards them."""
OPEN = 6
"""Options of a command that a note lists."""


def recognise(source: SourceText, tool: Tool) -> bool:
    """Whether a file, from its keys, or a command in it, is the program's."""
    if is_json(source):
        return is_of(tool, keys_at_top(source.path, source.text))
    if not source.path.lower().endswith(FILES) and is_script(source, tool):
        try:
            return bool(content_of(source, tool).values)
        except InputError:
            return False
    if not any(all(key in source.text for key in group) for group in tool.tells):
        return False
    try:
        value = parsed_yaml(source.path, source.text).value
    except InputError:
        return False
    return isinstance(value, dict) and is_of(tool, {*map(str, value)})


def read(source: SourceText, tool: Tool) -> Reading:
    """Understand a file; InputError where it holds no keys."""
    content = content_of(source, tool)
    made = translated(source.path, content, tool)
    settings = made.settings
    section = section_of(settings)
    found = decided_in(section.table, settings)
    found |= made.launched | dict(_degrees(tool, settings))
    if content.num_gpus is not None:
        found["num_gpus"] = content.num_gpus
    training, said = training_of(tool, settings)
    why = unpriced(tool, settings) or _beyond_plans(tool, settings, training, found)
    if why:
        training, said = FULL, ()
        found.pop("optimizer", None)
    if section is REPLICATED and not training.is_frozen and holds_16_bits(tool, settings):
        found["profile"] = decided(settings, "bf16", IN_16_BITS)
    longest = _longest(tool, settings)
    if longest is not None and _is_packed(tool, settings):
        found["seq_len"], longest = longest, None
    is_bare = section is REPLICATED and not content.is_command and not made.launched
    return Reading(
        format=tool.name,
        path=source.path,
        settings=settings,
        decisions=found,
        findings=tuple(sorted(_all(made, content), key=lambda each: each.line)),
        assumes=("zero_stage",) * is_bare + ("optimizer",) * ("optimizer" not in found and not why),
        unpriced=why,
        named=tuple(made.named),
        training=training,
        traits=tuple(traits_of(tool, settings)),
        longest=longest,
        batching=_batching(tool, settings),
        supposes=said,
        named_model=next((settings[key] for key in tool.model if given(settings, key)), None),
    )


def _all(made: Translation, content: Content) -> Iterator[Finding]:
    yield from made.findings
    if content.open_keys:
        first = next(iter(content.open_keys.values()))
        names = listed([each.key for each in content.open_keys.values()][:OPEN])
        message = f"{names}: made by the shell from what the file does not say; not known"
        yield finding_at(f"{made.tool.name}.unresolved", made.path, first, message, "note")


def _beyond_plans(
    tool: Tool, settings: Settings, training: Training, found: Mapping[str, Value]
) -> str:
    """What Trainer runs, and plans do not price."""
    section = section_of(settings)
    is_wide = training.mode == "lora" and tool.frozen_in_16_bits_only
    if is_wide and not holds_16_bits(tool, settings):
        return "dtype float32: frozen weights in 32 bits are not modelled"
    split = next((found[name] for name in ("cp", "tp") if name in found), None)
    if section is REPLICATED and split is not None:
        return f"{split.key} {split.value}: splitting what whole replicas hold is not modelled"
    if section is not DEEPSPEED:
        return ""
    place = settings[keys.DEEPSPEED]
    if training.is_frozen:
        return f"{place.key}: {training.mode} under DeepSpeed is not modelled"
    optimizer = found.get("optimizer")
    if optimizer is not None and optimizer.value not in optimizer_names("deepspeed"):
        return f"{place.key}: the optimizer {optimizer.value} under DeepSpeed is not modelled"
    return ""


def _degrees(tool: Tool, settings: Settings) -> Iterator[tuple[str, Value]]:
    sizes: dict[str, int] = {}
    for name, names in tool.degrees.items():
        for key in names:
            size = whole(settings, key, 1)
            sizes[name] = max(size, sizes.get(name, 1))
            if size > 1 and name != "dp_shard":
                yield name, decided(settings, key, size)
    if sizes.get("dp_shard", 1) > 1:
        (key,) = tool.degrees["dp_shard"]
        yield "dp", decided(settings, key, sizes["dp_shard"] * sizes.get("dp_replicate", 1))


def _longest(tool: Tool, settings: Settings) -> Value | None:
    for key in (tool.length["key"], *tool.lengths):
        size = as_whole(given(settings, key))
        if size is not None and size > 0:
            return replace(settings[key], value=size)
    usual = tool.length["usual"]
    is_stated = any(key in settings for key in (tool.length["key"], *tool.lengths))
    return Value(value=usual, key=tool.length["key"]) if usual and not is_stated else None


def _is_packed(tool: Tool, settings: Mapping[str, Value]) -> bool:
    return any(is_one_of(given(settings, key), each) for key, each in tool.packing.items())


def _batching(tool: Tool, settings: Settings) -> Value | None:
    """How a batch puts documents together; None where it is no kind that is priced."""
    for entry in tool.batching:
        beside = entry.get("beside")
        holds = is_one_of(given(settings, entry["key"]), entry["values"])
        if holds and (beside is None or is_one_of(given(settings, beside), [True])):
            kind = entry["kind"]
            return decided(settings, entry["key"], kind) if kind else None
    return Value(value="padded", key=tool.batching[0]["key"])

"""Reads recipe overrides: a file of them, or a launch script that hands them on."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from planner.formats.bridge import keys
from planner.formats.bridge.adapters import DROPOUT, NULL, PEFT, RANK, adapter_value, read_adapters
from planner.formats.format import Located, ParsedConfig, Severity, SourceText
from planner.formats.megatron.decisions import decisions_of, left_open
from planner.formats.megatron.format import settings_of
from planner.formats.megatron.options import options_by_dest
from planner.formats.megatron.runtime import BF16_GRADIENTS, traits_of
from planner.formats.megatron.runtime import FP32_GRADIENTS as ACCUMULATED
from planner.formats.settings import decided
from planner.formats.shell.launch import open_processes, processes
from planner.formats.shell.options import Entry, Launches, WordsReader, launches_in
from planner.formats.shell.word import Command, Word
from planner.spelling import alike, did_you_mean

NAME = "bridge"
_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)


def recognise(source: SourceText) -> bool:
    """Return True if a file has overrides of decisions, or runs a recipe with any override."""
    text = source.text
    # Overrides of NeMo before Megatron-Bridge.
    is_other = re.search(r"\s\+{0,2}(?:trainer|exp_manager)\.\w+=", text)
    if is_other or source.path.endswith((".yaml", ".yml")):
        return False
    # A key of the model may be mistyped.
    has_keys = re.search(r"\s\+{0,2}(?:model|train)\.\w+=", text) is not None
    runs_recipe = "run_recipe.py" in text and has_keys
    is_told = any(
        key.startswith(("model.", "train.")) and f"{key}=" in text for key in keys.OPTIONS
    )
    return (runs_recipe or is_told) and "\x00" not in text


def overrides_in(source: SourceText) -> Launches:
    """Return the launches in a file, with their overrides; raises InputError."""
    # Behind comments.
    first = re.match(r"\s*(?:#[^\n]*\n\s*)*['\"]?\+{0,2}([A-Za-z_]\w*(?:\.\w+)*)=", source.text)
    return launches_in(
        source,
        _starts,
        _overrides,
        lambda launch: len(launch[1]),
        is_list=first is not None and keys.is_known(first[1]),
        lacking="no command has overrides such as model.KEY=VALUE",
    )


def _starts(commands: Iterable[Command]) -> Iterator[Command]:
    for each in commands:
        launcher = (*each.launcher, *each.words)
        program = next((word for word in each.words if word.text.endswith(".py")), None)
        yield replace(each, launcher=launcher, program=program)


def _overrides(words: Sequence[Word]) -> list[Entry]:
    found: list[Entry] = []
    for word in words:
        match = _OVERRIDE.fullmatch(word.text)
        # These stand without a field: a name, or nothing.
        if match and ("." in match[2] or match[2] in (keys.PRECISION, PEFT)):
            found.append(Entry(word=word, name=match[2], joined=match[3]))
    return found


def read(source: SourceText) -> ParsedConfig:
    """Understand a file; raises InputError where it holds no override."""
    (arguments, found), _ = overrides_in(source)
    reader = WordsReader(format=NAME, source=source)
    reader.take(found, _value)
    for each in found:
        if not keys.is_known(each.name):
            reader.report(each, "unknown_key", *_unknown(each.name))
        elif each.name.startswith(f"{PEFT}.") and not each.word.text.startswith("+"):
            message = f"is in no recipe that overrides see: ++{each.name} adds it"
            reader.report(each, "unknown_key", message, "error")
    open_ones = [each for each in found if each.unknown and each.name in keys.OPTIONS]
    reader.note_open(open_ones)
    of_recipe = _of_recipe(arguments.launcher, reader.settings)
    reader.settings |= of_recipe
    parts = [part for word in arguments.launcher for part in word.text.split("=", 1)]
    recipe = ""
    if keys.NAMED in parts[:-1]:
        recipe = parts[parts.index(keys.NAMED) + 1]
    training, unpriced = read_adapters(recipe, reader.settings)
    launched = reader.take_launcher(arguments)
    options = keys.as_options(reader.settings)
    decisions = decisions_of(options, processes(launched))
    # These are the recipe's where a file leaves them out, not Megatron's default.
    left = {"optimizer": "optimizer.optimizer", "mtp_layers": "model.mtp_num_layers"}
    for name, key in left.items():
        if key not in reader.settings:
            decisions.pop(name, None)
    traits = list(traits_of(options))
    if training:
        decisions["profile"] = replace(reader.settings[RANK], value=NAME)
        dropout = reader.settings.get(DROPOUT)
        none = ("0", "0.0", *NULL)
        if dropout is not None and str(dropout.value).lower() not in none:
            traits.append(("kernels.adapter_dropout", True))
    stated = dict(of_recipe)
    for each in open_ones:
        stated[each.name] = reader.settings[each.name]
    by_option = {keys.OPTIONS[key]: each for key, each in stated.items() if key in keys.OPTIONS}
    return ParsedConfig(
        format=NAME,
        path=source.path,
        settings=reader.settings | launched,
        decisions=decisions,
        findings=tuple(reader.findings),
        traits=tuple(traits),
        training=training,
        unpriced=unpriced,
        left_open=left_open(by_option) | open_processes(launched),
    )


def _of_recipe(words: Sequence[Word], settings: Mapping[str, Located]) -> dict[str, Located]:
    """Return an entry for the recipe named, and one per degree it sets and nothing overrides."""
    if not any(word.text.startswith(keys.NAMED) for word in words):
        return {}
    found = {keys.NAMED: Located(value=True, key=keys.NAMED)}
    for name in ("tensor_model", "pipeline_model", "context", "expert_model"):
        key = f"model.{name}_parallel_size"
        if key not in settings:
            found[key] = Located(key=key)
    return found


def _unknown(key: str) -> tuple[str, Severity]:
    """Return what is wrong with an unknown key; models of some recipes have further ones."""
    if key.startswith("model.") and not alike(key, keys.OPTIONS, 0.85):
        return "is no key of Megatron's models; the recipe's own may have it", "warning"
    hint = did_you_mean(key[:100], [*keys.OPTIONS, keys.PRECISION])
    # A message lists the first few groups only.
    groups = ", ".join(keys.GROUPS.split()[:8])
    return f"unknown key; {hint or f'groups are {groups}, ...'}", "error"


def _value(each: Entry) -> object:
    """Return the value that an override sets; raise ValueError with what is wrong with it."""
    text = each.joined or ""
    if each.name in keys.OPTIONS:
        return keys.option_value(each.name, text)
    if each.name.startswith(f"{PEFT}."):
        return adapter_value(each.name, text)
    if each.name == keys.FP32_GRADIENTS:
        return keys.switch(text.strip("'\""))
    if each.name == "model.num_query_groups":
        is_small = text.isascii() and text.isdigit() and len(text) < 9
        return int(text) if is_small else None
    return text


def read_dumped(path: str, given: Mapping[str, Located]) -> ParsedConfig | None:
    """The reading of what is printed, by ``group.field``; None where it is not whole."""
    heads = "model.num_attention_heads"
    if not given.keys() >= {heads, "model.num_layers", "train.micro_batch_size"}:
        return None
    words: dict[str, Located] = {}
    dests = {option.name: dest for dest, option in options_by_dest().items()}
    dtypes = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
    for key, place in given.items():
        # Fields of these groups have the names of Megatron's arguments.
        is_printed = key.startswith(("model.", "train.", "optimizer.", "ddp."))
        option = keys.option_of(key) if is_printed or key == "dataset.seq_length" else ""
        if option in dests and not (key == keys.VIRTUAL and keys.LAYOUT in given):
            text = str(place.value).strip("'")
            for dtype, short in dtypes.items():
                text = text.replace(f"torch.{dtype}", short)
            words[dests[option]] = Located(value=text, key=key, line=place.line)
    settings = settings_of(words)
    groups = given.get("model.num_query_groups")
    if groups and groups.value != given[heads].value:
        settings["--group-query-attention"] = replace(groups, value=True)
    held = given.get("ddp.grad_reduce_in_fp32")
    reduced = ACCUMULATED if held and held.value == "True" else BF16_GRADIENTS
    settings[reduced] = decided(given, "ddp.grad_reduce_in_fp32", True)
    return ParsedConfig(
        format=NAME,
        path=path,
        settings={place.key: place for place in settings.values()},
        decisions=decisions_of(settings),
    )

"""From the words of a front end to settings of TrainingArguments, and what is wrong with them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.documents.schema import wrongs
from planner.errors import InputError
from planner.formats.accelerate.format import read as read_accelerate
from planner.formats.accelerate.keys import type_of
from planner.formats.deepspeed.read import read as read_deepspeed
from planner.formats.format import Finding, Reading, SourceText, Value, listed
from planner.formats.front_ends.content import Content
from planner.formats.front_ends.named import OutsideError, source_named
from planner.formats.front_ends.tools import Tool
from planner.formats.settings import as_flag, as_whole, finding_at, given
from planner.formats.trainer import keys
from planner.formats.trainer.format import as_number
from planner.spelling import alike, did_you_mean

MISSPELT = 0.9
"""How alike a key is to the one that was meant."""
FSDP_CONFIG = "fsdp_config"
_ENGINES = {"DEEPSPEED": keys.DEEPSPEED, "FSDP": keys.FSDP}
"""By the type of a file of Accelerate's."""
_LAUNCHED = ("zero_stage", "offload", "tp", "cp", "dp_replicate", "recompute_layers_per_stage")
"""What such a file decides; precision and batch are the trainer's."""
NUMBERS = ("micro_batch_size", "sequence_len", "cutoff_len", "max_length", "lora_r", "lora_rank")
NAMES = (*NUMBERS, "gradient_accumulation_steps", "per_device_train_batch_size")


@dataclass(kw_only=True)
class Translation:
    """Settings by the keys of TrainingArguments, each with the place of the program's own key."""

    tool: Tool
    path: str
    settings: dict[str, Value]
    findings: list[Finding]
    named: list[Reading] = field(default_factory=list)
    """Files that the file names."""
    launched: dict[str, Value] = field(default_factory=dict)
    """What the launcher's own file decides."""

    def report(self, rule: str, place: Value, message: str, severity: str = "error") -> None:
        """Note what is wrong at a key."""
        name = f"{self.tool.name}.{rule}"
        self.findings.append(finding_at(name, self.path, place, message, severity))  # type: ignore[arg-type]

    def name_file(self, place: Value) -> SourceText | None:
        """The file that a key names; a finding where it cannot be read."""
        try:
            return source_named(self.path, place)
        except OutsideError as error:
            self.report("named_file", place, error.problems[0].message, "warning")
        except InputError as error:
            problem = error.problems[0]
            own = problem.message if problem.where == self.path else str(problem)
            self.report("named_file", place, own)
        return None


def translated(path: str, content: Content, tool: Tool) -> Translation:
    """Every key, the program's own by their names, those of TrainingArguments by theirs."""
    made = Translation(tool=tool, path=path, settings={}, findings=[*content.findings])
    for name, place in content.places.items():
        made.settings |= dict(_in_full(tool, name, place))
    _add_presets(made, content)
    _add_fsdp(made)
    _add_usual(made)
    _add_deepspeed(made)
    _add_accelerate(made, content)
    made.findings += _unknown(made, content)
    made.findings += _bad_values(made)
    return made


def _in_full(tool: Tool, name: str, place: Value) -> Iterator[tuple[str, Value]]:
    head, _, rest = name.partition(".")
    if head == FSDP_CONFIG:
        name = f"{head}.{rest.removeprefix('fsdp_')}" if rest else head
    value = as_number(place.value)
    if name in tool.inverse:
        off = as_flag(value)
        if off is not None:
            yield tool.inverse[name], Value(value=not off, key=place.key, line=place.line)
        return
    full = tool.arguments.get(name, name)
    if full:
        value = tool.values.get(full, {}).get(str(value), value)
        yield full, Value(value=value, key=place.key, line=place.line)


def _add_presets(made: Translation, content: Content) -> None:
    """What a name stands for that the program knows in place of a file."""
    for key, names in made.tool.presets.items():
        place = content.places.get(key)
        if place is None or str(place.value) not in names:
            continue
        found = names[str(place.value)]
        made.settings |= {
            name: Value(value=value, key=place.key, line=place.line)
            for name, value in found.items()
        }
        for engine in (keys.DEEPSPEED, keys.FSDP):
            if any(name.startswith(engine) for name in found):
                made.settings[engine] = Value(value=True, key=place.key, line=place.line)


def _add_fsdp(made: Translation) -> None:
    """``fsdp`` or ``fsdp_config`` may name a file that holds both, or the second."""
    settings = made.settings
    for key in (keys.FSDP, FSDP_CONFIG):
        place = settings.get(key)
        if place is None or not str(place.value).endswith(".json"):
            continue
        source = made.name_file(place)
        content = _object(source) if source else {}
        inner = content.get(FSDP_CONFIG, content)
        settings |= {
            f"{FSDP_CONFIG}.{str(name).removeprefix('fsdp_')}": Value(
                value=value, key=place.key, line=place.line
            )
            for name, value in (inner if isinstance(inner, dict) else {}).items()
        }
        settings[keys.FSDP] = Value(
            value=content.get(keys.FSDP, True), key=place.key, line=place.line
        )
    if made.tool.fsdp_by_config and settings.get(FSDP_CONFIG, Value(value=None, key="")).value:
        settings.setdefault(keys.FSDP, settings[FSDP_CONFIG])
    if given(settings, keys.FSDP):
        for key, value in made.tool.usual_with_fsdp.items():
            settings.setdefault(key, Value(value=value, key=key))


def _object(source: SourceText) -> Mapping[str, Any]:
    from planner.documents.tree import parsed_object

    found: Mapping[str, Any] = parsed_object(source.path, source.text).value
    return found


def _add_usual(made: Translation) -> None:
    """Defaults of the program, where the file says nothing of the key."""
    replaced = {
        "bf16": as_flag(given(made.settings, "fp16")),
        keys.CHECKPOINTING: as_flag(given(made.settings, keys.BLOCKS)),
    }
    for key, value in made.tool.usual.items():
        if given(made.settings, key) is None and not replaced.get(key):
            made.settings[key] = Value(value=value, key=key)


def _add_deepspeed(made: Translation) -> None:
    """What a DeepSpeed file decides stands at the key that names it."""
    place = made.settings.get(keys.DEEPSPEED)
    if place is None or not isinstance(place.value, str) or not place.value:
        return
    source = made.name_file(place)
    if source is None:
        return
    reading = read_deepspeed(source, fills_auto=True)
    made.named.append(reading)
    made.settings |= {
        f"{keys.DEEPSPEED}.{name}": Value(value=each.value, key=place.key, line=place.line)
        for name, each in reading.settings.items()
    }


def _add_accelerate(made: Translation, content: Content) -> None:
    """The file of Accelerate's that a key or the launcher names."""
    key = made.tool.accelerate
    place = content.accelerate or (made.settings.get(key) if key else None)
    known = made.tool.presets.get(key, {})
    if place is None or not isinstance(place.value, str) or place.value in known:
        return
    source = made.name_file(place)
    if source is None:
        return
    reading = read_accelerate(source)
    made.named.append(reading)
    engine = _ENGINES.get(type_of(reading.settings))
    if engine is not None:
        made.settings.setdefault(engine, Value(value=True, key=place.key, line=place.line))
    made.launched |= {
        name: Value(value=each.value, key=place.key, line=place.line)
        for name, each in reading.decisions.items()
        if name in _LAUNCHED
    }


def _unknown(made: Translation, content: Content) -> Iterator[Finding]:
    """Keys that nobody knows: an error where one is nearly a known one, else one note."""
    tool, foreign = made.tool, list[Value]()
    known = {*tool.own_keys, *keys.known(), *keys.replaced(), *tool.arguments, *tool.inverse}
    known |= {*tool.lengths, *tool.packing, *tool.model, *NAMES} | {tool.length["key"]}
    known |= {entry["key"] for entry in tool.unpriced}
    stated = {**{name: content.places[name] for name in content.values if name in content.places}}
    for name, place in stated.items():
        if name in known or name.startswith("_"):
            continue
        near = alike(name, sorted(known), MISSPELT)
        if near and not name.startswith(near) and not near.startswith(name):
            message = f"unknown key of {tool.program}; {did_you_mean(name, sorted(known))}"
            rule = f"{tool.name}.unknown_key"
            yield finding_at(rule, made.path, place, message)
        else:
            foreign.append(place)
    if foreign:
        what = "no key" if len(foreign) == 1 else "no keys"
        names = listed([each.key[:60] for each in foreign])
        message = f"{names}: {what} of {tool.versions.partition(' (')[0]}; not looked at"
        yield finding_at(f"{tool.name}.unknown_key", made.path, foreign[0], message, "note")


def _bad_values(made: Translation) -> Iterator[Finding]:
    """Values of another kind than TrainingArguments take, and sizes that are no whole numbers."""
    top = {name: each for name, each in made.settings.items() if name in keys.known()}
    plain = {
        name: each.value
        for name, each in top.items()
        if isinstance(each.value, bool | int | float) or each.value is None
    }
    known = {name: keys.known()[name] for name in plain}
    schema = {**keys.schema(), "properties": known, "required": []}
    for wrong in wrongs(
        schema, {name: value for name, value in plain.items() if value is not None}
    ):
        place = top[wrong.path[0]]
        message = f"given {place.value!r}; {wrong.allowed}"
        yield finding_at(f"{made.tool.name}.bad_value", made.path, place, message)
    length = made.settings.get(made.tool.length["key"])
    sizes = [length, *(made.settings.get(name) for name in (keys.BATCH, keys.STEPS))]
    for size in sizes:
        if size and size.line and isinstance(size.value, str) and as_whole(size.value) is None:
            message = f"given {size.value[:60]!r}; a whole number"
            yield finding_at(f"{made.tool.name}.bad_value", made.path, size, message)

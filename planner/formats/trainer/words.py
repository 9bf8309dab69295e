"""Translation of a program's words to settings of TrainingArguments, and what is wrong there."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from planner.documents.schema import wrongs
from planner.documents.tree import parsed_object
from planner.errors import InputError, alike, did_you_mean
from planner.formats.accelerate.format import read as read_accelerate
from planner.formats.accelerate.keys import AccelerateView
from planner.formats.deepspeed.format import read as read_deepspeed
from planner.formats.format import Finding, Located, ParsedConfig, Severity, SourceText, listed
from planner.formats.settings import as_flag, as_whole, finding_at, flag, given
from planner.formats.trainer import keys
from planner.formats.trainer.content import Content, OutsideError, source_named
from planner.formats.trainer.keys import (
    BATCH,
    BLOCKS,
    CHECKPOINTING,
    DEEPSPEED,
    ENGINES,
    FSDP,
    FSDP_CONFIG,
    STEPS,
    WHOLE,
    FrontEnd,
)


@dataclass(kw_only=True)
class Translation:
    """Settings by the keys of TrainingArguments, each with the place of the program's own key."""

    tool: FrontEnd
    source: SourceText
    findings: list[Finding]
    settings: dict[str, Located] = field(default_factory=dict)
    named: list[ParsedConfig] = field(default_factory=list)  # Files that the file names
    launched: dict[str, Located] = field(default_factory=dict)  # Decisions of the launcher's file

    def report(
        self,
        rule: str,
        place: Located,
        message: str,
        severity: Severity = "error",
    ) -> None:
        """Note what is wrong at a key."""
        self.findings.append(
            finding_at(f"{self.tool.name}.{rule}", self.source.path, place, message, severity)
        )

    def take(self, place: Located, values: Mapping[str, object]) -> None:
        """Take what a key stands for, in place of what was said before."""
        self.settings |= {name: replace(place, value=value) for name, value in values.items()}

    def file_at(self, place: Located | None) -> SourceText | None:
        """The file that a key names, if it names one; a finding where it cannot be read."""
        if place is None or not isinstance(place.value, str) or not place.value:
            return None
        try:
            return source_named(self.source, place)
        except InputError as error:
            problem = error.problems[0]
            message = problem.message if problem.where == self.source.path else str(problem)
            # Where a training script is started from, and so looks for files, is not known.
            is_unsure = isinstance(error, OutsideError) or self.tool.is_own
            severity: Severity = "warning" if is_unsure else "error"
            self.report("named_file", place, message, severity)
        return None


def translated(source: SourceText, content: Content, tool: FrontEnd) -> Translation:
    """Every key, the program's own by their names, those of TrainingArguments by theirs."""
    made = Translation(tool=tool, source=source, findings=[*content.findings])
    for name, place in content.places.items():
        made.take(place, _in_full(tool, name, place.value))
    # A name may stand for what the program knows, in place of a file.
    for key, names in tool.presets.items():
        place = content.places.get(key, Located(key=key))
        preset = names.get(str(place.value), {})
        made.take(place, preset)
        for name in preset:
            engine = name.partition(".")[0].removesuffix("_config")
            if engine in ENGINES:
                made.take(place, {engine: True})
    _take_fsdp(made)
    # Defaults of the program, where the file says nothing of the key.
    settings = made.settings
    instead = {"bf16": "fp16", CHECKPOINTING: BLOCKS}
    for key, usual in tool.usual.items():
        if given(settings, key) is None and not flag(settings, instead.get(key, "")):
            settings[key] = Located(value=usual, key=key)
    # What a DeepSpeed file decides stands at the key that names it.
    named = settings.get(DEEPSPEED)
    if named and (engine_file := made.file_at(named)):
        reading = read_deepspeed(engine_file, fills_auto=True)
        made.named.append(reading)
        for name, each in reading.settings.items():
            made.take(named, {f"{DEEPSPEED}.{name}": each.value})
    _take_accelerate(made, content)
    if tool.is_own:
        _report_arguments(made, content)
    else:
        _report_unknown(made, content)
        _report_values(made)
    return made


def _in_full(tool: FrontEnd, name: str, value: object) -> dict[str, object]:
    """A key and its value in the words of TrainingArguments; empty where it is none of theirs."""
    head, _, rest = name.partition(".")
    if head == FSDP_CONFIG and rest:
        inner = (each.removeprefix("fsdp_") for each in rest.split("."))
        name = ".".join((head, *inner))
    if name in tool.inverse:
        off = as_flag(value)
        return {} if off is None else {tool.inverse[name]: not off}
    full = tool.arguments.get(name, name)
    return {full: tool.values.get(full, {}).get(str(value), value)} if full else {}


def _take_fsdp(made: Translation) -> None:
    """``fsdp`` or ``fsdp_config`` may name a file that holds both, or the second."""
    settings = made.settings
    for key in (FSDP, FSDP_CONFIG):
        place = settings.get(key)
        if place is None or not str(place.value).endswith(".json"):
            continue
        source = made.file_at(place)
        content = parsed_object(source.path, source.text).value if source else {}
        inner = content.get(FSDP_CONFIG, content)
        for name, value in inner.items() if isinstance(inner, dict) else ():
            made.take(place, {f"{FSDP_CONFIG}.{name.removeprefix('fsdp_')}": value})
        made.take(place, {FSDP: content.get(FSDP, True)})
    if made.tool.fsdp_by_config and given(settings, FSDP_CONFIG):
        settings.setdefault(FSDP, settings[FSDP_CONFIG])
    for key, value in made.tool.usual_with_fsdp.items() if given(settings, FSDP) else ():
        settings.setdefault(key, Located(value=value, key=key))


def _take_accelerate(made: Translation, content: Content) -> None:
    """The file of Accelerate's that a key or the launcher names."""
    key = made.tool.accelerate
    place = content.accelerate or made.settings.get(key)
    if place is None or str(place.value) in made.tool.presets.get(key, {}):
        return
    source = made.file_at(place)
    if source is None:
        made.launched["zero_stage"] = replace(place, value=None)
        return
    reading = read_accelerate(source)
    made.named.append(reading)
    engine = AccelerateView(settings=reading.settings).kind.lower()
    if engine in ENGINES:
        made.settings.setdefault(engine, replace(place, value=True))
    for name in ("gradient_accumulation_steps", "gradient_clipping"):
        full = f"deepspeed_config.{name}"
        if engine == DEEPSPEED and full in reading.settings:
            # Plugin and trainer must agree: accelerate/utils/dataclasses.py DeepSpeedPlugin.
            own = replace(place, key=f"{place.value} {full}")
            made.take(own, {f"{DEEPSPEED}.{name}": given(reading.settings, full)})
    # Precision and batch are the trainer's.
    taken = ("zero_stage", "offload", "tp", "cp", "dp_replicate", "recompute_layers_per_stage")
    made.launched |= {
        name: replace(place, value=each.value)
        for name, each in reading.decisions.items()
        if name in ("num_gpus", *taken)
    }


def _report_arguments(made: Translation, content: Content) -> None:
    """Values that TrainingArguments do not take, and keys that are none of theirs."""
    places = content.places
    spelled = {key: place for name, place in places.items() for key in _in_full(made.tool, name, 0)}
    stated = {name: place.value for name, place in places.items() if "." not in name}
    own = stated.get(FSDP_CONFIG)
    if isinstance(own, dict):
        inner = {name.removeprefix("fsdp_"): value for name, value in own.items()}
        stated[FSDP_CONFIG] = inner
    for key in WHOLE:
        if isinstance(value := stated.get(key), float) and value.is_integer():
            message = f"given {value!r}, which stays so; a whole number is allowed"
            made.report("bad_value", places[key], message)
    old: list[str] = []
    foreign: list[str] = []
    for wrong in wrongs(keys.schema(), stated):
        place, (*above, name) = spelled[".".join(wrong.path)], wrong.path
        if wrong.allowed:
            message = f"given {repr(place.value)[:60]}; {wrong.allowed}"
            made.report("bad_value", place, message)
        elif not above and name in keys.replaced():
            old.append(name)
        elif above or alike(name, keys.known(), 0.87):
            known = wrong.schema["properties"]
            hint = did_you_mean(name, known) or f"{len(known)} keys are known"
            where = above[0] if above else made.tool.program
            made.report("unknown_key", place, f"unknown key of {where}; {hint}")
        else:
            # It may be of the dataclasses that a script reads from the same file, as
            # HfArgumentParser does.
            foreign.append(name)
    if old:
        shown = [f"{key} ({keys.replaced()[key] or 'nothing'} in its place)" for key in old]
        message = f"for a transformers older than 5: {listed(shown)}"
        made.report("made_for", places[old[0]], message, "note")
    if foreign:
        own_ones = "no key of TrainingArguments; sound where the script's own have it"
        made.report("unknown_key", places[foreign[0]], f"{listed(foreign)}: {own_ones}", "note")


def _report_unknown(made: Translation, content: Content) -> None:
    """Keys that nobody knows: an error where one is nearly a known one, else one note."""
    tool, foreign = made.tool, list[Located]()
    known = sorted(
        {
            *tool.keys.split(),
            *keys.known(),
            *keys.replaced(),
            *tool.arguments,
            *tool.inverse,
            *tool.lengths,
            *tool.packing,
            *tool.model,
            tool.length["key"],
            *(entry["key"] for entry in tool.unpriced),
            # What every front end is asked for, under one name or another.
            *("micro_batch_size", "sequence_len", "cutoff_len"),
            *("max_length", "lora_r", "lora_rank"),
        }
    )
    for name, place in content.places.items():
        if "." in name or name in known or name.startswith("_"):
            continue
        near = alike(name, known, 0.9)
        if near and not name.startswith(near) and not near.startswith(name):
            message = f"unknown key of {tool.program}; {did_you_mean(name, known)}"
            made.report("unknown_key", place, message)
        else:
            foreign.append(place)
    if foreign:
        names = listed([each.key[:60] for each in foreign])
        message = f"{names}: no key of {tool.versions.partition(' (')[0]}; not looked at"
        made.report("unknown_key", foreign[0], message, "note")


def _report_values(made: Translation) -> None:
    """Values of another kind than TrainingArguments take, and sizes that are no whole numbers."""
    stated = {
        name: each.value
        for name, each in made.settings.items()
        if name in keys.known() and isinstance(each.value, bool | int | float)
    }
    for wrong in wrongs(keys.schema(), stated):
        place = made.settings[wrong.path[0]]
        made.report("bad_value", place, f"given {place.value!r}; {wrong.allowed}")
    for name in (made.tool.length["key"], BATCH, STEPS):
        size = made.settings.get(name, Located(key=name))
        is_text = size.line and isinstance(size.value, str)
        if is_text and as_whole(size.value) is None:
            made.report("bad_value", size, f"given {size.value[:60]!r}; a whole number")

"""A front end as a format: read, checked and repaired as TrainingArguments are, not written."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NoReturn

from planner.cost.context import Context
from planner.documents.edit import JsonEditor, YamlEditor
from planner.documents.file import REMOVED
from planner.errors import ExpressError, InputError
from planner.formats.adapters import LIGER, SUFFIX
from planner.formats.decision import changes, decided_in, lines_of, refuse, uneven_layers
from planner.formats.format import Format, Located, ParsedConfig, SourceText, listed
from planner.formats.front_ends.content import FILES, content_of, is_script
from planner.formats.front_ends.rules import RULES
from planner.formats.front_ends.tools import FrontEnd, is_of, load_tool
from planner.formats.front_ends.words import translated
from planner.formats.settings import Settings, as_flag, decided, given, whole, word
from planner.formats.trainer import keys
from planner.formats.trainer.format import is_json, names_in
from planner.formats.trainer.mapping import DEEPSPEED, REPLICATED, SUPPORT, engine, part, section_of
from planner.formats.trainer.rules import rule as of_trainer
from planner.frameworks.registry import optimizer_names
from planner.spec.strategy import FIELD_DEFAULTS, SEARCHED_FIELDS, Strategy
from planner.spec.training import MAX_RANK, MODES, TARGETS, Mode, Target, Training, read_targets


def is_one_of(value: object, wanted: Sequence[Any]) -> bool:
    """Return True if a value, or one of a list, is of a table; flags by any word for them."""
    if isinstance(value, list):
        return any(is_one_of(each, wanted) for each in value)
    flags = [each for each in wanted if isinstance(each, bool)]
    return value in wanted or as_flag(value) in flags


def _any_of(settings: Settings, table: Mapping[str, Sequence[Any]]) -> bool:
    return any(is_one_of(given(settings, key), table[key]) for key in table)


def _unpriced(tool: FrontEnd, settings: Settings) -> Iterator[str]:
    """Why plans say nothing of the memory and time of what a file starts."""
    modes = tool.training["modes"]
    for entry in tool.unpriced:
        place = settings.get(entry["key"])
        if place and _is_unpriced(entry, place.value):
            yield f"{place.key} {str(place.value)[:60]}: {entry['why']}"
    for key in tool.training["beyond"]:
        place = settings.get(key)
        if place and _is_unpriced({}, place.value):
            yield f"{place.key}: more than adapters of one rank is trained"
    mode = _stated_mode(tool, settings)
    if mode and not modes.get(str(mode.value)):
        allowed = ", ".join(name for name, known in modes.items() if known)
        yield f"{mode.key} {mode.value}: plans price {allowed}"
    quantised = r"(?i)\b(gptq|awq|aqlm|int4|int8|[48]bit|bnb|mxfp4|hqq|eetq)\b|-fp8"
    for key in tool.model:
        name = word(settings, key)
        if re.search(quantised, name):
            yield f"{settings[key].key} {name[-60:]}: its weights are quantised already"


def _is_unpriced(entry: Mapping[str, Any], value: object) -> bool:
    """Return True if a value is in ``values``, not in ``other_than``, or, without them, given."""
    if value in (None, ""):
        return False
    if "values" in entry:
        return is_one_of(value, entry["values"])
    if as_flag(value) is False:
        return False
    if "other_than" in entry:
        return not is_one_of(value, entry["other_than"])
    return value not in ([], {})


def _stated_mode(tool: FrontEnd, settings: Settings) -> Located | None:
    for name in (tool.training["key"], *tool.training.get("keys", ())):
        if word(settings, name):
            return settings[name]
    return None


def training_of(tool: FrontEnd, settings: Settings) -> tuple[Training, tuple[str, ...]]:
    """Return what is trained, and what of it is not stated, in words."""
    stated, table = _stated_mode(tool, settings), tool.training
    mode: Mode | None = table["usual"]
    if stated is not None:
        mode = table["modes"].get(str(stated.value))
    if mode in (None, "full"):
        return Training(), ()
    if _any_of(settings, table["in_4_bits"]):
        mode = "qlora"
    said: list[str] = []
    rank = whole(settings, table["rank"]["key"], 0)
    if not 1 <= rank <= MAX_RANK:
        rank = table["rank"]["usual"]
        said.append(f"adapters of rank {rank}")
    targets = _targets(tool, settings)
    if not targets:
        usual = table["targets"].get("usual")
        targets = tuple(usual or TARGETS)
        said.append(f"adapters on {', '.join(usual) if usual else 'all linear layers'}")
    return Training(mode=mode, rank=rank, targets=targets), tuple(said)


def _targets(tool: FrontEnd, settings: Settings) -> tuple[Target, ...]:
    """The projections that a file names, empty where it names none that plans know."""
    table = tool.training["targets"]
    for key in table["keys"]:
        value = given(settings, key)
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list):
            names = []
        if is_one_of([value, *names], table["all"]):
            return TARGETS
        known: list[str] = []
        for name in names:
            short = str(name).strip().rpartition(".")[2].removesuffix(SUFFIX)
            if short in TARGETS:
                known.append(short)
        if known:
            return read_targets(",".join(known))
    return ()


def holds_16_bits(tool: FrontEnd, settings: Settings) -> bool:
    """Return True if the weights that are trained are in 16 bits."""
    stated = dict(tool.in_16_bits)
    usual = bool(stated.pop("usual", False))
    return usual != _any_of(settings, stated)


def front_end(name: str) -> Format:
    """The format of a program that hands its files to Trainer."""
    tool = load_tool(name)
    # Rules of TrainingArguments of which a front end takes care itself.
    left = {
        "mesh_is_no_mapping",
        "checkpointing_by_its_new_name",
        "fsdp_config_is_used",
        "fsdp2_is_used",
    }
    if tool.optimizers:
        left.add("optim_known")
    return Format(
        name=name,
        title=tool.title,
        framework="accelerate",
        versions=tool.versions,
        emit=partial(_refuse, tool.program),
        recognise=partial(recognise, tool=tool),
        read=partial(read, tool=tool),
        rules=tuple(RULES.get(name, ())),
        borrowed={"trainer": tuple(rule for rule in of_trainer if rule.name not in left)},
        is_written=False,
        trains=MODES,
        write_into=partial(write_into, tool=tool),
        part=part,
        engine=engine,
        support=SUPPORT,
    )


def _refuse(program: str, _context: Context, _strategy: Strategy) -> NoReturn:
    message = f"files of {program} are read, checked and repaired, not written"
    raise ExpressError(f"{message}; trainer writes the TrainingArguments behind them")


def recognise(source: SourceText, tool: FrontEnd) -> bool:
    """Return True if a file, from its keys, or a command in it, is the program's."""
    if is_script(source, tool):
        with suppress(InputError):
            return bool(content_of(source, tool).names)
        return False
    for group in tool.tells:
        # Most files are told from these without being parsed.
        if all(key in source.text for key in group):
            return is_of(tool, names_in(source))
    return False


def read(source: SourceText, tool: FrontEnd) -> ParsedConfig:
    """Understand a file; InputError where it holds no keys."""
    content = content_of(source, tool)
    made = translated(source.path, content, tool)
    if content.open_keys:
        # The first ones, as commands of scripts have many.
        places = [*content.open_keys.values()][:6]
        names = listed([each.key for each in places])
        message = f"{names}: made by the shell from what the file does not say; not known"
        made.report("unresolved", places[0], message, "note")
    settings = made.settings
    section = section_of(settings)
    found = decided_in(section.table, settings)
    found |= made.launched
    found |= _degrees(tool, settings)
    if content.num_gpus is not None:
        found["num_gpus"] = content.num_gpus
    training, said = training_of(tool, settings)
    beyond = _beyond_plans(tool, settings, training, found)
    why = next(chain(_unpriced(tool, settings), beyond), "")
    if why:
        training, said = Training(), ()
        found.pop("optimizer", None)
    if section is REPLICATED and not training.is_frozen and holds_16_bits(tool, settings):
        # Weights, gradients and states in 16 bits, where nothing shards them.
        found["profile"] = decided(settings, "bf16", "pure-bf16")
    longest = _longest(tool, settings)
    if longest is not None and _any_of(settings, tool.packing):
        found["seq_len"], longest = longest, None
    assumes: list[str] = []
    if section is REPLICATED and not content.is_command and not made.launched:
        assumes.append("zero_stage")
    if "optimizer" not in found and not why:
        assumes.append("optimizer")
    models = [settings[key] for key in tool.model if given(settings, key)]
    return ParsedConfig(
        format=tool.name,
        path=source.path,
        settings=settings,
        decisions=found,
        findings=tuple(sorted(made.findings, key=lambda each: each.line)),
        assumes=tuple(assumes),
        unpriced=why,
        named=tuple(made.named),
        training=training,
        traits=LIGER if _any_of(settings, tool.liger) else (),
        longest=longest,
        batching=_batching(tool, settings),
        supposes=said,
        named_model=models[0] if models else None,
    )


def _beyond_plans(
    tool: FrontEnd, settings: Settings, training: Training, found: Mapping[str, Located]
) -> Iterator[str]:
    """Yield what Trainer runs and plans do not price."""
    section, optimizer = section_of(settings), found.get("optimizer")
    is_wide = training.mode == "lora" and tool.frozen_in_16_bits_only
    if is_wide and not holds_16_bits(tool, settings):
        yield "dtype float32: frozen weights in 32 bits are not modelled"
    for name in ("cp", "tp"):
        if section is REPLICATED and name in found:
            split = f"{found[name].key} {found[name].value}"
            yield f"{split}: splitting what whole replicas hold is not modelled"
    if section is not DEEPSPEED:
        return
    # DeepSpeed carries the file: the key that turns it on is named.
    key = settings[keys.DEEPSPEED].key
    if training.is_frozen:
        yield f"{key}: {training.mode} under DeepSpeed is not modelled"
    if optimizer and optimizer.value not in optimizer_names("deepspeed"):
        yield f"{key}: the optimizer {optimizer.value} under DeepSpeed is not modelled"


def _degrees(tool: FrontEnd, settings: Settings) -> dict[str, Located]:
    """Degrees by their keys; of several keys of one degree the larger holds."""
    found: dict[str, Located] = {}
    for name, names in tool.degrees.items():
        sizes = {key: whole(settings, key, 1) for key in names}
        key = max(names, key=sizes.__getitem__)
        if sizes[key] > 1:
            found[name] = decided(settings, key, sizes[key])
    shard, replicas = found.pop("dp_shard", None), found.get("dp_replicate")
    if shard:
        number = shard.value * replicas.value if replicas else shard.value
        found["dp"] = replace(shard, value=number)
    return found


def _longest(tool: FrontEnd, settings: Settings) -> Located | None:
    """Tokens that a sequence has at most, by the file or by the program's default."""
    own, usual = tool.length["key"], tool.length["usual"]
    names = (own, *tool.lengths)
    for key in names:
        size = whole(settings, key, 0)
        if size > 0:
            return replace(settings[key], value=size)
    is_stated = settings.keys() & {*names}
    return Located(value=usual, key=own) if usual and not is_stated else None


def _batching(tool: FrontEnd, settings: Settings) -> Located | None:
    """Return how a batch combines documents; None if it is no kind that is priced."""
    for entry in tool.batching:
        key, kind, beside = entry["key"], entry["kind"], entry.get("beside")
        is_on = beside is None or is_one_of(given(settings, beside), [True])
        if is_on and is_one_of(given(settings, key), entry["values"]):
            return decided(settings, key, kind) if kind else None
    return Located(value="padded", key=tool.batching[0]["key"])


def write_into(source: SourceText, context: Context, strategy: Strategy, tool: FrontEnd) -> str:
    """The file with the strategy's decisions; ExpressError where no key of it carries them."""
    if not (is_json(source) or source.path.lower().endswith(FILES)):
        message = "a command's options are for you to change; its YAML or JSON would be edited"
        raise ExpressError(f"{source.path}: {message}")
    before = read(source, tool)
    section = section_of(before.settings)
    lines = lines_of(section.table, context, strategy)
    words = {**tool.arguments, **tool.inverse}
    own = {full: name for name, full in words.items()}
    found: dict[tuple[str, ...], Any] = {}
    # What a repair may change; what shards is left as it is.
    carried = {
        keys.BATCH,
        keys.STEPS,
        keys.CHECKPOINTING,
        keys.BLOCKS,
        keys.RESHARD,
        keys.OFFLOAD,
    }
    wanted = changes(section.table, before.settings, lines)
    for key in [each for each in wanted if each in carried]:
        stated, value = before.settings.get(key), wanted[key]
        name = stated.key if stated and stated.line else own.get(key, key)
        if key in tool.inverse.values() and value is not REMOVED:
            value = not value
        found[tuple(name.split("."))] = value
    editor = JsonEditor if is_json(source) else YamlEditor
    text = editor(source.path, source.text).changed(found)
    after = read(SourceText(path=source.path, text=text), tool)
    refuse(source.path, [*_unsaid(after, strategy)])
    return text


def _unsaid(reading: ParsedConfig, strategy: Strategy) -> Iterator[str]:
    """Yield what the file, read again, does not state of a strategy."""
    yield from uneven_layers(strategy)
    stated = {name: value.value for name, value in reading.decisions.items()}
    for name in SEARCHED_FIELDS:
        wanted = getattr(strategy, name)
        # No key needs to say what follows from the others.
        usual = wanted if name in ("dp", "etp", "placement") else FIELD_DEFAULTS[name]
        if stated.get(name, usual) != wanted:
            yield f"{name} {wanted}: no key of this file carries it, or another file does"
    number, nowhere = strategy.num_micro_batches, "no key of this file carries it"
    if stated.get("num_micro_batches", number) != number:
        yield f"num_micro_batches {number}: {nowhere}"
    is_recomputed = "recompute_layers_per_stage" in stated
    if is_recomputed != (strategy.recompute == "full"):
        yield f"recomputation {strategy.recompute}: {nowhere}"

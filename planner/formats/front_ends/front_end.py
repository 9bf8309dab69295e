"""A front end as a format: read, checked and repaired as TrainingArguments are, not written."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from planner.cost.context import Context
from planner.documents.edit import JsonEditor, YamlEditor
from planner.documents.file import REMOVED
from planner.errors import ExpressError, InputError
from planner.formats.adapters import LIGER, SUFFIX
from planner.formats.decision import changes, decided_in, lines_of, refuse, uneven_layers, which
from planner.formats.format import Format, Located, ParsedConfig, SourceText, listed
from planner.formats.front_ends.content import FILES, content_of, is_script
from planner.formats.front_ends.rules import RULES
from planner.formats.front_ends.tools import FrontEnd, is_of, load_tool
from planner.formats.front_ends.words import translated
from planner.formats.settings import Settings, as_flag, as_whole, decided, given, whole
from planner.formats.trainer import keys
from planner.formats.trainer.format import is_json, names_in
from planner.formats.trainer.mapping import DEEPSPEED, REPLICATED, SUPPORT, engine, part, section_of
from planner.formats.trainer.rules import rule as of_trainer
from planner.frameworks.optimizers import optimizer_names
from planner.spec.strategy import FIELD_DEFAULTS, SEARCHED_FIELDS, Strategy
from planner.spec.training import MAX_RANK, MODES, TARGETS, Mode, Target, Training, read_targets

# Of the name of a model whose weights are quantised already.
_QUANTISED = re.compile(r"(?i)\b(gptq|awq|aqlm|int4|int8|[48]bit|bnb|mxfp4|hqq|eetq)\b|-fp8")


def is_one_of(value: object, wanted: Sequence[Any]) -> bool:
    """Return True if a value, or one of a list, is of a table; flags by any word for them."""
    if isinstance(value, list):
        return any(is_one_of(each, wanted) for each in value)
    flags = [each for each in wanted if isinstance(each, bool)]
    return value in wanted or (as_flag(value) in flags and as_flag(value) is not None)


def _any_of(settings: Settings, table: Mapping[str, Sequence[Any]]) -> bool:
    return any(is_one_of(given(settings, key), values) for key, values in table.items())


def _unpriced(tool: FrontEnd, settings: Settings) -> Iterator[str]:
    """Why plans say nothing of the memory and time of what a file starts."""
    modes = tool.training["modes"]
    for entry in tool.unpriced:
        value = given(settings, entry["key"])
        if _is_unpriced(entry, value):
            yield f"{settings[entry['key']].key} {str(value)[:60]}: {entry['why']}"
    for key in tool.training["beyond"]:
        if given(settings, key) and as_flag(given(settings, key)) is not False:
            yield f"{settings[key].key}: more than adapters of one rank is trained"
    mode = _stated_mode(tool, settings)
    if mode is not None and not modes.get(str(mode.value)):
        allowed = ", ".join(name for name, known in modes.items() if known)
        yield f"{mode.key} {mode.value}: plans price {allowed}"
    for key in tool.model:
        name = given(settings, key)
        if isinstance(name, str) and _QUANTISED.search(name):
            yield f"{settings[key].key} {name[-60:]}: its weights are quantised already"


def _is_unpriced(entry: Mapping[str, Any], value: object) -> bool:
    """Return True if a value is in ``values``, not in ``other_than``, or, without them, given."""
    is_given = value not in (None, "") and as_flag(value) is not False
    if "values" in entry:
        return value not in (None, "") and is_one_of(value, entry["values"])
    if "other_than" in entry:
        return is_given and not is_one_of(value, entry["other_than"])
    return is_given and value not in ([], {})


def _stated_mode(tool: FrontEnd, settings: Settings) -> Located | None:
    names = (tool.training["key"], *tool.training.get("keys", ()))
    return next((settings[name] for name in names if given(settings, name) not in (None, "")), None)


def training_of(tool: FrontEnd, settings: Settings) -> tuple[Training, tuple[str, ...]]:
    """Return what is trained, and what of it is not stated, in words."""
    stated, table, said = _stated_mode(tool, settings), tool.training, list[str]()
    word = table["usual"] if stated is None else table["modes"].get(str(stated.value))
    if word in (None, "full"):
        return Training(), ()
    mode: Mode = "qlora" if _any_of(settings, table["in_4_bits"]) else word
    rank = as_whole(given(settings, table["rank"]["key"]))
    if rank is None or not 1 <= rank <= MAX_RANK:
        rank = int(table["rank"]["usual"])
        said.append(f"adapters of rank {rank}")
    targets = _targets(tool, settings)
    if not targets:
        usual = table["targets"].get("usual")
        targets = tuple(usual) if usual else TARGETS
        said.append("adapters on " + (", ".join(usual) if usual else "all linear layers"))
    return Training(mode=mode, rank=rank, targets=targets), tuple(said)


def _targets(tool: FrontEnd, settings: Settings) -> tuple[Target, ...]:
    """The projections that a file names, empty where it names none that plans know."""
    table = tool.training["targets"]
    for value in (given(settings, key) for key in table["keys"]):
        names = value.split(",") if isinstance(value, str) else value
        names = names if isinstance(names, list) else []
        if is_one_of([value, *names], table["all"]):
            return TARGETS
        short = [str(name).strip().rpartition(".")[2].removesuffix(SUFFIX) for name in names]
        known = [name for name in short if name in TARGETS]
        if known:
            return read_targets(",".join(known))
    return ()


def holds_16_bits(tool: FrontEnd, settings: Settings) -> bool:
    """Return True if the weights that are trained are in 16 bits."""
    stated = {key: values for key, values in tool.in_16_bits.items() if key != "usual"}
    return bool(tool.in_16_bits.get("usual", False)) != _any_of(settings, stated)


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
    is_likely = any(all(key in source.text for key in group) for group in tool.tells)
    return is_likely and is_of(tool, names_in(source))


def read(source: SourceText, tool: FrontEnd) -> ParsedConfig:
    """Understand a file; InputError where it holds no keys."""
    content = content_of(source, tool)
    made = translated(source.path, content, tool)
    if content.open_keys:
        first, *_ = content.open_keys.values()
        # The first ones, as commands of scripts have many.
        names = listed([each.key for each in content.open_keys.values()][:6])
        message = f"{names}: made by the shell from what the file does not say; not known"
        made.report("unresolved", first, message, "note")
    settings, section = made.settings, section_of(made.settings)
    found = decided_in(section.table, settings) | made.launched | dict(_degrees(tool, settings))
    if content.num_gpus is not None:
        found["num_gpus"] = content.num_gpus
    training, said = training_of(tool, settings)
    why = next(_unpriced(tool, settings), "")
    why = why or _beyond_plans(tool, settings, training, found)
    if why:
        training, said = Training(), ()
        found.pop("optimizer", None)
    if section is REPLICATED and not training.is_frozen and holds_16_bits(tool, settings):
        # Weights, gradients and states in 16 bits, where nothing shards them.
        found["profile"] = decided(settings, "bf16", "pure-bf16")
    longest = _longest(tool, settings)
    if longest is not None and _any_of(settings, tool.packing):
        found["seq_len"], longest = longest, None
    is_bare = section is REPLICATED and not content.is_command and not made.launched
    return ParsedConfig(
        format=tool.name,
        path=source.path,
        settings=settings,
        decisions=found,
        findings=tuple(sorted(made.findings, key=lambda each: each.line)),
        assumes=("zero_stage",) * is_bare + ("optimizer",) * ("optimizer" not in found and not why),
        unpriced=why,
        named=tuple(made.named),
        training=training,
        traits=LIGER if _any_of(settings, tool.liger) else (),
        longest=longest,
        batching=_batching(tool, settings),
        supposes=said,
        named_model=next((settings[key] for key in tool.model if given(settings, key)), None),
    )


def _beyond_plans(
    tool: FrontEnd, settings: Settings, training: Training, found: Mapping[str, Located]
) -> str:
    """Return what Trainer runs and plans do not price."""
    nothing = Located(key="")
    section, optimizer = section_of(settings), found.get("optimizer", nothing).value
    split = next((found[name] for name in ("cp", "tp") if name in found), nothing)
    is_wide = training.mode == "lora" and tool.frozen_in_16_bits_only
    # DeepSpeed carries the file: the key that turns it on is named.
    key = settings[keys.DEEPSPEED].key if section is DEEPSPEED else ""
    reasons = which(
        {
            "dtype float32: frozen weights in 32 bits are not modelled": (
                is_wide and not holds_16_bits(tool, settings)
            ),
            f"{split.key} {split.value}: splitting what whole replicas hold is not modelled": (
                section is REPLICATED and split is not nothing
            ),
            f"{key}: {training.mode} under DeepSpeed is not modelled": (key and training.is_frozen),
            f"{key}: the optimizer {optimizer} under DeepSpeed is not modelled": (
                key and optimizer not in (None, *optimizer_names("deepspeed"))
            ),
        }
    )
    return next(reasons, "")


def _degrees(tool: FrontEnd, settings: Settings) -> Iterator[tuple[str, Located]]:
    """Degrees by their keys; of several keys of one degree the larger holds."""
    sizes = {
        name: max(
            (decided(settings, key, whole(settings, key, 1)) for key in names),
            key=lambda each: int(each.value),
        )
        for name, names in tool.degrees.items()
    }
    shard = sizes.pop("dp_shard", None)
    yield from ((name, size) for name, size in sizes.items() if size.value > 1)
    if shard and shard.value > 1:
        replicas = max(1, sizes["dp_replicate"].value)
        yield "dp", replace(shard, value=shard.value * replicas)


def _longest(tool: FrontEnd, settings: Settings) -> Located | None:
    """Tokens that a sequence has at most, by the file or by the program's default."""
    names = (tool.length["key"], *tool.lengths)
    sizes = {key: as_whole(given(settings, key)) or 0 for key in names}
    stated = (replace(settings[key], value=size) for key, size in sizes.items() if size > 0)
    has_usual = tool.length["usual"] and not settings.keys() & {*names}
    usual = Located(value=tool.length["usual"], key=tool.length["key"]) if has_usual else None
    return next(stated, usual)


def _batching(tool: FrontEnd, settings: Settings) -> Located | None:
    """Return how a batch combines documents; None if it is no kind that is priced."""
    for entry in tool.batching:
        beside = entry.get("beside")
        holds = is_one_of(given(settings, entry["key"]), entry["values"])
        if holds and (beside is None or is_one_of(given(settings, beside), [True])):
            kind = entry["kind"]
            return decided(settings, entry["key"], kind) if kind else None
    return Located(value="padded", key=tool.batching[0]["key"])


def write_into(source: SourceText, context: Context, strategy: Strategy, tool: FrontEnd) -> str:
    """The file with the strategy's decisions; ExpressError where no key of it carries them."""
    if not (is_json(source) or source.path.lower().endswith(FILES)):
        message = "a command's options are for you to change; its YAML or JSON would be edited"
        raise ExpressError(f"{source.path}: {message}")
    before = read(source, tool)
    section = section_of(before.settings)
    lines = lines_of(section.table, context, strategy)
    own = {full: name for name, full in (*tool.arguments.items(), *tool.inverse.items())}
    found: dict[tuple[str, ...], Any] = {}
    # What a repair may change; what shards is left as it is.
    carried = {keys.BATCH, keys.STEPS, keys.CHECKPOINTING, keys.BLOCKS, keys.RESHARD, keys.OFFLOAD}
    for key, value in changes(section.table, before.settings, lines).items():
        stated = before.settings.get(key)
        name = stated.key if stated and stated.line else own.get(key, key)
        is_inverse = key in tool.inverse.values() and value is not REMOVED
        if key in carried:
            found[tuple(name.split("."))] = (not value) if is_inverse else value
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
    number = strategy.num_micro_batches
    is_recomputed = "recompute_layers_per_stage" in stated
    yield from which(
        {
            f"num_micro_batches {number}: no key of this file carries it": (
                stated.get("num_micro_batches", number) != number
            ),
            f"recomputation {strategy.recompute}: no key of this file carries it": (
                is_recomputed != (strategy.recompute == "full")
            ),
        }
    )

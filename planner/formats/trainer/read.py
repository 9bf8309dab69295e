"""Reading of TrainingArguments, by their own words or by those of a program: what is decided."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from planner.formats.adapters import LIGER
from planner.formats.decision import decided_in
from planner.formats.format import Located, ParsedConfig, SourceText, listed
from planner.formats.settings import Settings, decided, given, is_on, which, whole, word
from planner.formats.trainer import keys
from planner.formats.trainer.content import Content, content_of
from planner.formats.trainer.keys import FrontEnd, is_one_of
from planner.formats.trainer.mapping import DEEPSPEED, MESH, REPLICATED, section_of
from planner.formats.trainer.words import translated
from planner.frameworks.registry import optimizer_names
from planner.spec.training import (
    MAX_RANK,
    MODULES,
    TARGET_GROUPS,
    TARGETS,
    WHOLE,
    Mode,
    Target,
    Training,
    in_order,
    targets_named,
)


def _any_of(settings: Settings, table: Mapping[str, Sequence[Any]]) -> bool:
    return any(is_one_of(given(settings, key), table[key]) for key in table)


def _unpriced(tool: FrontEnd, settings: Settings) -> Iterator[str]:
    """Why plans say nothing of the memory and time of what a file starts."""
    for entry in tool.unpriced:
        value = given(settings, entry["key"])
        is_other = is_on(value) and not is_one_of(value, entry.get("other_than", ()))
        if is_one_of(value, entry["values"]) if "values" in entry else is_other:
            yield f"{settings[entry['key']].key} {str(value)[:60]}: {entry['why']}"
    if tool.is_own:
        return
    for key in tool.training["beyond"]:
        if is_on(given(settings, key)):
            yield f"{settings[key].key}: more than adapters of one rank is trained"
    yield from _unknown_modules(tool, settings)
    mode, modes = _stated_mode(tool, settings), tool.training["modes"]
    if mode and not modes.get(str(mode.value)):
        allowed = ", ".join(name for name, known in modes.items() if known)
        yield f"{mode.key} {mode.value}: plans price {allowed}"
    quantised = r"(?i)\b(gptq|awq|aqlm|int4|int8|[48]bit|bnb|mxfp4|hqq|eetq)\b|-fp8"
    for key in tool.model:
        name = word(settings, key)
        if re.search(quantised, name):
            yield f"{settings[key].key} {name[-60:]}: its weights are quantised already"


def _unknown_modules(tool: FrontEnd, settings: Settings) -> Iterator[str]:
    """Modules that are named and that plans cannot train."""
    table = tool.training["targets"]
    # Where layers have adapters, those of the ends are left out.
    ends = WHOLE if _targets(tool, settings) else ()
    places = {
        **dict.fromkeys(table["keys"], (*MODULES, *ends)),
        table.get("parameters", ""): TARGET_GROUPS["experts"],
        tool.training["whole"]: WHOLE,
    }
    for key, known in places.items():
        for name in _names(settings, key):
            if not {*known} & {*targets_named(name)} and not is_one_of(name, table["all"]):
                yield f"{settings[key].key} {name[:60]}: no projection of a layer that plans know"


def _stated_mode(tool: FrontEnd, settings: Settings) -> Located | None:
    names = (tool.training["key"], *tool.training.get("keys", ()))
    return next((settings[name] for name in names if word(settings, name)), None)


def training_of(tool: FrontEnd, settings: Settings) -> tuple[Training | None, tuple[str, ...]]:
    """Return what is trained, None where another file says it; what is not stated, in words."""
    if tool.is_own:
        return None, ()
    stated, table = _stated_mode(tool, settings), tool.training
    mode: Mode | None = table["modes"].get(str(stated.value)) if stated else table["usual"]
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
    said += [
        f"adapters of {name[:60]} left out"
        for key in table["targets"]["keys"]
        for name in _names(settings, key)
        if {*WHOLE} & {*targets_named(name)}
    ]
    whole_ones = {*chain(*map(targets_named, _names(settings, table["whole"])))}
    ends = [end for end in WHOLE if end in whole_ones]
    return Training(mode=mode, rank=rank, targets=(*targets, *ends)), tuple(said)


def _names(settings: Settings, key: str) -> list[str]:
    """Names of modules under a key, one by one."""
    value = given(settings, key)
    names = value.split(",") if isinstance(value, str) else value
    return [str(name).strip() for name in names] if isinstance(names, list) else []


def _targets(tool: FrontEnd, settings: Settings) -> tuple[Target, ...]:
    """The projections that a file names, empty where it names none that plans know."""
    table, known = tool.training["targets"], set[Target]()
    for key in (*table["keys"], table.get("parameters", "")):
        names = _names(settings, key)
        if is_one_of([given(settings, key), *names], table["all"]):
            known.update(TARGETS)
        for name in names:
            known.update(targets_named(name))
    return in_order(known.difference(WHOLE))


def holds_16_bits(tool: FrontEnd, settings: Settings) -> bool:
    """Return True if the weights that are trained are in 16 bits."""
    stated = dict(tool.in_16_bits)
    return bool(stated.pop("usual", False)) != _any_of(settings, stated)


def read(source: SourceText, tool: FrontEnd) -> ParsedConfig:
    """Understand a file; InputError where it holds no keys."""
    return read_content(source, content_of(source, tool), tool)


def read_content(source: SourceText, content: Content, tool: FrontEnd) -> ParsedConfig:
    """Understand the content of a file."""
    made = translated(source, content, tool)
    # The first ones, as commands of scripts have many.
    if places := [*content.open_keys.values()][:6]:
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
    beyond = _beyond_plans(tool, settings, training, found) if training else ()
    why = next(chain(_unpriced(tool, settings), beyond), "")
    if why and training:
        training, said = Training(), ()
        found.pop("optimizer", None)
    is_whole = section is REPLICATED and training is not None and not training.is_frozen
    if is_whole and holds_16_bits(tool, settings):
        # Weights, gradients and states in 16 bits, where nothing shards them.
        found["profile"] = decided(settings, "bf16", "pure-bf16")
    longest = _longest(tool, settings)
    if longest is not None and _any_of(settings, tool.packing):
        found["seq_len"], longest = longest, None
    # With arguments of the script's own: it may recompute by itself.
    has_own = tool.is_own and bool(content.names - keys.known().keys())
    is_replicated = section is REPLICATED and not content.is_command and not made.launched
    assumes = {
        "zero_stage": is_replicated,
        "recompute": has_own and "recompute_layers_per_stage" not in found,
        "optimizer": not (has_own or why or "optimizer" in found),
    }
    models = [settings[key] for key in tool.model if given(settings, key)]
    traits = [*LIGER] if _any_of(settings, tool.liger) else []
    if training and training.is_frozen:
        traits += tool.training.get("traits", {}).items()
    return ParsedConfig(
        format=tool.name,
        path=source.path,
        settings=settings,
        decisions=found,
        findings=tuple(sorted(made.findings, key=lambda each: each.line)),
        assumes=tuple(which(assumes)),
        unpriced=why,
        named=tuple(made.named),
        training=training,
        traits=tuple(traits),
        longest=longest,
        batching=_batching(tool, settings),
        supposes=said,
        named_model=models[0] if models else None,
    )


def _beyond_plans(
    tool: FrontEnd, settings: Settings, training: Training, found: Settings
) -> Iterator[str]:
    """Yield what Trainer runs and plans do not price."""
    section, optimizer = section_of(settings), found.get("optimizer")
    is_wide = training.mode == "lora" and tool.frozen_in_16_bits_only
    if is_wide and not holds_16_bits(tool, settings):
        yield "dtype float32: frozen weights in 32 bits are not modelled"
    for split in (found[name] for name in ("cp", "tp") if name in found):
        if section is REPLICATED:
            yield f"{split.key} {split.value}: splitting what whole replicas hold is not modelled"
    if section is DEEPSPEED and optimizer and optimizer.value not in optimizer_names("deepspeed"):
        # DeepSpeed carries the file: the key that turns it on is named.
        key = settings[keys.DEEPSPEED].key
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
        found["dp"] = replace(shard, value=shard.value * (replicas.value if replicas else 1))
    return found


def _longest(tool: FrontEnd, settings: Settings) -> Located | None:
    """Tokens that a sequence has at most, by the file or by the program's default."""
    own, usual = tool.length["key"], tool.length["usual"]
    names = (own, *tool.lengths)
    for key in names:
        if (size := whole(settings, key, 0)) > 0:
            return replace(settings[key], value=size)
    return Located(value=usual, key=own) if usual and not settings.keys() & {*names} else None


def _batching(tool: FrontEnd, settings: Settings) -> Located | None:
    """Return how a batch combines documents; None if it is no kind that is priced."""
    for entry in tool.batching:
        key, kind, beside = entry["key"], entry["kind"], entry.get("beside")
        is_on = beside is None or is_one_of(given(settings, beside), [True])
        if is_on and is_one_of(given(settings, key), entry["values"]):
            return decided(settings, key, kind) if kind else None
    if tool.is_own:
        return None  # the script's collator decides
    return Located(value="padded", key=tool.batching[0]["key"])


def launched(reading: ParsedConfig, environment: Settings) -> ParsedConfig:
    """Return the reading with the mesh that ParallelismConfig reads from the environment."""
    prefix = "PARALLELISM_CONFIG_"
    sizes = {
        variable.removeprefix(prefix).lower(): replace(each, value=int(each.value))
        for variable, each in environment.items()
        if variable.startswith(prefix) and re.fullmatch(r"\d{1,8}", str(each.value))
    }
    mesh = {f"{keys.MESH}.{name}": size for name, size in sizes.items()}
    found = decided_in((MESH,), mesh) if mesh else {}
    return replace(reading, decisions={**reading.decisions, **found})

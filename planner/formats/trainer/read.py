"""Reads TrainingArguments in JSON: every key with its line, and what they decide."""

from collections.abc import Iterator, Mapping

from planner.documents.json_text import Node, duplicates, parse_json, walk
from planner.errors import InputError
from planner.formats.accelerate import deepspeed
from planner.formats.accelerate.keys import wrong_kind
from planner.formats.accelerate.section import Section
from planner.formats.finding import Finding, Severity, listed
from planner.formats.format import ALL, Reading, SourceText, Value
from planner.formats.settings import Settings, as_flag, decided, flag, whole, word
from planner.formats.trainer import sections
from planner.formats.trainer.keys import known_keys, old_keys
from planner.spelling import alike, did_you_mean

NAME = "trainer"
BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
OLD_CHECKPOINTING = "gradient_checkpointing"
MESH = sections.MESH
_DEFAULT_BATCH = 8
_MISSPELT = 0.87
"""How alike a key is to the one that was meant. Others may be of the dataclasses that a script
reads from the same file, as HfArgumentParser does."""


def recognise(source: SourceText) -> bool:
    """A JSON object with a batch size per device, or with several of the arguments."""
    if not source.text.lstrip().startswith("{"):
        return False
    try:
        root = parse_json(source.text, source.path)
    except InputError:
        return False
    names = {member.key for member in root.members or ()}
    return BATCH in names or ("output_dir" in names and len(names & {*known_keys().top}) > 1)


def read(source: SourceText) -> Reading:
    """Read a file; InputError where it is no JSON object."""
    root = parse_json(source.text, source.path)
    if root.members is None:
        raise InputError.single(source.path, "line 1", "an object in braces is needed")
    settings: dict[str, Value] = {}
    for path, member in walk(root):
        names = list(path)
        if len(path) == 2 and path[0] == "fsdp_config":
            names[1] = names[1].removeprefix("fsdp_")
        value, key = member.node.value, ".".join(path)
        settings[".".join(names)] = Value(value=value, key=key, line=member.line)
    findings = [*_texts(source, root), *_wrong(source.path, settings)]
    return Reading(
        format=NAME,
        path=source.path,
        settings=settings,
        decisions=decisions(settings),
        findings=tuple(sorted(findings, key=lambda each: each.line)),
    )


def _finding(
    rule: str, message: str, path: str, value: Value, severity: Severity = "error"
) -> Finding:
    return Finding(
        rule=f"{NAME}.{rule}",
        severity=severity,
        message=message,
        path=path,
        key=value.key,
        line=value.line,
    )


def _texts(source: SourceText, root: Node) -> Iterator[Finding]:
    """Duplicate keys, and what is no plain JSON, which is all HfArgumentParser reads."""
    for each in duplicates(root):
        place = Value(value=None, key=".".join(each.path), line=each.line)
        message = f"given twice, first in line {each.first_line}; the last one counts"
        yield _finding("duplicate_key", message, source.path, place)
    try:
        parse_json(source.text, source.path, is_plain=True)
    except InputError as error:
        (problem,) = error.problems
        place = Value(value=None, key="", line=int(problem.key.removeprefix("line ")))
        reason = problem.message.removeprefix("not JSON: ")
        message = f"no plain JSON, which parse_json_file reads: {reason}; no comments allowed"
        yield _finding("bad_value", message, source.path, place)


def _wrong(path: str, settings: Mapping[str, Value]) -> Iterator[Finding]:
    known = known_keys()
    nested = {"fsdp_config": known.fsdp_config, MESH: known.parallelism_config}
    foreign: dict[str, Value] = {}
    for full, value in settings.items():
        section, _, name = full.partition(".")
        if section not in known.top:
            reason = _mistaken(section)
            if reason is None or name:
                foreign.setdefault(section, value)
            else:
                yield _finding("unknown_key", reason, path, value)
        elif name and section in nested and name not in nested[section]:
            hint = did_you_mean(name, nested[section]) or f"{len(nested[section])} keys are known"
            yield _finding("unknown_key", f"unknown key of {section}; {hint}", path, value)
        elif not name and (allowed := _wrong_kind(known.top[section], section, value.value)):
            message = f"given {repr(value.value)[:60]}; allowed is {allowed}"
            yield _finding("bad_value", message, path, value)
    if foreign:
        yield _finding(
            "unknown_key", _foreign(foreign), path, next(iter(foreign.values())), "warning"
        )


def _mistaken(key: str) -> str | None:
    """What is wrong with a key that was meant for TrainingArguments; None where it was not."""
    if key in old_keys():
        instead = old_keys()[key]
        return (
            f"transformers removed it; {f'{instead} in its place' if instead else 'leave it out'}"
        )
    known = tuple(known_keys().top)
    if not alike(key, known, _MISSPELT):
        return None
    return f"unknown key of TrainingArguments; {did_you_mean(key, known)}"


def _foreign(keys: Mapping[str, Value]) -> str:
    """One message for all of them: a script's own arguments are many."""
    names, what = listed(list(keys)), "no key" if len(keys) == 1 else "no keys"
    return f"{names}: {what} of TrainingArguments; sound where the script's own have them"


def _wrong_kind(kind: str, key: str, value: object) -> str | None:
    if kind == "flag" and not isinstance(value, bool | None):
        return "true or false, without quotes"
    if kind in ("whole", "number") and isinstance(value, str):
        return "a number, without quotes"
    if key == "fsdp":
        return None if isinstance(value, bool | str | list | None) else "true or false"
    return wrong_kind("any" if key in ("debug", "report_to") else kind, value)


def is_on(settings: Settings, key: str) -> bool:
    """A key with a value that Python takes for true."""
    return key in settings and bool(settings[key].value)


def section_of(settings: Settings) -> Section:
    """What shards: DeepSpeed where both are given."""
    if is_on(settings, "deepspeed"):
        return sections.DEEPSPEED
    return sections.FSDP if is_on(settings, "fsdp") else sections.REPLICATED


def part(settings: Settings) -> str | None:
    """Title of what shards; None where nothing does."""
    section = section_of(settings)
    if section is sections.FSDP and whole(settings, sections.FSDP_KEYS[0], 2) == 1:
        return "FSDP1"
    return None if section is sections.REPLICATED else section.title


def engine(settings: Settings) -> str | None:
    """The framework that trains, where it is not PyTorch's own."""
    return "deepspeed" if section_of(settings) is sections.DEEPSPEED else None


def options(settings: Settings) -> list[str]:
    """Words of the old form of ``fsdp``: ``full_shard auto_wrap offload``."""
    value = settings["fsdp"].value if "fsdp" in settings else None
    if isinstance(value, str):
        return [] if value.lower() in ("true", "false") else value.lower().split()
    return [str(each).lower() for each in value] if isinstance(value, list) else []


def decisions(settings: Settings) -> dict[str, Value]:
    """What the file decides, by the names of DECISIONS."""
    found = {"micro_batch": decided(settings, BATCH, whole(settings, BATCH, _DEFAULT_BATCH))}
    if STEPS in settings:
        found["num_micro_batches"] = decided(settings, STEPS, whole(settings, STEPS, 1))
    for precision in ("bf16", "fp16"):
        if flag(settings, precision, default=False):
            found["precision"] = decided(settings, precision, precision)
    if optimizer := _optimizer(settings):
        found["optimizer"] = decided(settings, "optim", optimizer)
    for key in (sections.CHECKPOINTING, OLD_CHECKPOINTING):
        if flag(settings, key, default=False):
            found["recompute_layers_per_stage"] = decided(settings, key, ALL)
    section = section_of(settings)
    if section is sections.FSDP:
        found |= _fsdp(settings)
    elif section is sections.DEEPSPEED:
        found |= _deepspeed(settings)
    else:
        found["zero_stage"] = decided(settings, "fsdp", 0)
    return found | _mesh(settings)


def _optimizer(settings: Settings) -> str | None:
    named = word(settings, "optim", "adamw_torch_fused")
    momentum = "momentum" in word(settings, "optim_args", "")
    if named == "sgd":
        return "sgd-momentum" if momentum else "sgd"
    known = {optim: name for name, (optim, _) in sections.OPTIMIZERS.items()} | sections.ALIASES
    return known.get(named)


def _fsdp(settings: Settings) -> dict[str, Value]:
    reshard, checkpoints = sections.FSDP_KEYS[1], sections.FSDP_KEYS[3]
    keeps = "shard_grad_op" in options(settings)
    given = settings[reshard].value if reshard in settings else None
    reshards = as_flag(given) if given is not None else not keeps
    found = {"zero_stage": decided(settings, reshard, 2 if reshards is False else 3)}
    offload = sections.FSDP_KEYS[2]
    if flag(settings, offload, default="offload" in options(settings)):
        found["offload"] = decided(settings, offload, "optimizer+parameters:host")
    if flag(settings, checkpoints, default=False):
        found["recompute_layers_per_stage"] = decided(settings, checkpoints, ALL)
    if flag(settings, sections.SYNC_EACH_BATCH, default=False):
        found["profile"] = decided(settings, sections.SYNC_EACH_BATCH, "sync-each-batch")
    return found


def _deepspeed(settings: Settings) -> dict[str, Value]:
    """Of a mapping; a file named here is read by itself."""
    if not isinstance(settings["deepspeed"].value, dict):
        return {"zero_stage": decided(settings, "deepspeed", None)}
    found = {"zero_stage": decided(settings, sections.STAGE, whole(settings, sections.STAGE, 0))}
    devices = tuple(
        word(settings, key, "none").lower() for key in (sections.OPTIMIZER, sections.PARAM)
    )
    code = next((code for code, known in deepspeed.DEVICES.items() if known == devices), None)
    if code not in (None, "none"):
        found["offload"] = decided(settings, sections.OPTIMIZER, code)
    tp = "deepspeed.tensor_parallel.autotp_size"
    if (size := whole(settings, tp, 0)) > 1:
        found["tp"] = decided(settings, tp, size)
    return found


def _mesh(settings: Settings) -> dict[str, Value]:
    if MESH not in settings or not isinstance(settings[MESH].value, dict):
        return {}
    sizes = {
        name: whole(settings, f"{MESH}.{name}_size", 1)
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    found = {"tp": sizes["tp"], "dp_replicate": sizes["dp_replicate"], "cp": sizes["cp"]}
    found["cp"] = max(sizes["cp"], sizes["sp"])
    made = {name: decided(settings, f"{MESH}.{name}_size", size) for name, size in found.items()}
    made["dp"] = decided(
        settings, f"{MESH}.dp_shard_size", sizes["dp_replicate"] * sizes["dp_shard"]
    )
    return made

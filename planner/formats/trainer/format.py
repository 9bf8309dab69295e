"""The format ``trainer``: TrainingArguments in JSON or YAML are read, written anew, and edited."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.cost.context import Context
from planner.documents.edit import JsonEditor, written
from planner.documents.nodes import parse_json
from planner.documents.schema import Path, wrongs
from planner.documents.tree import Tree, keys_at_top, parsed_json, parsed_object, parsed_yaml
from planner.errors import InputError
from planner.formats.accelerate.rows import others, section_for
from planner.formats.adapters import LIGER, adapter_files, adapter_lines
from planner.formats.decision import changes, decided_in, explained, lines_of, refuse, told
from planner.formats.format import (
    Emitted,
    Finding,
    Format,
    Located,
    OutputFile,
    ParsedConfig,
    SourceText,
    UserKey,
    listed,
)
from planner.formats.front_ends.tools import is_of, load_tool, tool_names
from planner.formats.settings import Settings, finding_at, flag, given, path_of, repeated_keys
from planner.formats.trainer import keys
from planner.formats.trainer.mapping import (
    DEEPSPEED,
    GROUPED,
    MESH,
    REPLICATED,
    SECTIONS,
    SUPPORT,
    engine,
    mesh_variables,
    part,
    problems,
    section_of,
)
from planner.formats.trainer.rules import rule
from planner.spec.strategy import Strategy
from planner.spec.training import MODES
from planner.spelling import alike, did_you_mean

FILE = "training_arguments.json"
VARIABLE = "PARALLELISM_CONFIG_"


def is_json(source: SourceText) -> bool:
    """Return True if a text is a JSON object."""
    return source.text.lstrip().startswith("{")


def names_in(source: SourceText) -> set[str]:
    """Keys at the top of JSON or YAML; none where it cannot be read."""
    return keys_at_top(source.path, source.text, parsed_json if is_json(source) else parsed_yaml)


def places_in(source: SourceText) -> tuple[Tree, dict[Path, Located]]:
    """A file of JSON or YAML, and its values by path; InputError where it is no mapping of keys."""
    if is_json(source):
        tree = parsed_object(source.path, source.text)
    else:
        tree = parsed_yaml(source.path, source.text)
        if not isinstance(tree.value, dict):
            raise InputError.single(source.path, "line 1", "keys with values are needed")
    places: dict[Path, Located] = {}
    for path, entry in tree.members.items():
        value = entry.value if is_json(source) else as_number(entry.value)
        places[path] = Located(value=value, key=".".join(path), line=entry.line)
    return tree, places


def as_number(value: object) -> object:
    """The value; as a number what YAML 1.1 takes for text, ``1e-4``, as HfArgumentParser does."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}e[+-]?\d{1,3}", value):
        return float(value)
    return value


def recognise(source: SourceText) -> bool:
    """JSON or YAML with a batch size per device, or JSON with several of the arguments."""
    likely = rf"""(?m)^['"]?{keys.BATCH}['"]?\s*:"""
    if not (is_json(source) or re.search(likely, source.text)):
        return False
    names = names_in(source)
    has_several = is_json(source) and len(names & keys.known().keys()) > 1
    is_own = keys.BATCH in names or ("output_dir" in names and has_several)
    tools = map(load_tool, tool_names())
    return is_own and not any(is_of(tool, names) for tool in tools)


def read(source: SourceText) -> ParsedConfig:
    """Read a file; InputError where it is no object of JSON, or mapping of YAML."""
    tree, places = places_in(source)
    settings = {_in_full(path): place for path, place in places.items()}
    says = "given twice, first in line {first}; the last one counts"
    findings = [*repeated_keys("trainer.duplicate_key", source.path, tree.duplicates, says)]
    try:
        # Plain JSON is all that HfArgumentParser reads.
        if is_json(source):
            parse_json(source.path, source.text, is_plain=True)
    except InputError as error:
        (problem,) = error.problems
        line = int(problem.key.removeprefix("line "))
        place = Located(key="", line=line)
        reason = problem.message.removeprefix("not JSON: ")
        message = f"no plain JSON, which parse_json_file reads: {reason}; no comments allowed"
        findings.append(finding_at("trainer.bad_value", source.path, place, message))
    findings += _wrong(source.path, places)
    section = section_of(settings)
    found = decided_in(section.table, settings)
    assumes = ["zero_stage"] if section is REPLICATED else []
    is_shared = {path[0] for path in places} - keys.known().keys()
    if is_shared and "recompute_layers_per_stage" not in found:
        assumes.append("recompute")
    # Documents of about one length together; else the script's collator decides.
    is_grouped = given(settings, keys.SAMPLING) == GROUPED
    models = ("model_name_or_path", "model_name", "model_id", "model")
    # Arguments of TRL, LLaMA-Factory and ms-swift after which only adapters are trained.
    peft = (
        "use_peft",
        "load_in_4bit",
        "load_in_8bit",
        "finetuning_type",
        "tuner_type",
        "train_type",
    )
    adapters = (
        f"{key} {settings[key].value}: adapters are trained, and plans train all parameters"
        for key in peft
        if given(settings, key) in (True, "lora", "freeze", "oft")
    )
    return ParsedConfig(
        format="trainer",
        path=source.path,
        settings=settings,
        decisions=found,
        findings=tuple(sorted(findings, key=lambda each: each.line)),
        assumes=tuple(assumes),
        named_model=next((settings[key] for key in models if key in settings), None),
        unpriced=next(adapters, ""),
        batching=replace(settings[keys.SAMPLING], value="grouped") if is_grouped else None,
        traits=LIGER if flag(settings, keys.LIGER) else (),
    )


def launched(reading: ParsedConfig, environment: Settings) -> ParsedConfig:
    """Return the reading with the mesh that ParallelismConfig reads from the environment."""
    sizes: dict[str, Located] = {}
    for variable, each in environment.items():
        name = variable.removeprefix(VARIABLE)
        if name != variable and re.fullmatch(r"\d{1,8}", str(each.value)):
            sizes[f"{keys.MESH}.{name.lower()}"] = replace(each, value=int(each.value))
    if not sizes:
        return reading
    sizes[keys.MESH] = Located(value={}, key=keys.MESH)
    decisions = dict(reading.decisions)
    return replace(reading, decisions=decisions | decided_in((MESH,), sizes))


def _in_full(path: Path) -> str:
    """Keys of ``fsdp_config`` may be written as Accelerate's file has them."""
    prefix = "fsdp_" if path[0] == keys.FSDP_CONFIG else ""
    inner = [name.removeprefix(prefix) for name in path[1:]]
    return ".".join((path[0], *inner))


def _wrong(path: str, places: Mapping[Path, Located]) -> Iterator[Finding]:
    content = {place.key: place.value for at, place in places.items() if len(at) == 1}
    spelled = {_in_full(at): place for at, place in places.items()}
    own = content.get(keys.FSDP_CONFIG)
    if isinstance(own, dict):
        inner = {name.removeprefix("fsdp_"): value for name, value in own.items()}
        content[keys.FSDP_CONFIG] = inner
    for key in keys.WHOLE:
        if isinstance(value := content.get(key), float) and value.is_integer():
            message = f"given {value!r}, which stays so; a whole number is allowed"
            yield finding_at("trainer.bad_value", path, places[(key,)], message)
    old: list[str] = []
    foreign: list[str] = []
    for wrong in wrongs(keys.schema(), content):
        place, (*above, name) = spelled[".".join(wrong.path)], wrong.path
        if wrong.allowed:
            message = f"given {repr(place.value)[:60]}; {wrong.allowed}"
            yield finding_at("trainer.bad_value", path, place, message)
        elif not above and name in keys.replaced():
            old.append(name)
        elif above or alike(name, keys.known(), 0.87):
            known = wrong.schema["properties"]
            hint = did_you_mean(name, known) or f"{len(known)} keys are known"
            where = above[0] if above else "TrainingArguments"
            message = f"unknown key of {where}; {hint}"
            yield finding_at("trainer.unknown_key", path, place, message)
        else:
            # It may be of the dataclasses that a script reads from the same file, as
            # HfArgumentParser does.
            foreign.append(name)
    if old:
        shown = [f"{key} ({keys.replaced()[key] or 'nothing'} in its place)" for key in old]
        message = f"for a transformers older than 5: {listed(shown)}"
        yield finding_at("trainer.made_for", path, places[(old[0],)], message, "note")
    if foreign:
        rest = "no key of TrainingArguments; sound where the script's own have it"
        message = f"{listed(foreign)}: {rest}"
        yield finding_at("trainer.unknown_key", path, places[(foreign[0],)], message, "note")


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Write a new file; ExpressError with every reason where nothing carries the strategy."""
    section = section_for(context, strategy, SECTIONS)
    lines = lines_of(section.table, context, strategy)
    environment = mesh_variables(context, strategy)
    documents, length = context.job.documents, context.job.seq_len
    why = "a mesh in JSON reaches Accelerator as a plain mapping"
    no_key, prefix = "TrainingArguments have no key for it", "training script: "
    beside: dict[str, tuple[object, str]] = {
        name: (value, why) for name, value in environment.items()
    }
    beside[f"{prefix}tokens per sequence"] = length, no_key
    if documents is not None and documents.batching != "grouped":
        mean = f"{documents.mean:g} tokens on average"
        beside[f"{prefix}documents {documents.batching}"] = mean, no_key
    if strategy.tp > 1:
        key = f"{prefix}from_pretrained(..., distributed_config=DistributedConfig(...))"
        beside[key] = f"tp_size {strategy.tp}", "transformers splits the weights"
    parser = "HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])"
    text = written({line.key: line.value for line in lines})
    return Emitted(
        files=(OutputFile(name=FILE, text=text), *adapter_files(context)),
        command=("${TRAIN_SCRIPT}", FILE),
        environment=environment,
        variables={"TRAIN_SCRIPT": f"your training script: {parser}, {length} tokens per sequence"},
        open_keys=(UserKey(file=FILE, key="learning_rate", what="peak learning rate"),),
        decided=(
            *explained(lines),
            *explained(told(beside)),
            *adapter_lines(context),
        ),
    )


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions; other keys and their order stay.

    So does an optimizer that is the plan's by another name, or that no plan has. ExpressError
    where nothing carries the strategy, where it needs a mesh, which has no place in the file, and
    where the file leaves ZeRO to another one.
    """
    reading = read(source)
    settings, own = reading.settings, section_of(reading.settings)
    section = section_for(context, strategy, SECTIONS, own)
    reasons: list[str] = []
    if environment := mesh_variables(context, strategy):
        mesh = ", ".join(f"{name}={value}" for name, value in environment.items())
        reasons.append(f"tp, cp, dp_replicate: no key carries them; set {mesh}")
    if section is DEEPSPEED and isinstance(given(settings, keys.DEEPSPEED), str):
        reasons.append("deepspeed names a file, which carries the plan; write into that one")
    refuse(reading.path, reasons)
    lines = lines_of(section.table, context, strategy)
    table = section.table
    if section is not own:
        table = (*table, others(SECTIONS, lines))
    found = changes(table, settings, lines)
    if "optimizer" not in reading.decisions and given(settings, keys.OPTIM) in keys.optimizers():
        found.pop(keys.OPTIM, None)
        found.pop(keys.ARGUMENTS, None)
    paths = {path_of(settings, key): value for key, value in found.items()}
    return JsonEditor(source.path, source.text).changed(paths)


FORMAT = Format(
    name="trainer",
    title="Hugging Face TrainingArguments in JSON or YAML",
    framework="accelerate",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=tuple(rule),
    write_into=write_into,
    part=part,
    engine=engine,
    launched=launched,
    problems=problems,
    support=SUPPORT,
    trains=MODES,
    takes_adapters=True,
)

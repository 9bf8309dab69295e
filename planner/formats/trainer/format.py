"""The format ``trainer``, TrainingArguments, and those of programs that hand theirs to Trainer.

They are read, checked and edited alike; new files are written of TrainingArguments alone.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from planner.cost.context import Context
from planner.documents.edit import written
from planner.documents.file import REMOVED
from planner.errors import ExpressError, InputError
from planner.formats.accelerate import mapping as accelerate
from planner.formats.accelerate.rows import others, section_for
from planner.formats.adapters import ADAPTER_LINES, adapter_files
from planner.formats.decision import changes, explained, key_values, lines_of, reasons, refuse
from planner.formats.deepspeed import keys as deepspeed
from planner.formats.format import (
    Emitted,
    Format,
    OutputFile,
    ParsedConfig,
    SourceText,
    UserKey,
    read_source,
)
from planner.formats.settings import Settings, decided, given, path_of
from planner.formats.trainer import keys
from planner.formats.trainer.content import (
    FILES,
    OutsideError,
    content_of,
    is_json,
    is_script,
    names_in,
    with_values,
)
from planner.formats.trainer.keys import OWN, FrontEnd, is_of, load_tool, tool_names
from planner.formats.trainer.mapping import (
    DEEPSPEED,
    SECTIONS,
    SUPPORT,
    engine,
    mesh_variables,
    part,
    problems,
    section_of,
)
from planner.formats.trainer.read import launched, read
from planner.formats.trainer.rules import RULES, rule, stated_rules
from planner.spec.strategy import Strategy
from planner.spec.training import MODES

FILE = "training_arguments.json"
# What a repair may change in a program's own file; of what shards only a name of its own.
CARRIED = (
    keys.BATCH,
    keys.STEPS,
    keys.CHECKPOINTING,
    keys.BLOCKS,
    keys.RESHARD,
    keys.OFFLOAD,
    keys.DEEPSPEED,
)
# Rules of TrainingArguments of which programs take care themselves.
_LEFT = (
    "mesh_is_no_mapping",
    "checkpointing_by_its_new_name",
    "fsdp_config_is_used",
    "fsdp2_is_used",
    "mixtures_have_leaf_modules",
)


def recognise(source: SourceText, tool: FrontEnd) -> bool:
    """Return True if a file, from its keys, or a command in it, is the program's."""
    if is_script(source, tool):
        try:
            is_read = bool(content_of(source, tool).names)
        except InputError as error:
            # A command of the program, whose file is not there.
            return isinstance(error, OutsideError)
        others = (load_tool(name) for name in tool_names() if tool.is_own)
        return is_read and not any(recognise(source, other) for other in others)
    # Most files are told from these without being parsed.
    likely = [group for group in tool.tells if all(key in source.text for key in group)]
    if not tool.is_own:
        return any(likely) and is_of(tool, names_in(source))
    if not (likely or is_json(source)):
        return False
    names = names_in(source)
    # JSON with several of the arguments is theirs, too.
    has_several = is_json(source) and len(names & keys.known().keys()) > 1
    is_own = is_of(tool, names) or ("output_dir" in names and has_several)
    return is_own and not any(is_of(load_tool(name), names) for name in tool_names())


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Write a new file; ExpressError with every reason where nothing carries the strategy."""
    lines = lines_of(section_for(context, strategy, SECTIONS).table, context, strategy)
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
    key = f"{prefix}from_pretrained(..., distributed_config=DistributedConfig(...))"
    split = f"tp_size {strategy.tp}" if strategy.tp > 1 else None
    beside[key] = split, "transformers splits the weights"
    return Emitted(
        files=(
            OutputFile(name=FILE, text=written({line.key: line.value for line in lines})),
            *adapter_files(context),
        ),
        command=("${TRAIN_SCRIPT}", FILE),
        environment=environment,
        variables={
            "TRAIN_SCRIPT": (
                "your training script: "
                f"HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1]), {length} "
                "tokens per sequence"
            )
        },
        open_keys=(UserKey(file=FILE, key="learning_rate", what="peak learning rate"),),
        decided=explained([*lines, *key_values(beside), *ADAPTER_LINES(context, strategy)]),
    )


def write_into(
    source: SourceText, context: Context, strategy: Strategy, tool: FrontEnd
) -> SourceText:
    """The file with the strategy's decisions, and the DeepSpeed file it names with those there.

    Other keys and their order stay, and so does an optimizer that is the plan's by another name, or
    that no plan has. ExpressError where no key carries the strategy.
    """
    before = read(source, tool)
    settings = before.settings
    own = section = section_of(settings)
    if tool.is_own:
        section = section_for(context, strategy, SECTIONS, own)
        if environment := mesh_variables(context, strategy):
            mesh = ", ".join(f"{name}={value}" for name, value in environment.items())
            refuse(source.path, [f"tp, cp, dp_replicate: no key carries them; set {mesh}"])
    lines = lines_of(section.table, context, strategy)
    table = section.table if section is own else (*section.table, others(SECTIONS, lines))
    found = changes(table, settings, lines)
    if "optimizer" not in before.decisions and given(settings, keys.OPTIM) in keys.optimizers():
        found.pop(keys.OPTIM, None)
        found.pop(keys.ARGUMENTS, None)
    found = _by_preset(found, settings, tool)
    beside = _beside(before, found, section is DEEPSPEED, context, strategy)
    text = source.text
    if paths := _in_own_words(found, settings, tool):
        if not (is_json(source) or source.path.lower().endswith(FILES)):
            raise ExpressError(
                f"{source.path}: a command's options are for you to change; "
                "its YAML or JSON would be edited"
            )
        text = with_values(source, paths)
    return SourceText(path=source.path, text=text, beside=beside)


def _by_preset(found: dict[str, Any], settings: Settings, tool: FrontEnd) -> dict[str, Any]:
    """What changes of DeepSpeed's keys as the program's own name for them, where a file has one."""
    inner = f"{keys.DEEPSPEED}."
    stated = {key: each.value for key, each in settings.items() if inner in key}
    # The configuration behind a name leaves the rest to Trainer.
    own = {key: value for key, value in found.items() if inner in key and value != "auto"}
    wanted = {key: value for key, value in (stated | own).items() if value is not REMOVED}
    is_named = given(settings, keys.DEEPSPEED) is True and wanted != stated
    presets = tool.presets.get(keys.DEEPSPEED, {}).items()
    name = next((name for name, preset in presets if is_named and preset == wanted), None)
    if name is None:
        return found
    return {key: value for key, value in found.items() if inner not in key} | {keys.DEEPSPEED: name}


def _beside(
    before: ParsedConfig,
    found: dict[str, Any],
    is_deepspeed: bool,
    context: Context,
    strategy: Strategy,
) -> dict[str, str]:
    """Texts of the files that are named, by path; what they carry is taken out of ``found``."""
    texts: dict[str, str] = {}
    if isinstance(given(before.settings, keys.DEEPSPEED), str):
        inner = f"{keys.DEEPSPEED}."
        of_file = {key.removeprefix(inner): found.pop(key) for key in [*found] if inner in key}
        named = [each for each in before.named if each.format == "deepspeed"]
        if is_deepspeed and of_file:
            refuse(before.path, [] if named else ["deepspeed names a file that is not read"])
            texts |= _into_deepspeed(named[0], of_file, context, strategy)
    for each in before.named:
        if each.format == "accelerate":
            # What the launcher's file decides is not the arguments'.
            for key in [key for key in found if key.startswith(keys.ENGINES)]:
                del found[key]
            texts |= _into_accelerate(each, context, strategy)
    return texts


def _in_own_words(
    found: Mapping[str, Any], settings: Settings, tool: FrontEnd
) -> dict[tuple[str, ...], Any]:
    """Values by their paths in a program's file, of TrainingArguments what it may carry."""
    spelled = {full: name for name, full in {**tool.arguments, **tool.inverse}.items()}
    paths: dict[tuple[str, ...], Any] = {}
    for key in [key for key in (found if tool.is_own else CARRIED) if key in found]:
        is_opposite = key in tool.inverse.values() and found[key] is not REMOVED
        is_there = decided(settings, key, None).line > 0
        path = path_of(settings, key if is_there else spelled.get(key, key))
        paths[path] = not found[key] if is_opposite else found[key]
    return paths


def _into_deepspeed(
    named: ParsedConfig, found: Mapping[str, Any], context: Context, strategy: Strategy
) -> dict[str, str]:
    """The named DeepSpeed file by its path, with what changes; "auto" is not brought in."""
    micro, steps = strategy.micro_batch, strategy.num_micro_batches
    same = {
        deepspeed.MICRO: micro,
        deepspeed.STEPS: steps,
        deepspeed.TOTAL: strategy.dp * micro * steps,
        "bf16.enabled": context.job.precision == "bf16",
        "fp16.enabled": context.job.precision == "fp16",
    }
    return _changed(
        named,
        {
            key: value
            for key, value in found.items()
            if value != "auto" or given(named.settings, key) not in (None, same.get(key))
        },
    )


def _changed(named: ParsedConfig, found: Mapping[str, Any]) -> dict[str, str]:
    """The text of a file that is named, with what changes, by its path; none where nothing does."""
    paths = {path_of(named.settings, key): value for key, value in found.items()}
    return {named.path: with_values(read_source(named.path), paths)} if paths else {}


def _into_accelerate(named: ParsedConfig, context: Context, strategy: Strategy) -> dict[str, str]:
    """The launcher's file by its path, with how states are split and where they live."""
    section = accelerate.section_of(named.settings)
    if section is None:
        return {}
    rows = [row for row in section.table if {*row.names} & {"zero_stage", "offload", "tp"}]
    found = changes(rows, named.settings, lines_of(section.table, context, strategy))
    if found:
        refuse(named.path, reasons(section.table, context, strategy))
    return _changed(named, found)


def not_written(
    program: str,
    instead: str,
    _context: Context,
    _strategy: Strategy,
) -> NoReturn:
    """Refuse to write a new file; ``instead``: what writes one that says the same."""
    raise ExpressError(f"files of {program} are read, checked and repaired, not written; {instead}")


def front_end(name: str) -> Format:
    """The format of TrainingArguments, or of a program that hands its files to Trainer."""
    tool = load_tool(name)
    left = (*_LEFT, "optim_known") if tool.optimizers else _LEFT
    shared = (*stated_rules(load_tool(OWN)), *rule)
    own: dict[str, Any] = {
        "versions": tool.versions,
        "emit": partial(
            not_written, tool.program, "trainer writes the TrainingArguments behind them"
        ),
        "rules": (*stated_rules(tool), *RULES.get(name, ())),
        "borrowed": {OWN: tuple(each for each in shared if each.name not in left)},
        "is_written": False,
    }
    if tool.is_own:
        own = {
            "emit": emit,
            "rules": shared,
            "problems": problems,
            "launched": launched,
        }
    return Format(
        name=name,
        title=tool.title,
        framework="accelerate",
        recognise=partial(recognise, tool=tool),
        read=partial(read, tool=tool),
        write_into=partial(write_into, tool=tool),
        part=part,
        engine=engine,
        support=SUPPORT,
        trains=MODES,
        takes_adapters=tool.is_own,
        **own,
    )


FORMAT = front_end(OWN)

"""The format ``accelerate``: its files are read, written anew, and edited.

What it has no key for, the training script must do; a comment says it, for unknown keys stop
``accelerate launch``: ``# training script: micro_batch=2 num_micro_batches=4 ...``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.cost.context import Context
from planner.documents.edit import YamlEditor
from planner.documents.schema import wrongs
from planner.documents.tree import keys_at_top, load_own, parsed_yaml
from planner.errors import ExpressError, InputError, did_you_mean
from planner.formats.accelerate import keys
from planner.formats.accelerate.keys import AccelerateView, of_another_model
from planner.formats.accelerate.mapping import (
    FSDP1,
    OTHER,
    SECTIONS,
    engine,
    part,
    problems,
    section_of,
)
from planner.formats.accelerate.rows import (
    DEEPSPEED_SUPPORT,
    Section,
    num_machines,
    others,
    section_for,
)
from planner.formats.adapters import ADAPTER_LINES, LIGER_LINES, adapter_files
from planner.formats.decision import (
    Table,
    To,
    Value,
    Why,
    changes,
    decided_in,
    explained,
    lines_of,
    writes,
)
from planner.formats.deepspeed.keys import DEVICES
from planner.formats.deepspeed.keys import schema as deepspeed_schema
from planner.formats.format import (
    ALL,
    Emitted,
    Finding,
    Format,
    Located,
    OutputFile,
    ParsedConfig,
    Severity,
    SourceText,
)
from planner.formats.settings import (
    Refused,
    Rules,
    Settings,
    as_flag,
    as_whole,
    finding_at,
    one_of,
    path_of,
    repeated_keys,
    word,
)
from planner.limits import brief
from planner.spec.strategy import Strategy
from planner.spec.training import MODES

FILE = "accelerate.yaml"
SCRIPT = "training script"
COMMENT = f"# {SCRIPT}: "
PLUGIN = "accelerate/utils/dataclasses.py FullyShardedDataParallelPlugin"
WRAPPED = f"{keys.FSDP}transformer_layer_cls_to_wrap"
STATE_DICTS = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")
_CHECKPOINTING = "gradient_checkpointing"
_ENVIRONMENT = "compute_environment"
_STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
_NUMBERS = ("micro_batch", "num_micro_batches", "seq_len")
_NO_KEY = "Accelerate's file has no key for it"
# Of lines for the README what runs a plan then, key, value and why.
_LINES: Sequence[tuple[str, str, tuple[Value, Why]]] = (
    ("FSDP MULTI_GPU DEEPSPEED", "DataLoader batch_size", ("micro_batch", _NO_KEY)),
    ("FSDP MULTI_GPU DEEPSPEED", "tokens per sequence", ("job.seq_len", _NO_KEY)),
    ("FSDP MULTI_GPU DEEPSPEED", "optimizer", ("traits.optimizer.name", _NO_KEY)),
    ("FSDP MULTI_GPU", _STEPS, ("num_micro_batches", f"an environment variable: {_NO_KEY}")),
    (
        "FSDP",
        "GradientAccumulationPlugin(..., sync_each_batch=True)",
        (
            "'pass it to Accelerator' if traits.states.reduces_every_micro_batch else None",
            "gradients are reduced in every micro-batch, and not kept whole",
        ),
    ),
    (
        "MULTI_GPU DEEPSPEED",
        "model.gradient_checkpointing_enable()",
        (
            "'call it' if recompute == 'full' else None",
            "every block is recomputed in backward",
        ),
    ),
    (
        "FSDP MULTI_GPU",
        "from_pretrained(..., tp_plan='auto', device_mesh=...)",
        (
            "'tp ' + str(tp) if tp > 1 else None",
            "transformers splits the weights; Accelerate checks that tp agrees",
        ),
    ),
)
# What a strategy leaves to the user's code, for the README, by what runs it.
_IN_SCRIPT: Mapping[str, To] = {
    kind: writes(
        {
            key if key == _STEPS else f"{SCRIPT}: {key}": line
            for kinds, key, line in _LINES
            if kind in kinds.split()
        }
    )
    for kind in ("FSDP", "MULTI_GPU", "DEEPSPEED")
}
_COMMENT = re.compile(rf"^{COMMENT}(.*)$", re.MULTILINE)


def recognise(source: SourceText) -> bool:
    """A mapping with one of the two keys Accelerate always writes."""
    likely = r"""(?m)^[{\s"']*(distributed_type|compute_environment)["']?\s*:"""
    if not re.search(likely, source.text):
        return False
    own = {keys.TYPE, _ENVIRONMENT}
    return bool(own & keys_at_top(source.path, source.text, parsed_yaml))


def read(source: SourceText) -> ParsedConfig:
    """Read a file; InputError where it is no YAML mapping, or SageMaker's."""
    text = parsed_yaml(source.path, source.text)
    if not isinstance(text.value, dict):
        message = f"is no mapping of keys; given {type(text.value).__name__}"
        raise InputError.single(source.path, "text", message)
    refused = {
        (_ENVIRONMENT, "AMAZON_SAGEMAKER"): (
            "starts machines of its own; files for LOCAL_MACHINE are read"
        ),
        (keys.TYPE, "MEGATRON_LM"): "is not covered; scripts with Megatron-LM's own options are",
    }
    for (key, value), why in refused.items():
        if str(text.value.get(key)).upper() == value:
            raise InputError.single(source.path, key, f"{value} {why}")
    settings: dict[str, Located] = {}
    duplicated, says = "accelerate.duplicate_key", "given twice; the last one counts"
    findings = [*repeated_keys(duplicated, source.path, text.duplicates, says)]
    for path, entry in text.entries.items():
        section, *names = map(str, path)
        if len(names) > 1 or (names and section not in keys.sections()):
            continue
        # Accelerate's own prefix may be left out of a section's keys.
        full = spelled = ".".join((section, *names))
        for name in names:
            prefix = keys.sections()[section].get("prefix", "")
            is_full = name.startswith(prefix.rstrip("_"))
            full = f"{section}.{name if is_full else prefix + name}"
        place = Located(value=entry.value, key=spelled, line=entry.line)
        if names and full in settings:
            message = f"given twice, also as {settings[full].key}; the last one counts"
            findings.append(finding_at(duplicated, source.path, place, message))
        settings[full] = place
    findings += _wrong(source.path, settings)
    for section in keys.sections():
        settings.pop(section, None)
    own = section_of(settings) or OTHER
    return ParsedConfig(
        format="accelerate",
        path=source.path,
        settings=settings,
        decisions=said_in(source.text) | decided_in(own.table, settings),
        findings=tuple(sorted(findings, key=lambda each: each.line)),
    )


def _wrong(path: str, settings: Settings) -> Iterator[Finding]:
    """Unknown keys, which Accelerate misses inside a section, and values of the wrong kind."""
    found: dict[str, Any] = {}
    for full, place in settings.items():
        section, _, name = full.partition(".")
        value = place.value
        # Numbers are read from their text, and one with a point is no whole one; but not the rank
        # of a node, nor that there is one node, which is compared alone (utils/launch.py).
        is_compared = full == keys.RANK or (full == keys.MACHINES and value == 1)
        if isinstance(value, int | float) and not is_compared:
            value = str(value)
        if section not in keys.sections():
            found[full] = value
        elif not name:
            found[section] = {} if isinstance(value, dict) else value
        elif isinstance(found[section], dict):
            found[section][name] = value
    properties = deepspeed_schema()["properties"]
    of_deepspeed = {*properties, *properties["zero_optimization"]["properties"]}
    for wrong in wrongs(keys.schema(), found):
        place = settings[".".join(wrong.path)]
        if not wrong.allowed:
            *above, name = wrong.path
            known = wrong.schema["properties"]
            hint = did_you_mean(name, known) or f"{len(known)} keys are known"
            if above == ["deepspeed_config"] and name in of_deepspeed:
                hint = "DeepSpeed's own keys go into the file that deepspeed_config_file names"
            told = f"{'.'.join(above)}, which Accelerate ignores" if above else "the file"
            message = f"unknown key of {told}; {hint}"
            severity: Severity = "warning" if above else "error"
            yield finding_at("accelerate.unknown_key", path, place, message, severity)
        elif not _is_read(wrong.value, wrong.schema["type"][0]):
            message = f"given {brief(place.value)}; {wrong.allowed}"
            yield finding_at("accelerate.bad_value", path, place, message)


def _is_read(value: object, kind: str) -> bool:
    """Whether Accelerate takes a value for one of a kind: yes for true, "8" for 8."""
    if kind == "number":
        return re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?", str(value)) is not None
    read = {"boolean": as_flag, "integer": as_whole}.get(kind)
    return read is not None and read(value) is not None


def comment_of(context: Context, strategy: Strategy, section: Section) -> str:
    """The comment that says what the training script must do."""
    said = {
        "micro_batch": strategy.micro_batch,
        "num_micro_batches": strategy.num_micro_batches,
        "seq_len": context.job.seq_len,
        "optimizer": context.traits.optimizer.name,
    }
    # FSDP's section has a key for checkpointing, the others have none.
    if section.distributed_type != "FSDP":
        said[_CHECKPOINTING] = str(strategy.recompute == "full").lower()
    return COMMENT + " ".join(f"{name}={value}" for name, value in said.items())


def said_in(text: str) -> dict[str, Located]:
    """Return what the comment of a file states, by the names of DECISIONS."""
    found: dict[str, Located] = {}
    if match := _COMMENT.search(text):
        line = text.count("\n", 0, match.start()) + 1
        for name, given in re.findall(r"([a-z_]+)=([\w:.=-]+)", match[1], re.ASCII):
            is_number = name in _NUMBERS and re.fullmatch("[0-9]{1,9}", given)
            value = int(given) if is_number else given
            place = Located(value=value, key=f"{SCRIPT}: {name}", line=line)
            if name in (*_NUMBERS, "optimizer"):
                found[name] = place
            elif name == _CHECKPOINTING and given == "true":
                found["recompute_layers_per_stage"] = replace(place, value=ALL)
    return found


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Write a new file; ExpressError with every reason where no section carries the strategy."""
    section = section_for(context, strategy, SECTIONS)
    lines = lines_of(section.table, context, strategy)
    values = {tuple(line.key.split(".")): line.value for line in lines}
    head = f"# Hugging Face Accelerate: accelerate launch --config_file {FILE} ..."
    comment = comment_of(context, strategy, section)
    text = f"{head}\n{comment}\n{YamlEditor(FILE, '').changed(values)}"
    variables = {
        "TRAIN_SCRIPT": (
            f"your training script: batches of {strategy.micro_batch} sequence(s), "
            f"{context.job.seq_len} tokens each"
        ),
        "LEARNING_RATE": "peak learning rate, which your script gives to its optimizer",
    }
    kind = section.distributed_type
    # Accelerator reads steps from here, and ``accelerate launch`` passes no path of NVMe on.
    environment: dict[str, str] = {}
    if kind != "DEEPSPEED":
        environment[_STEPS] = str(strategy.num_micro_batches)
    elif "nvme" in strategy.offload:
        variables["NVME_PATH"] = "folder on a local NVMe drive that DeepSpeed offloads to"
        for state, where in zip(("OPTIMIZER", "PARAM"), DEVICES[strategy.offload], strict=True):
            if where == "nvme":
                environment[keys.NVME_PATH.format(state)] = "${NVME_PATH}"
    launcher = ["accelerate", "launch", "--config_file", FILE]
    if num_machines(context, strategy) > 1:
        launcher += ["--machine_rank", "${NODE_RANK}", "--main_process_ip", "${MASTER_ADDR}"]
        launcher += ["--main_process_port", "${MASTER_PORT}"]
    return Emitted(
        files=(OutputFile(name=FILE, text=text), *adapter_files(context)),
        command=("${TRAIN_SCRIPT}",),
        environment=environment,
        variables=variables,
        decided=explained(
            [
                *lines,
                *_IN_SCRIPT[kind](context, strategy),
                *ADAPTER_LINES(context, strategy),
                *LIGER_LINES(context, strategy),
            ]
        ),
        own_launcher=tuple(launcher),
    )


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions; other keys, comments and order stay.

    The file's own section carries the strategy where it can, and gets decisions only.
    ExpressError where none does, and where another file decides.
    """
    reading = read(source)
    settings = reading.settings
    named = word(settings, keys.STRATEGY)
    own = section_of(settings)
    section = section_for(context, strategy, SECTIONS, own)
    if section is FSDP1 and "HYBRID" in named.upper():
        raise ExpressError(f"{reading.path}: {named} of FSDP1 is not edited; FSDP2's mesh is")
    if section.distributed_type == "DEEPSPEED" and keys.FILE in settings:
        file, why = keys.FILE.partition(".")[2], "a file, which carries the plan"
        raise ExpressError(f"{reading.path}: {file} names {why}; write into that one")
    lines = lines_of(section.table, context, strategy)
    table: Table = (*section.table, others((*SECTIONS, FSDP1), lines))
    if section is own and keys.TYPE in settings:
        # Where a file does not say bf16, the script's weights do.
        is_said = context.job.precision != "bf16" or "precision" in reading.decisions
        lines = [each for each in lines if not each.is_default]
        table = [row for row in section.table if is_said or row.names != ("precision",)]
    if section is FSDP1 and keys.STRATEGY not in settings:
        # FSDP1 also takes its strategy under the name of FSDP2's flag
        names = {keys.RESHARD: keys.STRATEGY}
        settings = {names.get(key, key): each for key, each in settings.items()}
    found = changes(table, settings, lines)
    paths = {path_of(settings, key): value for key, value in found.items()}
    text = YamlEditor(source.path, source.text).changed(paths)
    comment = comment_of(context, strategy, section)
    return _COMMENT.sub(lambda _: comment, text, count=1)


rule = Rules(AccelerateView)
rule.add_table(load_own(__package__, "rules.yaml"))


@rule("accelerate/commands/config/config_args.py", key=keys.TYPE)
def distributed_type_known(file: AccelerateView) -> Refused:
    """The type is one Accelerate has."""
    given = file[keys.TYPE]
    allowed = keys.schema()["$defs"]["distributed_types"]["enum"]
    is_given = keys.TYPE in file.settings and not isinstance(given, bool)
    return {f"given {given!r}; {one_of(allowed)}": is_given and given not in allowed}


@rule(PLUGIN, key=f"{keys.FSDP}state_dict_type")
def state_dict_type_known(file: AccelerateView) -> Refused:
    """Checkpoints are whole or sharded; FSDP1 also knows local ones."""
    given = file.word(f"{keys.FSDP}state_dict_type", STATE_DICTS[0]).upper()
    allowed = STATE_DICTS if file.is_fsdp2 else (*STATE_DICTS, "LOCAL_STATE_DICT")
    is_known = given in allowed or given.isdigit()
    return {f"given {given}; {one_of(allowed)}": file.is_fsdp and not is_known}


rule.unenforced(
    f"{PLUGIN} set_auto_wrap_policy raises",
    name="wrapped_class_is_the_models",
    holds="FSDP wraps layers by the name of their class.",
    key=WRAPPED,
    when=lambda file: of_another_model(file, WRAPPED) if file.is_fsdp else {},
)

FORMAT = Format(
    name="accelerate",
    title="Hugging Face Accelerate, configuration file in YAML",
    framework="accelerate",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=tuple(rule),
    write_into=write_into,
    part=part,
    engine=engine,
    problems=problems,
    script_recomputes=True,
    support={"deepspeed": DEEPSPEED_SUPPORT},
    trains=MODES,
    takes_adapters=True,
)

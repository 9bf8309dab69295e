"""Writes a strategy as TrainingArguments in JSON, new or into a file that is there."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.documents.json_edit import edited, json_text
from planner.documents.json_text import Path, Plain
from planner.errors import ExpressError
from planner.formats.accelerate.section import Line, Section
from planner.formats.accelerate.sections import carrier
from planner.formats.format import Decided, Emitted, OutputFile, Reading, SourceText
from planner.formats.settings import word
from planner.formats.trainer import sections
from planner.formats.trainer.keys import known_keys
from planner.formats.trainer.read import BATCH, OLD_CHECKPOINTING, STEPS, read, section_of
from planner.spec.strategy import Strategy

FILE = "training_arguments.json"
OPTIMIZER = ("optim", "optim_args")
COMMON = (BATCH, STEPS, "bf16", "fp16", *OPTIMIZER, OLD_CHECKPOINTING, sections.MESH)
OWNED = {*COMMON, *(key for section in sections.SECTIONS for key in section.owned)}
"""Keys that carry decisions; others are written where they are missing, and left alone."""


def _lines(context: Context, strategy: Strategy, section: Section) -> Iterator[Line]:
    precision = context.job.precision
    optim, arguments = sections.OPTIMIZERS[context.traits.optimizer.name]
    batch, steps = strategy.micro_batch, strategy.num_micro_batches
    yield Line(key=BATCH, value=batch, why=f"{batch} sequence(s) per micro-batch")
    yield Line(key=STEPS, value=steps, why=f"{steps} micro-batches per iteration")
    for name in ("bf16", "fp16"):
        yield Line(key=name, value=name == precision, why=f"products in {precision}")
    yield Line(key="optim", value=optim, why=f"optimizer {context.traits.optimizer.name}")
    if arguments:
        yield Line(key="optim_args", value=arguments, why="the rest of the optimizer")
    if steps > 1 and section.distributed_type == "FSDP" and _reduces_each(context):
        why = "gradients are reduced in every micro-batch, and not kept whole"
        yield Line(key=sections.SYNC_EACH_BATCH, value=True, why=why)
    yield from section.lines(context, strategy)


def _reduces_each(context: Context) -> bool:
    """Whether the plan counts on it; transformers does not by itself."""
    return context.traits.states.reduces_every_micro_batch


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Write a new file; ExpressError with every reason where nothing carries the strategy."""
    section = carrier(context, strategy, among=sections.SECTIONS)
    lines = list(_lines(context, strategy, section))
    shown = [Decided(key=line.key, value=str(line.value), why=line.why) for line in lines]
    environment = section.environment(context, strategy)
    mesh = [
        Decided(key=name, value=value, why="a mesh in JSON reaches Accelerator as a plain mapping")
        for name, value in environment.items()
    ]
    length = context.job.seq_len
    parser = "HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])"
    return Emitted(
        files=(OutputFile(name=FILE, text=_text(lines)),),
        command=("${TRAIN_SCRIPT}", FILE),
        environment=environment,
        variables={"TRAIN_SCRIPT": f"your training script: {parser}, {length} tokens per sequence"},
        decided=(*shown, *mesh, *_in_script(context, strategy)),
    )


def _text(lines: list[Line]) -> str:
    """The file, one key to a line."""
    root: dict[str, Plain] = {}
    for line in lines:
        *holders, name = line.key.split(".")
        at = root
        for holder in holders:
            at = at.setdefault(holder, {})
        at[name] = line.value
    return json_text(root) + "\n"


def _in_script(context: Context, strategy: Strategy) -> Iterator[Decided]:
    why = "TrainingArguments have no key for it"
    length = str(context.job.seq_len)
    yield Decided(key="training script: tokens per sequence", value=length, why=why)
    if strategy.tp > 1:
        key = "training script: from_pretrained(..., distributed_config=DistributedConfig(...))"
        yield Decided(
            key=key, value=f"tp_size {strategy.tp}", why="transformers splits the weights"
        )


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions; other keys and their order stay.

    So does an optimizer that is the plan's by another name, or that no plan has. ExpressError
    where nothing carries the strategy, where it needs a mesh, which has no place in the file, and
    where the file leaves ZeRO to another one.
    """
    reading = read(source)
    own = section_of(reading.settings)
    section = carrier(context, strategy, own, sections.SECTIONS)
    spelled = {full: value.key for full, value in reading.settings.items()}
    given = reading.settings.get("deepspeed")
    is_elsewhere = given is not None and isinstance(given.value, str)
    reasons = []
    if environment := section.environment(context, strategy):
        named = ", ".join(f"{name}={value}" for name, value in environment.items())
        reasons.append(f"tp, cp, dp_replicate: no key carries them; set {named}")
    if section is sections.DEEPSPEED and is_elsewhere:
        reasons.append("deepspeed names a file, which carries the plan; write into that one")
    if reasons:
        lines = "\n".join(f"  {reason}" for reason in reasons)
        raise ExpressError(f"{source.path} cannot carry the plan:\n{lines}")
    kept = OPTIMIZER if _keeps_optimizer(reading, context) else ()
    if kept:
        spelled = {full: key for full, key in spelled.items() if full not in kept}
    wanted = [
        line
        for line in _lines(context, strategy, section)
        if line.key not in kept and not _says_nothing(line, spelled)
    ]
    return edited(source.text, _changes(spelled, wanted), source.path)


def _keeps_optimizer(reading: Reading, context: Context) -> bool:
    decided = reading.decisions.get("optimizer")
    if decided is not None:
        return bool(decided.value == context.traits.optimizer.name)
    return word(reading.settings, "optim", "") in known_keys().optim


def _says_nothing(line: Line, spelled: dict[str, str]) -> bool:
    """A precision that is off and was not mentioned."""
    return line.key in ("bf16", "fp16") and line.value is False and line.key not in spelled


def _changes(spelled: dict[str, str], lines: list[Line]) -> dict[Path, Plain]:
    wanted = {line.key for line in lines}
    holders = {key.rpartition(".")[0] for key in wanted} | {key.split(".")[0] for key in wanted}
    gone = [key for key in spelled if key in OWNED - wanted - holders]
    changes: dict[Path, Plain] = {
        tuple(spelled[key].split(".")): REMOVED
        for key in gone
        if not ("deepspeed" in gone and key.startswith("deepspeed."))
    }
    for line in lines:
        if line.key in OWNED or line.key not in spelled:
            changes[tuple(spelled.get(line.key, line.key).split("."))] = line.value
    return changes

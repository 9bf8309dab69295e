"""Writes a strategy as TrainingArguments in JSON, new or into a file that is there."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.documents.json_edit import edited, written
from planner.errors import ExpressError
from planner.formats.accelerate.mapping import Section, carrier, others
from planner.formats.adapters import adapter_files, adapter_lines
from planner.formats.decision import changes, explained, lines_of
from planner.formats.format import Decided, Emitted, OpenKey, OutputFile, Reading, SourceText
from planner.formats.settings import given, path_of, word
from planner.formats.trainer import keys
from planner.formats.trainer.mapping import DEEPSPEED, SECTIONS, section_of
from planner.formats.trainer.read import read
from planner.spec.strategy import Strategy

FILE = "training_arguments.json"

_RATE = OpenKey(file=FILE, key="learning_rate", what="peak learning rate")


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Write a new file; ExpressError with every reason where nothing carries the strategy."""
    section = carrier(context, strategy, among=SECTIONS)
    lines = lines_of(section.table, context, strategy)
    environment = section.environment(context, strategy)
    why = "a mesh in JSON reaches Accelerator as a plain mapping"
    mesh = [Decided(key=name, value=value, why=why) for name, value in environment.items()]
    length = context.job.seq_len
    parser = "HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])"
    return Emitted(
        files=(
            OutputFile(name=FILE, text=written({line.key: line.value for line in lines})),
            *adapter_files(context),
        ),
        command=("${TRAIN_SCRIPT}", FILE),
        environment=environment,
        variables={"TRAIN_SCRIPT": f"your training script: {parser}, {length} tokens per sequence"},
        open_keys=(_RATE,),
        decided=(*explained(lines), *mesh, *_in_script(context, strategy), *adapter_lines(context)),
    )


def _in_script(context: Context, strategy: Strategy) -> Iterator[Decided]:
    why = "TrainingArguments have no key for it"
    length = str(context.job.seq_len)
    yield Decided(key="training script: tokens per sequence", value=length, why=why)
    documents = context.job.documents
    if documents is not None and documents.batching != "grouped":
        key = f"training script: documents {documents.batching}"
        yield Decided(key=key, value=f"{documents.mean:g} tokens on average", why=why)
    if strategy.tp > 1:
        key = "training script: from_pretrained(..., distributed_config=DistributedConfig(...))"
        why = "transformers splits the weights"
        yield Decided(key=key, value=f"tp_size {strategy.tp}", why=why)


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions; other keys and their order stay.

    So does an optimizer that is the plan's by another name, or that no plan has. ExpressError
    where nothing carries the strategy, where it needs a mesh, which has no place in the file, and
    where the file leaves ZeRO to another one.
    """
    reading = read(source)
    settings, own = reading.settings, section_of(reading.settings)
    section = carrier(context, strategy, own, SECTIONS)
    _refuse_what_is_elsewhere(reading, section, section.environment(context, strategy))
    lines = lines_of(section.table, context, strategy)
    table = section.table if section is own else (*section.table, others(SECTIONS, lines))
    found = changes(table, settings, lines)
    if "optimizer" not in reading.decisions and word(settings, keys.OPTIM) in keys.optimizers():
        found = {k: v for k, v in found.items() if k not in (keys.OPTIM, keys.ARGUMENTS)}
    paths = {path_of(settings, key): value for key, value in found.items()}
    return edited(source.path, source.text, paths)


def _refuse_what_is_elsewhere(
    reading: Reading, section: Section, environment: dict[str, str]
) -> None:
    found = []
    if environment:
        named = ", ".join(f"{name}={value}" for name, value in environment.items())
        found.append(f"tp, cp, dp_replicate: no key carries them; set {named}")
    if section is DEEPSPEED and isinstance(given(reading.settings, keys.DEEPSPEED), str):
        found.append("deepspeed names a file, which carries the plan; write into that one")
    if found:
        lines = "\n".join(f"  {reason}" for reason in found)
        raise ExpressError(f"{reading.path} cannot carry the plan:\n{lines}")

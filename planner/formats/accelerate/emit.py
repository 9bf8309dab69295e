"""Writes a strategy as an Accelerate configuration file, new or into one that is there."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.documents.nodes import Path
from planner.documents.yaml_edit import edited
from planner.errors import ExpressError
from planner.formats.accelerate import keys, script
from planner.formats.accelerate.decisions import FSDP1, SECTIONS, carrier, section_of
from planner.formats.accelerate.read import read
from planner.formats.accelerate.section import Section, num_machines, others, recomputes_all
from planner.formats.adapters import adapter_files, adapter_lines, liger_lines
from planner.formats.decision import Table, changes, explained, lines_of
from planner.formats.format import Decided, Emitted, OutputFile, Reading, SourceText
from planner.formats.settings import Settings, path_of, word
from planner.spec.strategy import Strategy

FILE = "accelerate.yaml"
HEAD = "# Hugging Face Accelerate: accelerate launch --config_file accelerate.yaml ...\n"
SCRIPT = "training script"
_NODES = {
    "NODE_RANK": "rank of the node, from 0",
    "MASTER_ADDR": "address of the first node",
    "MASTER_PORT": "free port on the first node",
}


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Write a new file; ExpressError with every reason where no section carries the strategy."""
    section = carrier(context, strategy)
    lines = lines_of(section.table, context, strategy)
    values: dict[Path, object] = {tuple(line.key.split(".")): line.value for line in lines}
    comment = script.line(context, strategy, section)
    text = f"{HEAD}{comment}\n{edited(FILE, '', values)}"
    spread = num_machines(context, strategy) > 1
    environment = section.environment(context, strategy)
    used = {name: what for name, what in section.variables.items() if _uses(environment, name)}
    return Emitted(
        files=(OutputFile(name=FILE, text=text), *adapter_files(context)),
        command=("${TRAIN_SCRIPT}",),
        environment=environment,
        variables={
            "TRAIN_SCRIPT": _script(context, strategy),
            "LEARNING_RATE": "peak learning rate, which your script gives to its optimizer",
            **used,
            **(_NODES if spread else {}),
        },
        decided=(
            *explained(lines),
            *_in_script(context, strategy, section),
            *adapter_lines(context),
            *liger_lines(context),
        ),
        own_launcher=_launcher(spread=spread),
    )


def _uses(environment: dict[str, str], name: str) -> bool:
    return any(f"${{{name}}}" in value for value in environment.values())


def _launcher(*, spread: bool) -> tuple[str, ...]:
    words = ("accelerate", "launch", "--config_file", FILE)
    if not spread:
        return words
    ranks = ("--machine_rank", "${NODE_RANK}", "--main_process_ip", "${MASTER_ADDR}")
    return (*words, *ranks, "--main_process_port", "${MASTER_PORT}")


def _script(context: Context, strategy: Strategy) -> str:
    batch, length = strategy.micro_batch, context.job.seq_len
    return f"your training script: batches of {batch} sequence(s), {length} tokens each"


def _in_script(context: Context, strategy: Strategy, section: Section) -> Iterator[Decided]:
    """Decisions that Accelerate leaves to the user's code."""
    batch, optimizer = strategy.micro_batch, context.traits.optimizer
    why = "Accelerate's file has no key for it"
    yield Decided(key=f"{SCRIPT}: DataLoader batch_size", value=str(batch), why=why)
    yield Decided(key=f"{SCRIPT}: tokens per sequence", value=str(context.job.seq_len), why=why)
    yield Decided(key=f"{SCRIPT}: optimizer", value=optimizer.name, why=why)
    if section.distributed_type in ("FSDP", "MULTI_GPU"):
        key = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
        why = "an environment variable: Accelerate's file has no key for it"
        yield Decided(key=key, value=str(strategy.num_micro_batches), why=why)
    if section.distributed_type == "FSDP" and context.traits.states.reduces_every_micro_batch:
        key = f"{SCRIPT}: GradientAccumulationPlugin(..., sync_each_batch=True)"
        why = "gradients are reduced in every micro-batch, and not kept whole"
        yield Decided(key=key, value="pass it to Accelerator", why=why)
    if section.distributed_type in ("DEEPSPEED", "MULTI_GPU") and recomputes_all(strategy):
        key = f"{SCRIPT}: model.gradient_checkpointing_enable()"
        yield Decided(key=key, value="call it", why="every block is recomputed in backward")
    if strategy.tp > 1 and section.distributed_type in ("FSDP", "MULTI_GPU"):
        key = f"{SCRIPT}: from_pretrained(..., tp_plan='auto', device_mesh=...)"
        why = "transformers splits the weights; Accelerate checks that tp agrees"
        yield Decided(key=key, value=f"tp {strategy.tp}", why=why)


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions; other keys, comments and order stay.

    The file's own section carries the strategy where it can, and gets decisions only.
    ExpressError where none does, and where another file decides.
    """
    reading = read(source)
    settings = reading.settings
    own = section_of(settings)
    section = carrier(context, strategy, own)
    _refuse_what_is_elsewhere(reading, section)
    lines = lines_of(section.table, context, strategy)
    table: Table = (*section.table, others((*SECTIONS, FSDP1), lines))
    if section is own and keys.TYPE in settings:
        lines, table = [each for each in lines if not each.is_default], section.table
        if context.job.precision == "bf16" and "precision" not in reading.decisions:
            # where a file does not say it, the script's weights do
            table = [row for row in table if row.names != ("precision",)]
    if section is FSDP1:
        settings = _as_named(settings)
    found = changes(table, settings, lines)
    paths: dict[Path, object] = {path_of(settings, key): value for key, value in found.items()}
    text = edited(source.path, source.text, paths)
    return script.rewritten(text, script.line(context, strategy, section))


def _refuse_what_is_elsewhere(reading: Reading, section: Section) -> None:
    named = word(reading.settings, keys.STRATEGY)
    if section is FSDP1 and "HYBRID" in named.upper():
        raise ExpressError(f"{reading.path}: {named} of FSDP1 is not edited; FSDP2's mesh is")
    if section.distributed_type == "DEEPSPEED" and keys.FILE in reading.settings:
        named, why = keys.FILE.partition(".")[2], "a file, which carries the plan"
        raise ExpressError(f"{reading.path}: {named} names {why}; write into that one")


def _as_named(settings: Settings) -> Settings:
    """FSDP1 also takes its strategy under the name of FSDP2's flag."""
    if keys.STRATEGY in settings or keys.RESHARD not in settings:
        return settings
    return {keys.STRATEGY if k == keys.RESHARD else k: v for k, v in settings.items()}

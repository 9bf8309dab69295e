"""Writes a strategy as an Accelerate configuration file, new or into one that is there."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.documents.yaml_edit import edited
from planner.documents.yaml_text import Path
from planner.errors import ExpressError
from planner.formats.accelerate import deepspeed, fsdp, megatron, parallelism, script
from planner.formats.accelerate.fsdp import FSDP1, RESHARD, STRATEGY
from planner.formats.accelerate.read import read, section_of
from planner.formats.accelerate.section import Line, Section, recomputes_all
from planner.formats.accelerate.sections import SECTIONS, carrier
from planner.formats.format import Decided, Emitted, OutputFile, Reading, SourceText
from planner.spec.strategy import Strategy

FILE = "accelerate.yaml"
HEAD = "# Hugging Face Accelerate: accelerate launch --config_file accelerate.yaml ...\n"
TOP = ("distributed_type", "num_machines", "num_processes", "mixed_precision")
_OF_SECTIONS = {key for section in (*SECTIONS, FSDP1) for key in section.owned}
OWNED = {*TOP, *parallelism.OWNED, *_OF_SECTIONS}
"""Keys that carry decisions; others are written where they are missing, and left alone."""
DEFAULTS: Mapping[str, object] = {
    "num_machines": 1,
    fsdp.VERSION: 1,
    fsdp.RESHARD: True,
    STRATEGY: "FULL_SHARD",
    fsdp.OFFLOAD: False,
    fsdp.CHECKPOINTING: False,
    deepspeed.STAGE: 2,
    deepspeed.OPTIMIZER: "none",
    deepspeed.PARAM: "none",
    megatron.EP: 1,
    megatron.SEQUENCE: False,
    megatron.ZERO: False,
}
"""What a key that is left out means; a repair does not state it."""
PRECISION = "mixed_precision"
"""Where a file does not say it, the script's weights do: what is assumed is not written."""
SCRIPT = "training script"
_NODES = {
    "NODE_RANK": "rank of the node, from 0",
    "MASTER_ADDR": "address of the first node",
    "MASTER_PORT": "free port on the first node",
}


def _num_machines(context: Context, strategy: Strategy) -> int:
    return -(-strategy.num_gpus // context.cluster.node.num_accelerators)


def _top(context: Context, strategy: Strategy, section: Section) -> Iterator[Line]:
    machines = _num_machines(context, strategy)
    named = {line.key: line.why for line in section.lines(context, strategy)}
    why = f"{section.title} carries the plan" if named else "whole replicas, no section"
    is_alone = section.distributed_type == "MULTI_GPU" and strategy.num_gpus == 1
    kind = "NO" if is_alone else section.distributed_type
    yield Line(key="compute_environment", value="LOCAL_MACHINE", why="no SageMaker")
    yield Line(key="distributed_type", value=kind, why=why)
    yield Line(key="num_machines", value=machines, why=f"{machines} node(s)")
    gpus = strategy.num_gpus
    yield Line(key="num_processes", value=gpus, why=f"{gpus} accelerators in all, one process each")
    precision = context.job.precision
    yield Line(key="mixed_precision", value=precision, why=f"products in {precision}")
    if precision == "fp8":
        yield Line(key="fp8_config.fp8_backend", value="AO", why="torchao, one scale per tensor")
    if machines > 1:
        yield Line(key="same_network", value=True, why="ranks meet at the first node's address")
    if machines > 1 and section.distributed_type == "DEEPSPEED":
        key = "deepspeed_config.deepspeed_multinode_launcher"
        yield Line(key=key, value="standard", why="every node starts its own processes")


def _lines(context: Context, strategy: Strategy, section: Section) -> list[Line]:
    return [*_top(context, strategy, section), *section.lines(context, strategy)]


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Write a new file; ExpressError with every reason where no section carries the strategy."""
    section = carrier(context, strategy)
    lines = _lines(context, strategy, section)
    changes: dict[Path, object] = {tuple(line.key.split(".")): line.value for line in lines}
    comment = script.line(context, strategy, section)
    text = f"{HEAD}{comment}\n{edited(FILE, '', changes)}"
    shown = [Decided(key=line.key, value=str(line.value), why=line.why) for line in lines]
    spread = _num_machines(context, strategy) > 1
    environment = section.environment(context, strategy)
    used = {name: what for name, what in section.variables.items() if _uses(environment, name)}
    return Emitted(
        files=(OutputFile(name=FILE, text=text),),
        command=("${TRAIN_SCRIPT}",),
        environment=environment,
        variables={
            "TRAIN_SCRIPT": _script(context, strategy),
            **used,
            **(_NODES if spread else {}),
        },
        decided=(*shown, *_in_script(context, strategy, section)),
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
    ExpressError where none does.
    """
    reading = read(source)
    own = section_of(reading.settings)
    section = carrier(context, strategy, own)
    named = reading.settings.get(STRATEGY)
    if section is FSDP1 and named is not None and "HYBRID" in str(named.value).upper():
        raise ExpressError(f"{source.path}: {named.value} of FSDP1 is not edited; FSDP2's mesh is")
    is_new = section is not own or "distributed_type" not in reading.settings
    lines = _lines(context, strategy, section)
    if not is_new:
        lines = [_as_named(reading, line) for line in lines]
        mesh = () if _needs_mesh(reading, strategy) else parallelism.OWNED
        lines = [each for each in lines if each.key not in mesh and not _is_implied(reading, each)]
    spelled = {full: value.key for full, value in reading.settings.items()}
    wanted = {PRECISION, *(line.key for line in lines)}
    changes: dict[Path, object] = {
        _path(spelled[key]): REMOVED for key in spelled if key in OWNED - wanted
    }
    for line in lines:
        if line.key in OWNED or (is_new and line.key not in spelled):
            changes[_path(spelled.get(line.key, line.key))] = line.value
    text = edited(source.path, source.text, changes)
    return script.rewritten(text, script.line(context, strategy, section))


def _is_implied(reading: Reading, line: Line) -> bool:
    """The file does not state it, and what that means is what is wanted."""
    if line.key == PRECISION:
        return line.value == "bf16" and "precision" not in reading.decisions
    is_default = line.key in DEFAULTS and DEFAULTS[line.key] == line.value
    return is_default and line.key not in reading.settings


def _as_named(reading: Reading, line: Line) -> Line:
    """FSDP1 also takes its strategy under the name of FSDP2's flag."""
    is_other = line.key == STRATEGY and STRATEGY not in reading.settings
    return replace(line, key=RESHARD) if is_other and RESHARD in reading.settings else line


def _needs_mesh(reading: Reading, strategy: Strategy) -> bool:
    is_split = max(strategy.tp, strategy.cp, strategy.dp_replicate) > 1
    return is_split or parallelism.is_given(reading.settings)


def _path(key: str) -> Path:
    return tuple(key.split(".", 1))

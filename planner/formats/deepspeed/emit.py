"""Writes a plan as a DeepSpeed JSON file, or into one that exists."""

from collections.abc import Iterable, Iterator

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.documents.json_edit import edited, json_text, written
from planner.errors import ExpressError
from planner.formats.decision import changes, explained, lines_of, reasons, refuse
from planner.formats.deepspeed import keys
from planner.formats.deepspeed.decisions import TABLE
from planner.formats.deepspeed.hostfile import HOSTFILE, write_hostfile
from planner.formats.deepspeed.read import read
from planner.formats.format import Decided, Emitted, OpenKey, OutputFile, Reading, SourceText
from planner.formats.losses import liger_lines
from planner.formats.settings import Settings, given, path_of
from planner.spec.strategy import Strategy

FILE = "ds_config.json"
_HOSTS = (
    "only for DeepSpeed's own launcher, in place of launch.sh: put your hosts' names here, then "
    "`deepspeed --hostfile hostfile` starts your script from one of them"
)

_RATE = OpenKey(
    file=FILE,
    key="lr",
    what="peak learning rate, under optimizer.params; or take the optimizer out, where your script "
    "brings its own",
    section="optimizer",
)


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Return the file; ExpressError with every reason why the strategy cannot be expressed."""
    refuse("deepspeed", reasons(TABLE, context, strategy))
    lines = lines_of(TABLE, context, strategy)
    hosts = tuple(_hosts(context, strategy))
    return Emitted(
        files=(
            OutputFile(name=FILE, text=written({line.key: line.value for line in lines})),
            *hosts,
        ),
        command=("${TRAIN_SCRIPT}", "--deepspeed", "--deepspeed_config", FILE),
        variables={"TRAIN_SCRIPT": _script(strategy)},
        open_keys=(_RATE,),
        decided=(
            *explained(lines, json_text),
            *map(_hosts_decided, hosts),
            *liger_lines(context),
        ),
    )


def _hosts(context: Context, strategy: Strategy) -> Iterator[OutputFile]:
    """The hostfile of several whole nodes; one node needs none."""
    slots = context.cluster.node.num_accelerators
    count, rest = divmod(strategy.num_gpus, slots)
    if count > 1 and not rest:
        names = {f"worker-{node}": slots for node in range(count)}
        yield OutputFile(name=HOSTFILE.name, text=write_hostfile(names))


def _hosts_decided(hosts: OutputFile) -> Decided:
    return Decided(key=hosts.name, value=f"{len(hosts.text.splitlines())} hosts", why=_HOSTS)


def _script(strategy: Strategy) -> str:
    """What the user's script is for, and what it must do beside calling DeepSpeed."""
    tasks = []
    if strategy.pp > 1:
        tasks.append(f"build a PipelineModule of {strategy.pp} stages with layers_per_stage")
    if strategy.pp > 1 and strategy.tp > 1:
        tasks.append(f"split its layers over {strategy.tp} ranks")
    if strategy.cp > 1:
        tasks.append("use Ulysses attention")
    if strategy.recompute != "none":
        tasks.append("checkpoint as many layers of every stage as the file says")
    must = f"; under {keys.SCRIPT} it finds what it must do: {', '.join(tasks)}" if tasks else ""
    return f"your training script, which calls deepspeed.initialize{must}"


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """Return the file with the strategy's decisions; other keys and comments stay.

    What decides the same already is not touched, nor what is left to Trainer; an optimizer is only
    changed, never added: where there is none, the script brings its own. Raises ExpressError.
    """
    refuse("deepspeed", reasons(TABLE, context, strategy))
    reading = read(source)
    settings = reading.settings
    left = {*_left_to_trainer(settings, strategy), *_left_to_script(reading)}
    twice = dict.fromkeys(keys.given_twice(settings), REMOVED)
    stated = {key: value for key, value in settings.items() if key not in twice}
    found = changes(TABLE, stated, lines_of(TABLE, context, strategy)) | twice
    found = {key: value for key, value in found.items() if key not in left}
    _refuse_what_trainer_ignores(found, reading)
    paths = {path_of(settings, key): value for key, value in found.items()}
    return edited(source.path, source.text, paths)


def _left_to_script(reading: Reading) -> Iterator[str]:
    """An optimizer that the file does not bring, or that no plan has; a length it does not need."""
    kind = given(reading.settings, keys.TYPE)
    is_known = isinstance(kind, str) and (kind == keys.AUTO or keys.is_optimizer_type(kind))
    if "optimizer" not in reading.settings or (is_known and "optimizer" not in reading.decisions):
        yield from (keys.TYPE, keys.TORCH_ADAM, keys.MOMENTUM, keys.UNTESTED)
    if keys.LENGTH not in reading.settings:
        yield keys.LENGTH


def _refuse_what_trainer_ignores(changed: Iterable[str], reading: Reading) -> None:
    """A file with "auto" is run by Trainer or Accelerate: no script of the user's reads it."""
    ignored = [key for key in changed if key.startswith((f"{keys.SCRIPT}.", "pipeline."))]
    autos = (key for key, each in reading.settings.items() if keys.is_for_trainer(key, each.value))
    if ignored and any(autos):
        runs = '"auto" is for Trainer and Accelerate, which do not read'
        raise ExpressError(f"{reading.path}: {runs} {', '.join(ignored)}")


def _left_to_trainer(settings: Settings, strategy: Strategy) -> set[str]:
    """Keys that are "auto", or missing beside such, where the strategy takes no other value.

    The batch is the job's, and steps follow from it; a micro-batch without steps is read as 1.
    """
    found: set[str] = set()
    batch = {key: given(settings, key) for key in (keys.TOTAL, keys.MICRO, keys.STEPS)}
    if keys.AUTO in batch.values():
        found = {key for key, value in batch.items() if value in (keys.AUTO, None)}
        if keys.STEPS in found and strategy.micro_batch != 1:
            found.discard(keys.MICRO)
        if batch[keys.STEPS] is None and keys.MICRO not in found:
            found.discard(keys.STEPS)
    precision = {key: given(settings, key) for key in keys.ENABLED}
    if keys.AUTO in precision.values():
        is_stated = True in precision.values()
        found |= {key for key, value in precision.items() if value == keys.AUTO or not is_stated}
    return found

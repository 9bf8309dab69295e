"""Writes a plan as a DeepSpeed JSON file, or into one that exists."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.cost.context import Context
from planner.documents.json_edit import REMOVED, edited, json_text
from planner.documents.json_text import Path, Plain
from planner.errors import ExpressError
from planner.formats.deepspeed.decisions import decide, device, given, stage
from planner.formats.deepspeed.express import (
    OPTIMIZER_TYPES,
    UNTESTED,
    reasons,
    secondary_ranks,
)
from planner.formats.deepspeed.hostfile import HOSTFILE, write_hostfile
from planner.formats.deepspeed.known import AUTO, SCRIPT, is_optimizer_type
from planner.formats.deepspeed.read import read
from planner.formats.format import Decided, Emitted, OutputFile, Reading, SourceText
from planner.spec.strategy import Strategy

FILE = "ds_config.json"
NVME_PATH = "/local_nvme"
_HOSTS = (
    "only for DeepSpeed's own launcher, in place of launch.sh: put your hosts' names here, then "
    "`deepspeed --hostfile hostfile` starts your script from one of them"
)
_DEVICES = {"host": "cpu", "nvme": "nvme"}
_ZERO = "zero_optimization"
_OFF: dict[str, Plain] = {
    "data_parallel_size": REMOVED,
    "train_batch_size": REMOVED,
    "bf16.enabled": False,
    "bfloat16.enabled": False,
    "fp16.enabled": False,
    "bf16.bf16_optimizer_states": False,
    "bf16.bf16_master_weights_and_grads": False,
    "tensor_parallel.autotp_size": 0,
    "sequence_parallel_size": 1,
    "pipeline.stages": 1,
    "expert_parallel.enabled": False,
    "zero_optimization.offload_optimizer.device": "none",
    "zero_optimization.offload_optimizer.ratio": REMOVED,
    "zero_optimization.offload_param.device": "none",
    "zero_optimization.cpu_offload": REMOVED,
    "zero_optimization.cpu_offload_param": REMOVED,
    "zero_optimization.zero_hpz_partition_size": 1,
    "training_script.tensor_parallel_size": REMOVED,
    "training_script.selective_layers_per_stage": REMOVED,
    "training_script.recompute_layers_per_stage": REMOVED,
    "training_script.recompute_modules": REMOVED,
}
"""What a key of a file becomes that carries a decision which the plan does not take."""
_OFFLOADS = (
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
    "zero_optimization.cpu_offload",
    "zero_optimization.cpu_offload_param",
)
_OFFLOAD_SECTIONS = ((_ZERO, "offload_optimizer"), (_ZERO, "offload_param"))
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_PRECISION = ("bf16.enabled", "bfloat16.enabled", "fp16.enabled")
_ASSUMED = ("overlap_comm", "_bucket_size", "pin_memory")
"""Ends of keys that are no decisions: not written into a user's file."""
_LENGTH = (SCRIPT, "sequence_length")
"""Not brought into a file that has no such block and needs none."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A key of the file, its value, and why it is there."""

    path: Path
    value: Plain
    why: str


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Return the file; ExpressError with every reason why the strategy cannot be expressed."""
    settings = _settings(context, strategy)
    content: dict[str, Plain] = {}
    for setting in settings:
        place = content
        for key in setting.path[:-1]:
            place = place.setdefault(key, {})
        place[setting.path[-1]] = setting.value
    config = OutputFile(name=FILE, text=json_text(content) + "\n")
    hosts = tuple(_hosts(context, strategy))
    decided = tuple(
        Decided(key=".".join(each.path), value=json_text(each.value), why=each.why)
        for each in settings
    )
    return Emitted(
        files=(config, *hosts),
        command=("${TRAIN_SCRIPT}", "--deepspeed", "--deepspeed_config", FILE),
        variables={"TRAIN_SCRIPT": _script(strategy)},
        decided=(*decided, *map(_hosts_decided, hosts)),
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


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """Return the file with the strategy's decisions; other keys and comments stay.

    What decides the same already is not touched, nor what is left to Trainer; an optimizer is only
    changed, never added: where there is none, the script brings its own. Raises ExpressError.
    """
    reading = read(source)
    wanted = {setting.path: setting.value for setting in _settings(context, strategy)}
    left_open = _left_to_trainer(reading, strategy)
    keeps_switch = _is_read_from_old_switch(reading, strategy)
    changes: dict[Path, Plain] = {}
    for name, off in _OFF.items():
        path = tuple(name.split("."))
        is_idle = name in _OFFLOADS and (keeps_switch or _is_read_as_no_offload(reading, strategy))
        is_free = is_idle or name in left_open
        if name in reading.settings and path not in wanted and not is_free:
            changes[path] = off
    for path, value in wanted.items():
        name = ".".join(path)
        is_kept = name.endswith("nvme_path") and name in reading.settings
        is_new_length = path == _LENGTH and name not in reading.settings
        is_switched = keeps_switch and path[:2] in _OFFLOAD_SECTIONS
        is_left = is_kept or is_new_length or is_switched or name in left_open
        if is_left or name.endswith(_ASSUMED):
            continue
        if not _is_kept_optimizer(path, reading, context):
            changes[path] = value
    if context.traits.optimizer.name == "sgd" and "optimizer.params.momentum" in reading.settings:
        changes["optimizer", "params", "momentum"] = REMOVED
    left = {path: v for path, v in changes.items() if not _stands_there(reading, path, v)}
    _refuse_what_trainer_ignores(left, reading)
    return edited(source.text, _under_old_name(left, reading), source.path)


def _refuse_what_trainer_ignores(changes: Mapping[Path, Plain], reading: Reading) -> None:
    """A file with "auto" is run by Trainer or Accelerate: no script of the user's reads it."""
    if all(value.value != AUTO for value in reading.settings.values()):
        return
    keys = [".".join(path) for path in changes if path[0] in (SCRIPT, "pipeline")]
    if keys:
        runs = '"auto" is for Trainer and Accelerate, which do not read'
        raise ExpressError(f"{reading.path}: {runs} {', '.join(keys)}")


def _left_to_trainer(reading: Reading, strategy: Strategy) -> set[str]:
    """Keys that are "auto", or missing beside such, where the strategy takes no other value.

    The batch is the job's, and steps follow from it; a micro-batch without steps is read as 1.
    """
    found: set[str] = set()
    batch = {key: given(reading.settings, key) for key in _BATCH}
    if AUTO in batch.values():
        found = {key for key, value in batch.items() if value in (AUTO, None)}
        micro, steps = _BATCH[1:]
        if steps in found and strategy.micro_batch != 1:
            found.discard(micro)
        if batch[steps] is None and micro not in found:
            found.discard(steps)
    precision = {key: given(reading.settings, key) for key in _PRECISION}
    if AUTO in precision.values():
        is_stated = True in precision.values()
        found |= {key for key, value in precision.items() if value == AUTO or not is_stated}
    return found


def _is_read_as_no_offload(reading: Reading, strategy: Strategy) -> bool:
    """The plan offloads nothing; what the file says of offload decides as much, at its stage."""
    decided = decide(reading.settings).get("offload")
    is_none = strategy.offload == "none" and (decided is None or decided.value == "none")
    return is_none and stage(reading.settings) == strategy.zero_stage


def _is_read_from_old_switch(reading: Reading, strategy: Strategy) -> bool:
    """``cpu_offload``, which DeepSpeed still reads, says what the plan does."""
    decided = decide(reading.settings).get("offload")
    if decided is None or decided.key != f"{_ZERO}.cpu_offload" or not strategy.zero_stage:
        return False
    has_weights = device(reading.settings, "offload_param") != "none"
    is_same = decided.value == strategy.offload and has_weights == (
        "parameters" in strategy.offload
    )
    return is_same and strategy.offload_percent == 100


def _stands_there(reading: Reading, path: Path, value: Plain) -> bool:
    """The file holds that value already; true is not 1."""
    there = given(reading.settings, ".".join(path))
    return bool(there == value) and isinstance(there, bool) == isinstance(value, bool)


def _is_kept_optimizer(path: Path, reading: Reading, context: Context) -> bool:
    """The file brings none, one that no plan has, or the same one under whatever name."""
    if path[0] not in ("optimizer", "zero_allow_untested_optimizer"):
        return False
    if "optimizer" not in reading.settings:
        return True
    decided = decide(reading.settings).get("optimizer")
    if decided is not None:
        return bool(decided.value == context.traits.optimizer.name)
    kind = given(reading.settings, "optimizer.type")
    return isinstance(kind, str) and (kind == AUTO or is_optimizer_type(kind))


def _under_old_name(changes: dict[Path, Plain], reading: Reading) -> dict[Path, Plain]:
    """Files with ``bfloat16`` keep that name, which DeepSpeed reads where there is no ``bf16``."""
    if "bfloat16" not in reading.settings or "bf16" in reading.settings:
        return changes
    renamed = {path: value for path, value in changes.items() if path[0] != "bfloat16"}
    return {
        ("bfloat16", *path[1:]) if path[0] == "bf16" else path: value
        for path, value in renamed.items()
    }


def _settings(context: Context, strategy: Strategy) -> list[Setting]:
    found = reasons(context, strategy)
    if found:
        raise ExpressError("deepspeed cannot express the plan:\n" + "\n".join(found))
    return [
        *_batch(strategy),
        *_numbers(context, strategy),
        *_zero(context, strategy),
        *_offload(strategy),
        *_axes(strategy),
        *_script_block(context, strategy),
    ]


def _of(name: str, value: Plain, why: str) -> Setting:
    return Setting(path=tuple(name.split(".")), value=value, why=why)


def _batch(strategy: Strategy) -> Iterator[Setting]:
    replicas = f"{strategy.dp} replicas"
    total = strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    if strategy.tp == 1 or strategy.pp > 1:
        yield _of("train_batch_size", total, f"sequences per iteration, over {replicas}")
    yield _of("train_micro_batch_size_per_gpu", strategy.micro_batch, "sequences per micro-batch")
    steps = f"micro-batches per iteration: {total} sequences over {replicas}"
    yield _of("gradient_accumulation_steps", strategy.num_micro_batches, steps)
    if strategy.tp > 1 and strategy.pp == 1:
        why = "replicas; stands for train_batch_size, which AutoTP would count over all ranks"
        yield _of("data_parallel_size", strategy.dp, why)
    elif strategy.cp > 1:
        why = "replicas; with sequence_parallel_size the mesh of the ranks"
        yield _of("data_parallel_size", strategy.dp, why)


def _numbers(context: Context, strategy: Strategy) -> Iterator[Setting]:
    precision, name = context.job.precision, context.traits.optimizer.name
    yield _of(f"{precision}.enabled", True, "products in 16 bits, master weights in fp32")
    if name == "adam-bf16":
        why = "master weights, gradients and moments in bf16"
        yield _of("bf16.bf16_master_weights_and_grads", True, why)
        yield _of("bf16.bf16_optimizer_states", True, why)
    why = "its learning rate and betas are yours to set under optimizer.params"
    yield _of("optimizer.type", OPTIMIZER_TYPES[name], why)
    if name == "adam-bf16" and strategy.offload == "none":
        yield _of("optimizer.params.torch_adam", True, "the fused Adam keeps moments in fp32")
    if name == "sgd-momentum":
        yield _of("optimizer.params.momentum", 0.9, "keeps the momentum the plan counts")
    if name in UNTESTED and strategy.zero_stage:
        yield _of("zero_allow_untested_optimizer", True, "ZeRO asks for it with this optimizer")


def _zero(context: Context, strategy: Strategy) -> Iterator[Setting]:
    stage, traits = strategy.zero_stage, context.traits
    shared = ("nothing is", "optimizer states are", "states and gradients are")
    what = (*shared, "states, gradients and weights are")[stage]
    yield _of(f"{_ZERO}.stage", stage, f"{what} sharded over {strategy.dp * strategy.cp} ranks")
    if not stage:
        return
    if strategy.pp == 1:
        overlaps = traits.overlap.overlaps_gradient_reduction
        why = "gradients are reduced beside the backward pass, as the plan assumes"
        yield _of(f"{_ZERO}.overlap_comm", overlaps, why)
    elements = int(traits.overheads.bucket_elements)
    for name in ("reduce_bucket_size", "allgather_bucket_size") if elements else ():
        yield _of(f"{_ZERO}.{name}", elements, "elements per message, as the plan assumes")
    if traits.optimizer.name == "muon" and stage == 3:
        yield _of(f"{_ZERO}.reduce_scatter", False, "Muon under stage 3 needs whole gradients")
    ranks = secondary_ranks(context, strategy)
    if ranks > 1:
        why = "backward gathers weights inside the node, from a second copy there"
        yield _of(f"{_ZERO}.zero_hpz_partition_size", ranks, why)


def _offload(strategy: Strategy) -> Iterator[Setting]:
    states, _, place = strategy.offload.partition(":")
    sections = {"optimizer": "offload_optimizer", "parameters": "offload_param"}
    for state in states.split("+") if place else ():
        section = f"{_ZERO}.{sections[state]}"
        yield _of(f"{section}.device", _DEVICES[place], f"{state} do not fit into HBM beside")
        if place == "nvme":
            why = "change it to where the nodes mount their NVMe drives"
            yield _of(f"{section}.nvme_path", NVME_PATH, why)
        yield _of(f"{section}.pin_memory", True, "transfers at the link's rate")
        if state == "optimizer" and strategy.offload_percent < 100:
            why = "share of the states that goes, the rest stays in HBM"
            yield _of(f"{section}.ratio", strategy.offload_percent / 100, why)


def _axes(strategy: Strategy) -> Iterator[Setting]:
    if strategy.tp > 1 and strategy.pp == 1:
        why = "ranks that split every layer (AutoTP, neighbouring ranks)"
        yield _of("tensor_parallel.autotp_size", strategy.tp, why)
    if strategy.cp > 1:
        why = "ranks that split the sequence (Ulysses)"
        yield _of("sequence_parallel_size", strategy.cp, why)
    if strategy.ep > 1:
        yield _of("expert_parallel.enabled", True, "experts are split over ranks (AutoEP)")
        yield _of("expert_parallel.autoep_size", strategy.ep, "ranks that split the experts")
    if strategy.pp > 1:
        why = "your script gives it to PipelineModule(num_stages=...); DeepSpeed does not"
        yield _of("pipeline.stages", strategy.pp, why)


def _script_block(context: Context, strategy: Strategy) -> Iterator[Setting]:
    """What no key of DeepSpeed can say, for the script to read."""
    yield _of(f"{SCRIPT}.sequence_length", context.job.seq_len, "tokens per sequence of your data")
    if strategy.tp > 1 and strategy.pp > 1:
        why = "num_mp of your PipeModelDataParallelTopology; the layers must split themselves"
        yield _of(f"{SCRIPT}.tensor_parallel_size", strategy.tp, why)
    if strategy.pp > 1:
        why = "transformer blocks of every stage, for your PipelineModule"
        yield _of(f"{SCRIPT}.layers_per_stage", list(strategy.layers_per_stage), why)
    selective, full, _ = strategy.policy_counts
    if any(selective):
        why = "of those, the first ones recompute the modules below"
        yield _of(f"{SCRIPT}.selective_layers_per_stage", list(selective), why)
        modules = strategy.recompute_modules
        names = context.traits.recompute.selected if modules is None else modules
        yield _of(f"{SCRIPT}.recompute_modules", list(names), "what those recompute")
    if any(full):
        why = "of those, how many run under activation checkpointing"
        yield _of(f"{SCRIPT}.recompute_layers_per_stage", list(full), why)


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
    must = f"; under {SCRIPT} it finds what it must do: {', '.join(tasks)}" if tasks else ""
    return f"your training script, which calls deepspeed.initialize{must}"

"""Rules of the batch, the numbers, the optimizer and the schedule.

``enforced`` says whether DeepSpeedConfig itself refuses the file; what only the engine asserts, or
nothing does, is not. Rules look at values of the right kind only: others are findings already.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.rules import Refused, Rules, Violations
from planner.formats.settings import as_number
from planner.spelling import did_you_mean

rule = Rules(DeepspeedView)
_CONFIG = "deepspeed/runtime/config.py"
_ENGINE = "deepspeed/runtime/engine.py"
_MADE = f"{_ENGINE} makes them"
_DTYPES = ("fp16", "bf16", "fp32")
# Of the removed keys, those that another stands for.
_REPLACED = {
    "amp": "bf16, fp16 or torch_autocast",
    "curriculum_learning": "data_efficiency.data_sampling.curriculum_learning",
    "elasticity": f"{keys.TOTAL}, {keys.MICRO} and {keys.STEPS}",
}
# Optimizers of older releases, with what is nearest to them.
_ONE_BIT = {"onebitadam": "AdamW", "onebitlamb": "Lamb", "zerooneadam": "AdamW"}
_OPERATION, _TAGS = "gradient_allreduce_op", "checkpoint.tag_validation"
_MANAGED = "managed_gradient_accumulation"


def replicas(file: DeepspeedView) -> int:
    """Data-parallel replicas on the world's ranks, rounded down."""
    if file.stages > 1:
        return file.num_gpus // (file.stages * file.script_tp)
    return file.num_gpus // (file.autotp * file.sequence)


rule(
    _CONFIG,
    name="batch_size_given",
    holds="Either train_batch_size or train_micro_batch_size_per_gpu is given.",
    key=keys.TOTAL,
    when=lambda file: keys.TOTAL not in file.settings and keys.MICRO not in file.settings,
    says=f"no batch size; given none, needed is {keys.TOTAL} or {keys.MICRO}",
)


@rule(_CONFIG)
def batch_triple_adds_up(file: DeepspeedView) -> Violations:
    """train_batch_size is micro-batch times steps times replicas."""
    total, micro, steps = (file.size(key) for key in (keys.TOTAL, keys.MICRO, keys.STEPS))
    counts = {replicas(file)} | ({file.num_gpus} if file.counts_all_ranks else set())
    if not total:
        return
    if not micro and not steps:
        if all(count and total % count for count in counts):
            yield keys.TOTAL, f"{total} sequence(s) over {min(counts)} replicas leave a rest"
        return
    per_step = (micro or 1) * (steps or 1)
    if micro and steps:
        fits = any(total == per_step * count for count in counts)
    else:
        fits = any(count and total % (per_step * count) == 0 for count in counts)
    if not fits:
        of_step = f", {micro} per micro-batch" if micro else ""
        number = f", {steps} step(s)" if steps else ""
        needed = f"train_batch_size = micro-batch x steps x {min(counts)} replicas"
        given = f"{total} sequence(s){of_step}{number}"
        yield keys.TOTAL, f"the batch does not add up; given {given}, needed is {needed}"


@rule(_CONFIG)
def key_not_removed(file: DeepspeedView) -> Violations:
    """No key stands there whose feature DeepSpeed has removed."""
    for key in [each for each in keys.listed_in("removed") if each in file.settings]:
        instead = f", or {_REPLACED[key]} in its place" if key in _REPLACED else ""
        yield key, f"DeepSpeed removed {key} and refuses it; allowed is to leave it out{instead}"


@rule(_CONFIG, key="fp16.enabled", says="bf16 and fp16 are both on; allowed is one of them")
def one_precision(file: DeepspeedView) -> bool:
    """bf16 and fp16 are not both enabled."""
    return file["bf16.enabled"] is True and file["fp16.enabled"] is True


@rule.unenforced(
    f"{_CONFIG}: both default to off",
    key="bf16.enabled",
    says="trains in fp32: neither bf16 nor fp16 is enabled",
    severity="warning",
)
def sixteen_bits_on(file: DeepspeedView) -> bool:
    """One of bf16, fp16 and torch_autocast is enabled, or bf16 and fp16 are both off."""
    sections = [file[key] for key in (*keys.ENABLED, "torch_autocast.enabled")]
    is_meant = sections[:2] == [False, False]
    return not is_meant and not any(each in (True, "auto") for each in sections)


@rule(_CONFIG, says="works on sharded states; given stage 0, allowed are 1, 2 and 3")
def sixteen_bit_master_needs_sharding(file: DeepspeedView) -> list[str]:
    """Master weights and states in 16 bits need stage 1, 2 or 3."""
    small = (keys.MASTER, "fp16.fp16_master_weights_and_grads", keys.STATES)
    return [key for key in small if file[key] is True and file.stage == 0]


@rule(_CONFIG, key=keys.STATES, says="needs bf16_master_weights_and_grads; given without")
def bf16_states_need_bf16_master(file: DeepspeedView) -> bool:
    """Optimizer states in bf16 need master weights in bf16."""
    return file[keys.STATES] is True and file[keys.MASTER] is not True


@rule(
    "deepspeed/runtime/precision_config.py",
    says="dynamic scaling needs more than 0; given {given:g}",
)
def loss_scale_can_move(file: DeepspeedView) -> list[str]:
    """Dynamic loss scaling has a window and a least scale above 0."""
    is_dynamic = file["fp16.enabled"] is True and not as_number(file["fp16.loss_scale"])
    limits = ("fp16.loss_scale_window", "fp16.min_loss_scale") if is_dynamic else ()
    numbers = {key: as_number(file[key]) for key in limits}
    return [key for key, value in numbers.items() if value is not None and value <= 0]


@rule(_CONFIG, says=f"unknown type; given {{given}}, allowed are {', '.join(_DTYPES)}")
def communication_type_known(file: DeepspeedView) -> list[str]:
    """Types of communication are fp16, bf16 or fp32."""
    known = ("communication_data_type", "seq_parallel_communication_data_type")
    return [key for key in known if file.stated(key).lower() not in ("", *_DTYPES)]


@rule(_CONFIG, key=_OPERATION)
def gradients_sum_below_stage_3(file: DeepspeedView) -> Refused:
    """gradient_allreduce_op is mean or sum, and mean under stage 3."""
    value = file[_OPERATION]
    name = value.lower() if isinstance(value, str) else value
    is_unknown = _OPERATION in file.settings and name not in ("mean", "sum")
    return {
        f"unknown operation; given {value}, allowed are mean and sum": is_unknown,
        "sum is not there under stage 3; allowed is mean": name == "sum" and file.stage == 3,
    }


@rule(_CONFIG, key=_TAGS, says="unknown way; given {given}, allowed are WARN, IGNORE, FAIL")
def checkpoint_tags_known(file: DeepspeedView) -> bool:
    """checkpoint.tag_validation is warn, ignore or fail."""
    value = file[_TAGS]
    return isinstance(value, str) and value.upper() not in ("WARN", "IGNORE", "FAIL")


rule.unenforced(
    f"{_ENGINE} raises when it makes the optimizer",
    name="clipping_is_no_optimizer_parameter",
    holds="Clipping is set at the top, not under optimizer.params.",
    key="optimizer.params.max_grad_norm",
    when=lambda file: "optimizer.params.max_grad_norm" in file.settings,
    says="the engine refuses it; allowed is gradient_clipping at the top",
)


@rule.unenforced(f"{_ENGINE} makes it, or PyTorch")
def optimizer_is_known(file: DeepspeedView) -> Violations:
    """optimizer.type is DeepSpeed's own, in any case, or PyTorch's, as it is spelled there."""
    kind = file.stated(keys.TYPE)
    if kind and not keys.is_optimizer_type(kind):
        known = (*keys.listed_in("optimizers"), *keys.listed_in("torch_optimizers"))
        yield keys.TYPE, _unknown_type(kind, known)


@rule.unenforced(f"{_ENGINE} asserts it when it makes the schedule")
def scheduler_is_known(file: DeepspeedView) -> Violations:
    """scheduler.type is DeepSpeed's own or PyTorch's."""
    kind, known = file.stated("scheduler.type"), keys.listed_in("schedulers")
    if kind not in ("", *known):
        yield "scheduler.type", _unknown_type(kind, known)


def _unknown_type(kind: str, known: tuple[str, ...]) -> str:
    if kind.lower() in _ONE_BIT:
        instead = _ONE_BIT[kind.lower()]
        return f"DeepSpeed removed {kind}; {instead} in its place; 1-bit is not covered here"
    hint = did_you_mean(kind, known) or f"allowed are {', '.join(known)}"
    return f"neither DeepSpeed nor PyTorch has it; given {kind[:60]}, {hint}"


@rule.unenforced(
    f"{_ENGINE} asserts it when it makes the optimizer",
    key=keys.TYPE,
    says=f"ZeRO takes {{given}} only with {keys.UNTESTED}; given without",
)
def untested_optimizer_is_allowed(file: DeepspeedView) -> bool:
    """ZeRO is told that an optimizer it was not tested with is meant."""
    known = ("sgd", "adafactor", "rmsprop", "adadelta", "adamax", "nadam", "radam", "lamb", "asgd")
    is_untested = file.optimizer in known and file.stage > 0
    return is_untested and file[keys.UNTESTED] is not True


@rule.unenforced(f"{_ENGINE} asserts it at start", key=_MANAGED)
def unmanaged_accumulation_is_plain(file: DeepspeedView) -> Refused:
    """Unmanaged accumulation has no pipeline and no overlapped stage 1 or 3."""
    overlap = file["zero_optimization.overlap_comm"]
    overlaps = {1: overlap is True, 3: overlap is not False}.get(file.stage, False)
    allowed = "allowed under stage 2, or without overlap_comm"
    refused = {
        "a pipeline needs managed accumulation; given false, allowed is true": file.stages > 1,
        f"given false with overlap_comm; {allowed}": overlaps,
    }
    return refused if file[_MANAGED] is False else {}


@rule.unenforced(f"{_MADE}: Python refuses the argument")
def parameters_are_known(file: DeepspeedView) -> Violations:
    """Optimizer and scheduler take the parameters that are given."""
    for params, schema, names in _parameters(file):
        known = list(schema["properties"])
        for name in [each for each in names if each not in (*known, "max_grad_norm")]:
            hint = did_you_mean(name, known) or f"it takes {', '.join(known)}"
            yield f"{params}.{name}", f"no parameter of {schema['title']}; {hint}"


@rule.unenforced(f"{_MADE}: Python misses the argument")
def needed_parameters_are_given(file: DeepspeedView) -> Violations:
    """Schedules that end are told when."""
    for params, schema, names in _parameters(file):
        for name in schema["required"]:
            if name not in names:
                yield params, f"{schema['title']} needs {name}"


@rule.unenforced(f"{_MADE}, and computes with them")
def parameters_are_numbers(file: DeepspeedView) -> Violations:
    """Learning rates, decays and steps are numbers, without quotes."""
    for params, schema, names in _parameters(file):
        for name in names:
            value = file[f"{params}.{name}"]
            texts = value if isinstance(value, list) else [value]
            wrong = [text for text in texts if isinstance(text, str) and text != keys.AUTO]
            is_text = schema["properties"].get(name, {}).get("type") == "string"
            if wrong and not is_text:
                message = f"a number is needed, without quotes; given {wrong[0][:40]!r}"
                yield f"{params}.{name}", message


def _parameters(file: DeepspeedView) -> Iterator[tuple[str, Mapping[str, Any], list[str]]]:
    """Yield the path of parameters, what a known type takes, and the names that are given."""
    for section, schemas in keys.schema()["$defs"]["parameters"].items():
        kind, start = file.stated(f"{section}.type").lower(), f"{section}.params."
        if kind in schemas:
            names = [key.removeprefix(start) for key in file.settings if key.startswith(start)]
            yield start[:-1], schemas[kind], [name for name in names if "." not in name]

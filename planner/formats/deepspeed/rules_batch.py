"""Rules of the batch, the numbers and the optimizer."""

from collections.abc import Iterator

from planner.formats.deepspeed.decisions import (
    Settings,
    autotp,
    counts_all_ranks,
    given,
    size,
    stage,
    stages,
)
from planner.formats.deepspeed.known import (
    AUTO,
    SCRIPT,
    is_optimizer_type,
    number,
    optimizer_types,
    removed_keys,
    scheduler_types,
)
from planner.formats.format import Broken, World, rule
from planner.spelling import did_you_mean

_CONFIG = "deepspeed/runtime/config.py"
_ENGINE = "deepspeed/runtime/engine.py"
TOTAL, MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
_UNTESTED = ("sgd", "adafactor", "rmsprop", "adadelta", "adamax", "nadam", "radam", "lamb", "asgd")
_DTYPES = ("fp16", "bf16", "fp32")
_REPLACED = {
    "amp": "bf16, fp16 or torch_autocast",
    "curriculum_learning": "data_efficiency.data_sampling.curriculum_learning",
    "elasticity": f"{TOTAL}, {MICRO} and {STEPS}",
}
"""Of the removed keys, those that another stands for."""
_ONE_BIT = {"onebitadam": "AdamW", "onebitlamb": "Lamb", "zerooneadam": "AdamW"}
"""Optimizers of older releases, with what is nearest to them."""


def replicas(settings: Settings, world: World) -> int:
    """Data-parallel replicas on the world's ranks, rounded down."""
    if stages(settings) > 1:
        split = size(settings, f"{SCRIPT}.tensor_parallel_size") or 1
        return world.num_gpus // (stages(settings) * split)
    sequence = size(settings, "sequence_parallel_size") or 1
    return world.num_gpus // (autotp(settings) * sequence)


def batch_size_given(settings: Settings, _: World) -> Iterator[Broken]:
    """Either train_batch_size or train_micro_batch_size_per_gpu is given."""
    if TOTAL not in settings and MICRO not in settings:
        yield Broken(key=TOTAL, message=f"no batch size; given none, needed is {TOTAL} or {MICRO}")


def batch_triple_adds_up(settings: Settings, world: World) -> Iterator[Broken]:
    """train_batch_size is micro-batch times steps times replicas."""
    total, micro, steps = (size(settings, key) for key in (TOTAL, MICRO, STEPS))
    counts = {replicas(settings, world)}
    if counts_all_ranks(settings):
        counts.add(world.num_gpus)
    if not total or (not micro and not steps):
        micro = micro or 1
        steps = steps or 1
        if total and all(count and total % count for count in counts):
            yield Broken(
                key=TOTAL, message=f"{total} sequence(s) over {min(counts)} replicas leave a rest"
            )
        return
    per_step = (micro or 1) * (steps or 1)
    fits = [count for count in counts if count and total % (per_step * count) == 0]
    if micro and steps:
        fits = [count for count in counts if total == per_step * count]
    if not fits:
        of_step = "" if micro is None else f", {micro} per micro-batch"
        number = "" if steps is None else f", {steps} step(s)"
        given_text = f"{total} sequence(s){of_step}{number}"
        allowed = f"train_batch_size = micro-batch x steps x {min(counts)} replicas"
        yield Broken(
            key=TOTAL, message=f"the batch does not add up; given {given_text}, needed is {allowed}"
        )


def key_not_removed(settings: Settings, _: World) -> Iterator[Broken]:
    """No key stands there whose feature DeepSpeed has removed."""
    for key in removed_keys():
        if key in settings:
            instead = f", or {_REPLACED[key]} in its place" if key in _REPLACED else ""
            message = f"DeepSpeed removed {key} and refuses it; allowed is to leave it out{instead}"
            yield Broken(key=key, message=message)


def one_precision(settings: Settings, _: World) -> Iterator[Broken]:
    """bf16 and fp16 are not both enabled."""
    bf16 = given(settings, "bf16.enabled") is True
    if bf16 and given(settings, "fp16.enabled") is True:
        yield Broken(
            key="fp16.enabled", message="bf16 and fp16 are both on; allowed is one of them"
        )


def sixteen_bits_on(settings: Settings, _: World) -> Iterator[Broken]:
    """One of bf16, fp16 and torch_autocast is enabled."""
    sections = ("bf16", "bfloat16", "fp16", "torch_autocast")
    if not any(given(settings, f"{name}.enabled") in (True, "auto") for name in sections):
        yield Broken(key="bf16.enabled", message="trains in fp32: neither bf16 nor fp16 is enabled")


def sixteen_bit_master_needs_sharding(settings: Settings, _: World) -> Iterator[Broken]:
    """Master weights and states in 16 bits need stage 1, 2 or 3."""
    keys = [f"{name}.{name}_master_weights_and_grads" for name in ("bf16", "fp16")]
    for key in (*keys, "bf16.bf16_optimizer_states"):
        if given(settings, key) is True and stage(settings) == 0:
            yield Broken(
                key=key, message="works on sharded states; given stage 0, allowed are 1, 2 and 3"
            )


def bf16_states_need_bf16_master(settings: Settings, _: World) -> Iterator[Broken]:
    """Optimizer states in bf16 need master weights in bf16."""
    key = "bf16.bf16_optimizer_states"
    master = given(settings, "bf16.bf16_master_weights_and_grads") is True
    if given(settings, key) is True and not master:
        yield Broken(key=key, message="needs bf16_master_weights_and_grads; given without")


def loss_scale_can_move(settings: Settings, _: World) -> Iterator[Broken]:
    """Dynamic loss scaling has a window and a least scale above 0."""
    scale = number(given(settings, "fp16.loss_scale")) or 0
    if given(settings, "fp16.enabled") is not True or scale != 0:
        return
    for name in ("loss_scale_window", "min_loss_scale"):
        value = number(given(settings, f"fp16.{name}"))
        if value is not None and value <= 0:
            yield Broken(
                key=f"fp16.{name}", message=f"dynamic scaling needs more than 0; given {value:g}"
            )


def communication_type_known(settings: Settings, _: World) -> Iterator[Broken]:
    """Types of communication are fp16, bf16 or fp32."""
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = given(settings, key)
        if isinstance(value, str) and value != "auto" and value.lower() not in _DTYPES:
            yield Broken(
                key=key, message=f"unknown type; given {value}, allowed are {', '.join(_DTYPES)}"
            )


def gradients_sum_below_stage_3(settings: Settings, _: World) -> Iterator[Broken]:
    """gradient_allreduce_op is mean or sum, and mean under stage 3."""
    key = "gradient_allreduce_op"
    value = given(settings, key)
    name = value.lower() if isinstance(value, str) else value
    if key in settings and name not in ("mean", "sum"):
        yield Broken(key=key, message=f"unknown operation; given {value}, allowed are mean and sum")
    elif name == "sum" and stage(settings) == 3:
        yield Broken(key=key, message="sum is not there under stage 3; allowed is mean")


def checkpoint_tags_known(settings: Settings, _: World) -> Iterator[Broken]:
    """checkpoint.tag_validation is warn, ignore or fail."""
    key = "checkpoint.tag_validation"
    value = given(settings, key)
    known = ("WARN", "IGNORE", "FAIL")
    if isinstance(value, str) and value.upper() not in known:
        yield Broken(key=key, message=f"unknown way; given {value}, allowed are {', '.join(known)}")


def clipping_is_no_optimizer_parameter(settings: Settings, _: World) -> Iterator[Broken]:
    """Clipping is set at the top, not under optimizer.params."""
    key = "optimizer.params.max_grad_norm"
    if key in settings:
        yield Broken(
            key=key, message="the engine refuses it; allowed is gradient_clipping at the top"
        )


def optimizer_is_known(settings: Settings, _: World) -> Iterator[Broken]:
    """optimizer.type is DeepSpeed's own, in any case, or PyTorch's, as it is spelled there."""
    kind = given(settings, "optimizer.type")
    if isinstance(kind, str) and kind != AUTO and not is_optimizer_type(kind):
        yield Broken(key="optimizer.type", message=_unknown_type(kind, optimizer_types()))


def scheduler_is_known(settings: Settings, _: World) -> Iterator[Broken]:
    """scheduler.type is DeepSpeed's own or PyTorch's."""
    kind = given(settings, "scheduler.type")
    if isinstance(kind, str) and kind != AUTO and kind not in scheduler_types():
        yield Broken(key="scheduler.type", message=_unknown_type(kind, scheduler_types()))


def _unknown_type(kind: str, known: tuple[str, ...]) -> str:
    if kind.lower() in _ONE_BIT:
        return f"DeepSpeed removed {kind}; {_ONE_BIT[kind.lower()]} in its place"
    hint = did_you_mean(kind, known) or f"allowed are {', '.join(known)}"
    return f"neither DeepSpeed nor PyTorch has it; given {kind[:60]}, {hint}"


def untested_optimizer_is_allowed(settings: Settings, _: World) -> Iterator[Broken]:
    """ZeRO is told that an optimizer it was not tested with is meant."""
    key, switch = "optimizer.type", "zero_allow_untested_optimizer"
    kind = given(settings, key)
    is_untested = isinstance(kind, str) and kind.lower() in _UNTESTED
    if is_untested and stage(settings) > 0 and given(settings, switch) is not True:
        yield Broken(key=key, message=f"ZeRO takes {kind} only with {switch}; given without")


def unmanaged_accumulation_is_plain(settings: Settings, _: World) -> Iterator[Broken]:
    """Unmanaged accumulation has no pipeline and no overlapped stage 1 or 3."""
    key = "managed_gradient_accumulation"
    if given(settings, key) is not False:
        return
    if stages(settings) > 1:
        yield Broken(
            key=key, message="a pipeline needs managed accumulation; given false, allowed is true"
        )
    overlap = given(settings, "zero_optimization.overlap_comm")
    if (overlap is True and stage(settings) == 1) or (
        overlap is not False and stage(settings) == 3
    ):
        yield Broken(
            key=key,
            message="given false with overlap_comm; allowed under stage 2, or without overlap_comm",
        )


_SANITY = f"{_ENGINE} asserts it at start"
BATCH_RULES = (
    rule(batch_size_given, _CONFIG),
    rule(batch_triple_adds_up, _CONFIG),
    rule(key_not_removed, _CONFIG),
    rule(one_precision, _CONFIG),
    rule(sixteen_bits_on, f"{_CONFIG}: both default to off", severity="warning", enforced=False),
    rule(sixteen_bit_master_needs_sharding, _CONFIG),
    rule(bf16_states_need_bf16_master, _CONFIG),
    rule(loss_scale_can_move, "deepspeed/runtime/precision_config.py"),
    rule(communication_type_known, _CONFIG),
    rule(gradients_sum_below_stage_3, _CONFIG),
    rule(checkpoint_tags_known, _CONFIG),
    rule(
        clipping_is_no_optimizer_parameter,
        f"{_ENGINE} raises when it makes the optimizer",
        enforced=False,
    ),
    rule(optimizer_is_known, f"{_ENGINE} makes it, or PyTorch", enforced=False),
    rule(scheduler_is_known, f"{_ENGINE} asserts it when it makes the schedule", enforced=False),
    rule(
        untested_optimizer_is_allowed,
        f"{_ENGINE} asserts it when it makes the optimizer",
        enforced=False,
    ),
    rule(unmanaged_accumulation_is_plain, _SANITY, enforced=False),
)

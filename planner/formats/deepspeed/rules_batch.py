"""Rules of the batch, the numbers, the optimizer and the schedule.

``enforced`` says whether DeepSpeedConfig itself refuses the file; what only the engine asserts, or
nothing does, is not. Rules look at values of the right kind only: others are findings already.
"""

from collections.abc import Iterator

from planner.formats.deepspeed import keys
from planner.formats.deepspeed.keys import DeepspeedView
from planner.formats.format import World
from planner.formats.rules import Rules, Violations
from planner.formats.settings import Settings, as_number, given
from planner.spelling import did_you_mean

rule = Rules(DeepspeedView)
_CONFIG = "deepspeed/runtime/config.py"
_ENGINE = "deepspeed/runtime/engine.py"
_SANITY = f"{_ENGINE} asserts it at start"
_UNTESTED = ("sgd", "adafactor", "rmsprop", "adadelta", "adamax", "nadam", "radam", "lamb", "asgd")
_DTYPES = ("fp16", "bf16", "fp32")
_REPLACED = {
    "amp": "bf16, fp16 or torch_autocast",
    "curriculum_learning": "data_efficiency.data_sampling.curriculum_learning",
    "elasticity": f"{keys.TOTAL}, {keys.MICRO} and {keys.STEPS}",
}
"""Of the removed keys, those that another stands for."""
_ONE_BIT = {"onebitadam": "AdamW", "onebitlamb": "Lamb", "zerooneadam": "AdamW"}
"""Optimizers of older releases, with what is nearest to them."""


def replicas(settings: Settings, world: World) -> int:
    """Data-parallel replicas on the world's ranks, rounded down."""
    if keys.stages(settings) > 1:
        split = keys.size(settings, keys.SCRIPT_TP) or 1
        return world.num_gpus // (keys.stages(settings) * split)
    sequence = keys.size(settings, keys.SP) or 1
    return world.num_gpus // (keys.autotp(settings) * sequence)


@rule(
    _CONFIG,
    key=keys.TOTAL,
    says=f"no batch size; given none, needed is {keys.TOTAL} or {keys.MICRO}",
)
def batch_size_given(file: DeepspeedView) -> bool:
    """Either train_batch_size or train_micro_batch_size_per_gpu is given."""
    return keys.TOTAL not in file.settings and keys.MICRO not in file.settings


@rule(_CONFIG)
def batch_triple_adds_up(file: DeepspeedView) -> Violations:
    """train_batch_size is micro-batch times steps times replicas."""
    total, micro, steps = (
        keys.size(file.settings, key) for key in (keys.TOTAL, keys.MICRO, keys.STEPS)
    )
    counts = {replicas(file.settings, file.world)}
    if keys.counts_all_ranks(file.settings):
        counts.add(file.world.num_gpus)
    if not total or (not micro and not steps):
        micro = micro or 1
        steps = steps or 1
        if total and all(count and total % count for count in counts):
            yield keys.TOTAL, f"{total} sequence(s) over {min(counts)} replicas leave a rest"
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
        yield keys.TOTAL, f"the batch does not add up; given {given_text}, needed is {allowed}"


@rule(_CONFIG)
def key_not_removed(file: DeepspeedView) -> Violations:
    """No key stands there whose feature DeepSpeed has removed."""
    for key in keys.listed_in("removed"):
        if key in file.settings:
            instead = f", or {_REPLACED[key]} in its place" if key in _REPLACED else ""
            message = f"DeepSpeed removed {key} and refuses it; allowed is to leave it out{instead}"
            yield key, message


@rule(_CONFIG, key="fp16.enabled", says="bf16 and fp16 are both on; allowed is one of them")
def one_precision(file: DeepspeedView) -> bool:
    """bf16 and fp16 are not both enabled."""
    bf16 = file["bf16.enabled"] is True
    return bool(bf16 and file["fp16.enabled"] is True)


@rule(
    f"{_CONFIG}: both default to off",
    key="bf16.enabled",
    says="trains in fp32: neither bf16 nor fp16 is enabled",
    severity="warning",
    enforced=False,
)
def sixteen_bits_on(file: DeepspeedView) -> bool:
    """One of bf16, fp16 and torch_autocast is enabled, or bf16 and fp16 are both off."""
    sections = [file[key] for key in (*keys.ENABLED, "torch_autocast.enabled")]
    is_meant = sections[:2] == [False, False]
    return not is_meant and not any(each in (True, "auto") for each in sections)


@rule(_CONFIG)
def sixteen_bit_master_needs_sharding(file: DeepspeedView) -> Violations:
    """Master weights and states in 16 bits need stage 1, 2 or 3."""
    names = [f"{name}.{name}_master_weights_and_grads" for name in ("bf16", "fp16")]
    for key in (*names, keys.STATES):
        if file[key] is True and file.stage == 0:
            yield key, "works on sharded states; given stage 0, allowed are 1, 2 and 3"


@rule(_CONFIG, key=keys.STATES, says="needs bf16_master_weights_and_grads; given without")
def bf16_states_need_bf16_master(file: DeepspeedView) -> bool:
    """Optimizer states in bf16 need master weights in bf16."""
    master = file[keys.MASTER] is True
    return file[keys.STATES] is True and not master


@rule("deepspeed/runtime/precision_config.py")
def loss_scale_can_move(file: DeepspeedView) -> Violations:
    """Dynamic loss scaling has a window and a least scale above 0."""
    scale = as_number(file["fp16.loss_scale"]) or 0
    if file["fp16.enabled"] is not True or scale != 0:
        return
    for name in ("loss_scale_window", "min_loss_scale"):
        value = as_number(file[f"fp16.{name}"])
        if value is not None and value <= 0:
            yield f"fp16.{name}", f"dynamic scaling needs more than 0; given {value:g}"


@rule(_CONFIG)
def communication_type_known(file: DeepspeedView) -> Violations:
    """Types of communication are fp16, bf16 or fp32."""
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = file[key]
        if isinstance(value, str) and value != "auto" and value.lower() not in _DTYPES:
            yield key, f"unknown type; given {value}, allowed are {', '.join(_DTYPES)}"


@rule(_CONFIG)
def gradients_sum_below_stage_3(file: DeepspeedView) -> Violations:
    """gradient_allreduce_op is mean or sum, and mean under stage 3."""
    key = "gradient_allreduce_op"
    value = file[key]
    name = value.lower() if isinstance(value, str) else value
    if key in file.settings and name not in ("mean", "sum"):
        yield key, f"unknown operation; given {value}, allowed are mean and sum"
    elif name == "sum" and file.stage == 3:
        yield key, "sum is not there under stage 3; allowed is mean"


@rule(_CONFIG)
def checkpoint_tags_known(file: DeepspeedView) -> Violations:
    """checkpoint.tag_validation is warn, ignore or fail."""
    key = "checkpoint.tag_validation"
    value = file[key]
    known = ("WARN", "IGNORE", "FAIL")
    if isinstance(value, str) and value.upper() not in known:
        yield key, f"unknown way; given {value}, allowed are {', '.join(known)}"


@rule(
    f"{_ENGINE} raises when it makes the optimizer",
    key="optimizer.params.max_grad_norm",
    says="the engine refuses it; allowed is gradient_clipping at the top",
    enforced=False,
)
def clipping_is_no_optimizer_parameter(file: DeepspeedView) -> bool:
    """Clipping is set at the top, not under optimizer.params."""
    return "optimizer.params.max_grad_norm" in file.settings


@rule(f"{_ENGINE} makes it, or PyTorch", enforced=False)
def optimizer_is_known(file: DeepspeedView) -> Violations:
    """optimizer.type is DeepSpeed's own, in any case, or PyTorch's, as it is spelled there."""
    kind = file[keys.TYPE]
    if isinstance(kind, str) and kind != keys.AUTO and not keys.is_optimizer_type(kind):
        yield (
            keys.TYPE,
            _unknown_type(
                kind, (*keys.listed_in("optimizers"), *keys.listed_in("torch_optimizers"))
            ),
        )


@rule(f"{_ENGINE} asserts it when it makes the schedule", enforced=False)
def scheduler_is_known(file: DeepspeedView) -> Violations:
    """scheduler.type is DeepSpeed's own or PyTorch's."""
    kind = file["scheduler.type"]
    if isinstance(kind, str) and kind != keys.AUTO and kind not in keys.listed_in("schedulers"):
        yield "scheduler.type", _unknown_type(kind, keys.listed_in("schedulers"))


def _unknown_type(kind: str, known: tuple[str, ...]) -> str:
    if kind.lower() in _ONE_BIT:
        instead = _ONE_BIT[kind.lower()]
        return f"DeepSpeed removed {kind}; {instead} in its place; 1-bit is not covered here"
    hint = did_you_mean(kind, known) or f"allowed are {', '.join(known)}"
    return f"neither DeepSpeed nor PyTorch has it; given {kind[:60]}, {hint}"


@rule(
    f"{_ENGINE} asserts it when it makes the optimizer",
    key=keys.TYPE,
    says=f"ZeRO takes {{given}} only with {keys.UNTESTED}; given without",
    enforced=False,
)
def untested_optimizer_is_allowed(file: DeepspeedView) -> bool:
    """ZeRO is told that an optimizer it was not tested with is meant."""
    switch = keys.UNTESTED
    kind = file[keys.TYPE]
    is_untested = isinstance(kind, str) and kind.lower() in _UNTESTED
    return is_untested and file.stage > 0 and file[switch] is not True


@rule(_SANITY, enforced=False)
def unmanaged_accumulation_is_plain(file: DeepspeedView) -> Violations:
    """Unmanaged accumulation has no pipeline and no overlapped stage 1 or 3."""
    key = "managed_gradient_accumulation"
    if file[key] is not False:
        return
    if file.stages > 1:
        yield key, "a pipeline needs managed accumulation; given false, allowed is true"
    overlap = file["zero_optimization.overlap_comm"]
    if (overlap is True and file.stage == 1) or (overlap is not False and file.stage == 3):
        yield key, "given false with overlap_comm; allowed under stage 2, or without overlap_comm"


_ADAM = "lr betas eps weight_decay bias_correction amsgrad"
_OF_ADAM = f"{_ADAM} torch_adam adam_w_mode adamw_mode set_grad_none fp32_optimizer_states fused"
_WARMUP = "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type last_batch_iteration"
_ONE_CYCLE = (
    "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size "
    "cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom "
    "cycle_max_mom decay_mom_rate last_batch_iteration"
)
TAKEN = {
    "optimizer": {
        "adam": _OF_ADAM,
        "adamw": _OF_ADAM,
        "lamb": f"{_ADAM} eps_inside_sqrt max_coeff min_coeff",
        "lion": "lr betas weight_decay set_grad_none fp32_optimizer_states",
        "adagrad": "lr eps weight_decay amsgrad fp32_optimizer_states",
    },
    "scheduler": {
        "warmuplr": _WARMUP,
        "warmupdecaylr": f"total_num_steps {_WARMUP}",
        "warmupcosinelr": (
            "total_num_steps warmup_min_ratio warmup_num_steps cos_min_ratio warmup_type "
            "last_batch_iteration"
        ),
        "onecycle": _ONE_CYCLE,
        "lrrangetest": (
            "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate "
            "lr_range_test_staircase last_batch_iteration"
        ),
    },
}
"""Names of parameters by type, from the signatures of DeepSpeed 0.19.8."""
NEEDED = {
    "warmupdecaylr": ("total_num_steps",),
    "warmupcosinelr": ("total_num_steps",),
    "onecycle": ("cycle_min_lr", "cycle_max_lr"),
}
WORDS = ("warmup_type",)
CLIPPING = "max_grad_norm"
"""Of which another rule speaks."""
_MADE = "deepspeed/runtime/engine.py makes them"


@rule(f"{_MADE}: Python refuses the argument", enforced=False)
def parameters_are_known(file: DeepspeedView) -> Violations:
    """Optimizer and scheduler take the parameters that are given."""
    for section, kind, names in _sections(file.settings):
        known = TAKEN[section][kind].split()
        for name in names:
            if name not in (*known, CLIPPING):
                hint = did_you_mean(name, known) or f"it takes {', '.join(known)}"
                yield f"{section}.params.{name}", f"no parameter of {kind}; {hint}"


@rule(f"{_MADE}: Python misses the argument", enforced=False)
def needed_parameters_are_given(file: DeepspeedView) -> Violations:
    """Schedules that end are told when."""
    for section, kind, names in _sections(file.settings):
        for name in NEEDED.get(kind, ()) if section == "scheduler" else ():
            if name not in names:
                yield f"{section}.params", f"{file[f'{section}.type']} needs {name}"


@rule(f"{_MADE}, and computes with them", enforced=False)
def parameters_are_numbers(file: DeepspeedView) -> Violations:
    """Learning rates, decays and steps are numbers, without quotes."""
    for section, _kind, names in _sections(file.settings):
        for name in names:
            value = file[f"{section}.params.{name}"]
            texts = value if isinstance(value, list) else [value]
            wrong = [text for text in texts if isinstance(text, str) and text != keys.AUTO]
            if wrong and name not in WORDS:
                message = f"a number is needed, without quotes; given {wrong[0][:40]!r}"
                yield f"{section}.params.{name}", message


def _sections(settings: Settings) -> Iterator[tuple[str, str, list[str]]]:
    """Section, type in small letters and names of parameters, of types that are known."""
    for section, kinds in TAKEN.items():
        kind, start = given(settings, f"{section}.type"), f"{section}.params."
        if isinstance(kind, str) and kind.lower() in kinds:
            names = [key.removeprefix(start) for key in settings if key.startswith(start)]
            yield section, kind.lower(), [name for name in names if "." not in name]

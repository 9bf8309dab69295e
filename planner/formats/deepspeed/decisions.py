"""What the keys of a DeepSpeed file decide, by the names of DECISIONS."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.formats.deepspeed.known import AUTO, SCRIPT, number, whole
from planner.formats.format import Value

Settings = Mapping[str, Value]
OPTIMIZERS = {
    "adam": "adam",
    "adamw": "adam",
    "sgd": "sgd",
    "lion": "lion",
    "adafactor": "adafactor",
    "muon": "muon",
}
"""By the type in lower case."""
_OFFLOADS = {
    ("none", "none"): "none",
    ("cpu", "none"): "optimizer:host",
    ("cpu", "cpu"): "optimizer+parameters:host",
    ("nvme", "none"): "optimizer:nvme",
    ("nvme", "nvme"): "optimizer+parameters:nvme",
}
"""By the devices of optimizer and parameters; other pairs are not modelled."""
_SCRIPT_DECISIONS = {
    "sequence_length": "seq_len",
    "layers_per_stage": "layers_per_stage",
    "selective_layers_per_stage": "selective_layers_per_stage",
    "recompute_layers_per_stage": "recompute_layers_per_stage",
    "recompute_modules": "recompute_modules",
}
OLD_SWITCHES = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}


def given(settings: Settings, key: str) -> Any:  # noqa: ANN401 - whatever the file holds
    """The value of a key, None where it is not there."""
    found = settings.get(key)
    return None if found is None else found.value


def size(settings: Settings, key: str) -> int | None:
    """A whole number from 1; None where there is none."""
    value = whole(given(settings, key))
    return value if value is not None and value >= 1 else None


def stage(settings: Settings) -> int:
    """The ZeRO stage, 0 where nothing states it."""
    switch = given(settings, "zero_optimization")
    if isinstance(switch, bool):
        return int(switch)
    return whole(given(settings, "zero_optimization.stage")) or 0


def device(settings: Settings, section: str) -> str:
    """Where ``offload_optimizer`` or ``offload_param`` puts what it names: none, cpu, nvme."""
    value = given(settings, f"zero_optimization.{section}.device")
    if isinstance(value, str):
        return value
    is_on = given(settings, f"zero_optimization.{OLD_SWITCHES[section]}") is True
    return "cpu" if is_on else "none"


def autotp(settings: Settings) -> int:
    """Ranks of AutoTP, 1 where it is off."""
    return size(settings, "tensor_parallel.autotp_size") or 1


def stages(settings: Settings) -> int:
    """Pipeline stages, 1 where none are stated."""
    return size(settings, "pipeline.stages") or 1


def decide(settings: Settings) -> dict[str, Value]:
    """Everything the file decides; what it leaves to another place is not there."""
    found = {name: value for name, value in _plain(settings) if value is not None}
    found |= _offload(settings)
    found |= _batch(settings, found)
    return found


def _at(settings: Settings, key: str, value: object) -> Value | None:
    """A decision with the place of its key."""
    if value is None:
        return None
    place = settings.get(key)
    return Value(value=value, key=key, line=place.line if place else 0)


def _plain(settings: Settings) -> Iterator[tuple[str, Value | None]]:
    """Decisions of one key each."""
    has_stage = "zero_optimization.stage" in settings
    key = "zero_optimization.stage" if has_stage else "zero_optimization"
    yield "zero_stage", _at(settings, key, stage(settings))
    script_tp = f"{SCRIPT}.tensor_parallel_size"
    key = "tensor_parallel.autotp_size" if autotp(settings) > 1 else script_tp
    yield "tp", _at(settings, key, size(settings, key))
    for name, key in (("pp", "pipeline.stages"), ("cp", "sequence_parallel_size")):
        yield name, _at(settings, key, size(settings, key))
    if given(settings, "expert_parallel.enabled") is True:
        key = "expert_parallel.autoep_size"
        yield "ep", _at(settings, key, size(settings, key))
    for key, name in _SCRIPT_DECISIONS.items():
        path = f"{SCRIPT}.{key}"
        yield name, _at(settings, path, _listed(given(settings, path)))
    yield "precision", _precision(settings)
    yield "optimizer", _optimizer(settings)


def _listed(value: object) -> object:
    """Lists as tuples, numbers as they are; None where anything else stands in them."""
    if isinstance(value, list):
        is_plain = all(isinstance(item, str) or whole(item) is not None for item in value)
        return (
            tuple(item if isinstance(item, str) else whole(item) for item in value)
            if (is_plain)
            else None
        )
    return whole(value)


def _precision(settings: Settings) -> Value | None:
    for name, section in (("bf16", "bf16"), ("bf16", "bfloat16"), ("fp16", "fp16")):
        if given(settings, f"{section}.enabled") is True:
            return _at(settings, f"{section}.enabled", name)
    return None


def _optimizer(settings: Settings) -> Value | None:
    kind = given(settings, "optimizer.type")
    name = OPTIMIZERS.get(kind.lower()) if isinstance(kind, str) else None
    if name == "adam" and given(settings, "bf16.bf16_optimizer_states") is True:
        return _at(settings, "bf16.bf16_optimizer_states", "adam-bf16")
    if name == "sgd" and number(given(settings, "optimizer.params.momentum")):
        name = "sgd-momentum"
    return _at(settings, "optimizer.type", name)


def _offload(settings: Settings) -> dict[str, Value]:
    """Where states live; absent for pairs of devices that are not modelled.

    Below stage 3 DeepSpeed keeps weights in HBM, whatever is said of them.
    """
    section = "zero_optimization.offload_optimizer"
    optimizer = device(settings, "offload_optimizer")
    weights = device(settings, "offload_param") if stage(settings) == 3 else "none"
    code = _OFFLOADS.get((optimizer, weights))
    key = next(
        (k for k in (f"{section}.device", "zero_optimization.cpu_offload") if k in settings), ""
    )
    found = {} if code is None or not key else {"offload": _at(settings, key, code)}
    ratio = number(given(settings, f"{section}.ratio"))
    if optimizer != "none" and ratio is not None and 0.0 < ratio <= 1.0:
        percent = max(1, round(100 * ratio))
        found["offload_percent"] = _at(settings, f"{section}.ratio", percent)
    return {name: value for name, value in found.items() if value is not None}


def _batch(settings: Settings, found: Mapping[str, Value]) -> dict[str, Value]:
    """The batch triple as far as it determines itself, and the ranks where it states them."""
    total_key, micro_key = "train_batch_size", "train_micro_batch_size_per_gpu"
    steps_key, replicas_key = "gradient_accumulation_steps", "data_parallel_size"
    total, micro = size(settings, total_key), size(settings, micro_key)
    steps, dp = size(settings, steps_key), size(settings, replicas_key)
    is_counted_in_ranks = counts_all_ranks(settings)
    if total and micro and steps and not dp and not is_counted_in_ranks:
        dp = total // (micro * steps) if total % (micro * steps) == 0 else None
        replicas_key = total_key
    is_open = AUTO in (given(settings, micro_key), given(settings, steps_key))
    if bool(micro) != bool(total) and not steps and not is_open:
        steps, steps_key = 1, micro_key if micro else total_key
    if micro and steps and dp and (not total or is_counted_in_ranks):
        total, total_key = micro * steps * dp, micro_key
    elif is_counted_in_ranks:
        total = None
    if total and micro and dp and not steps and total % (micro * dp) == 0:
        steps, steps_key = total // (micro * dp), total_key
    if total and steps and dp and not micro and total % (steps * dp) == 0:
        micro, micro_key = total // (steps * dp), total_key
    values = {
        "global_batch": _at(settings, total_key, total),
        "micro_batch": _at(settings, micro_key, micro),
        "num_micro_batches": _at(settings, steps_key, steps),
        "dp": _at(settings, replicas_key, dp),
    }
    if dp:
        ranks = dp
        for name in ("tp", "pp", "cp"):
            ranks *= found[name].value if name in found else 1
        values["num_gpus"] = _at(settings, replicas_key, ranks)
    return {name: value for name, value in values.items() if value is not None}


def counts_all_ranks(settings: Settings) -> bool:
    """AutoTP alone: its groups are made after the batch is checked, against all ranks."""
    return autotp(settings) > 1 and stages(settings) == 1

"""Words of published records as the reader's own: what sources spell differently, said once."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from planner.catalog.hardware import check_accelerator, find_file, list_names, resolve_alias
from planner.documents.yaml_text import load_data, load_yaml
from planner.validation import settings

ZERO_STAGES = {"dist-opt": 1, "fsdp": 3}
"""Megatron's distributed optimizer shards what stage 1 shards, FSDP what stage 3 does."""
KEPT_STAGE = 2
"""Of FSDP under a pipeline, which keeps what it gathered: the default of torchtitan's
reshard_after_forward."""
PRECISIONS = {"nvfp4": "fp4"}
UNITS = {"G (as printed)": "GiB"}
"""nvidia-smi prints MiB."""
KINDS = (
    ("nvidia-smi", "nvidia_smi_gb"),
    ("reserved", "reserved_gib"),
    ("allocated", "allocated_gib"),
    ("active", "allocated_gib"),
)
"""Words in ``memory.kind`` of a figure without a kind of its own, the larger kind first."""
_HOST = {"optimizer": "optimizer:host", "both": "optimizer+parameters:host"}


def spelled_alike(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with hardware, software, settings, stage, precision and memory in our words.

    What it states in them is kept, and what nothing stands for too: the reader names it.
    """
    given = dict(record)
    given |= {name: dict(part) for name, part in given.items() if isinstance(part, dict)}
    if isinstance(precision := given.get("precision"), str):
        given["precision"] = PRECISIONS.get(precision, precision.partition(" autocast")[0])
    for name, known in _known(given).items():
        if isinstance(part := given.get(name, {}), dict):
            given[name] = {**known, **part}
    _spell_hardware(given.get("hardware"))
    _spell_layout(given.get("parallel"))
    _spell_memory(given.get("memory"))
    _spell_settings(given)
    if "software" not in given and (found := _software(given)):
        given["software"] = found
    return given


def _spell_hardware(hardware: Any) -> None:  # noqa: ANN401
    """The node of an accelerator that the catalog knows is its usual one."""
    if not isinstance(hardware, dict) or "node" in hardware:
        return
    if isinstance(gpu := hardware.get("gpu"), str) and (node := _usual_node(gpu)):
        hardware["node"] = node


@cache
def _usual_node(gpu: str) -> str | None:
    name = resolve_alias("accelerators", gpu)
    if name not in list_names("accelerators"):
        return None
    path = find_file("accelerators", name)
    return check_accelerator(load_yaml(path), str(path)).usual_node


def _spell_layout(parallel: Any) -> None:  # noqa: ANN401
    if not isinstance(parallel, dict):
        return
    zero = parallel.get("zero")
    if isinstance(zero, str):
        is_kept = zero == "fsdp" and (parallel.get("pp") or 1) > 1
        parallel["zero"] = KEPT_STAGE if is_kept else ZERO_STAGES.get(zero, zero)
    detail = parallel.get("offload_detail")
    if isinstance(detail, dict):
        whole = detail.get("optimizer") == 1 and not detail.get("activations")
        if whole and detail.get("params") in (0, 1, None):
            parallel["offload"] = _HOST["both" if detail.get("params") else "optimizer"]


def _spell_settings(given: dict[str, Any]) -> None:
    model, parallel, runtime = (given.get(name) for name in ("model", "parallel", "runtime"))
    if isinstance(model, dict):
        settings.spell_attention(model)
        settings.add_known(model)
    if isinstance(parallel, dict):
        settings.spell_modules(parallel)
        settings.add_layout(given, parallel)
    if isinstance(runtime, dict):
        settings.spell_runtime(runtime, parallel if isinstance(parallel, dict) else None)
        settings.add_dispatcher(given, runtime)
        settings.add_capacity(given, runtime)
        settings.add_routing(given, runtime)


def _known(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the lines of ``stated.yaml`` say of a record, by part; the first line wins."""
    found: dict[str, dict[str, Any]] = {}
    for line in _stated():
        if _holds(record, line["when"]):
            for path, value in line["set"].items():
                part, _, key = path.partition(".")
                found.setdefault(part, {}).setdefault(key, value)
    return found


@cache
def _stated() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_data(__package__, "stated.yaml")
    return found


def _holds(record: Mapping[str, Any], when: Mapping[str, Any]) -> bool:
    return all(fnmatchcase(str(_of(record, key)), str(value)) for key, value in when.items())


def _spell_memory(memory: Any) -> None:  # noqa: ANN401
    if not isinstance(memory, dict):
        return
    unit = memory.get("unit", "GiB")
    memory["unit"] = UNITS.get(unit, unit)
    kind = memory.get("kind")
    if not isinstance(kind, str) or "reported_gb" not in memory:
        return
    name = next((figure for word, figure in KINDS if word in kind), None)
    if name is not None and memory.get(name) is None:
        memory[name] = memory.pop("reported_gb")


@cache
def _frameworks() -> Mapping[str, list[dict[str, Any]]]:
    found: Mapping[str, list[dict[str, Any]]] = load_data(__package__, "software.yaml")
    return found


def _software(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """What ``software.yaml`` says of the framework's name; None where it has none."""
    name = record.get("framework")
    for line in _frameworks().get(name, []) if isinstance(name, str) else []:
        if _holds(record, line.get("when", {})):
            software: dict[str, Any] = line["software"]
            return software
    return None


def _of(record: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401
    found: Any = record
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found

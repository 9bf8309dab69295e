"""Words of published records as the reader's own: what sources spell differently, said once."""

import math
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from planner.catalog import list_models
from planner.catalog.hardware import list_names, load_accelerator, resolve_alias
from planner.catalog.models import load_model
from planner.documents.tree import load_own
from planner.frameworks.registry import stack_named

Part = dict[str, Any]

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
SETTINGS = {"moe_dispatcher": "dispatcher", "moe_a2a_overlap": "expert_overlap"}
"""Of ``runtime``, as Megatron-Bridge's recipes name them."""
MODULES = {
    "norm": "layernorm",
    "rmsnorm": "layernorm",
    "act": "moe_act",
    "mla up-projection": "mla_up_proj",
    "shared_expert": "shared_experts",
}
"""Modules that are recomputed, by the words of tables; launchers' own names are kept."""
WINDOWS = re.compile(r"alternating sliding-window\((\d+)\)/full")
LINEAR = "linear attention"
DISPATCHERS = re.compile(r"\b(deepep|hybridep)\b")
CAPACITY = re.compile(r"capacity factor (\d{1,3}(?:\.\d{1,3})?)( with padding)?")
BALANCED = re.compile(r"\bforced?[- ]balanced?\b|\bbalanced gate\b|\bwith padding\b")
OVERLAPPED = re.compile(r"a2a overlap\b")
CHUNKED_MODEL, CHUNKED_LAYERS = "deepseek-v3", 61
CHUNKS = {4: "Et*16|(t*16|)*2t*13", 8: "Et*8|(t*8|)*6t*5", 16: "Et*4|(t*4|)*14t"}
"""Decoder layers by the number of chunks of a pipeline, up to what stands before the loss."""
USUAL_DISPATCHER = {"megatron-bridge": "alltoall"}
"""Of frameworks whose recipes set another where they use it, by how their names begin."""


def spelled_alike(record: Part) -> Part:
    """Return a record with hardware, software, settings, stage, precision and memory in our words.

    What it states in them is kept, and what nothing stands for too: the reader names it.
    """
    given = dict(record)
    given |= {name: dict(part) for name, part in given.items() if isinstance(part, dict)}
    if isinstance(precision := given.get("precision"), str):
        given["precision"] = PRECISIONS.get(precision, precision.partition(" autocast")[0])
    for name, known in _known(given, "stated.yaml").items():
        if isinstance(part := given.get(name, {}), dict):
            given[name] = {**known, **part}
    _spell_hardware(given.get("hardware"))
    _spell_layout(given.get("parallel"), str(given.get("framework")))
    _spell_memory(given.get("memory"))
    _spell_settings(given)
    if "software" not in given and isinstance(given.get("framework"), str):
        found = _known(given, "software.yaml")
        _add_stack(given["framework"], found)
        found = _known(given, "software_facts.yaml", found)
        given["software"] = found["software"]
        given["traits"] = found.get("traits", {}) | given.get("traits", {})
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
    return load_accelerator(name).usual_node


def _spell_layout(parallel: Any, framework: str) -> None:  # noqa: ANN401
    if not isinstance(parallel, dict):
        return
    zero = parallel.get("zero")
    if isinstance(zero, str):
        is_kept = zero == "fsdp" and (parallel.get("pp") or 1) > 1
        ranks = (parallel.get("dp") or 0) * (parallel.get("cp") or 1)
        is_alone = zero == "fsdp" and ranks == 1 and "fsdp1" in framework.lower()
        stage = KEPT_STAGE if is_kept else ZERO_STAGES.get(zero, zero)
        # FSDP1 of one rank shards nothing: NO_SHARD in torch/distributed/fsdp/_init_utils.py
        parallel["zero"] = 0 if is_alone else stage
    detail = parallel.get("offload_detail")
    if isinstance(detail, dict):
        whole = detail.get("optimizer") == 1 and not detail.get("activations")
        if whole and detail.get("params") in (0, 1, None):
            parallel["offload"] = _HOST["both" if detail.get("params") else "optimizer"]


def _spell_settings(given: Part) -> None:
    model, parallel, runtime = (given.get(name) for name in ("model", "parallel", "runtime"))
    if isinstance(model, dict):
        _spell_attention(model)
        _add_known(model)
    if isinstance(parallel, dict):
        _spell_modules(parallel)
        _add_layout(given, parallel)
    if isinstance(runtime, dict):
        _spell_runtime(runtime, parallel if isinstance(parallel, dict) else None)
        _add_routing(given, runtime)


def _add_stack(framework: str, found: dict[str, Part]) -> None:
    """Add what the planner prices software of that name as, where nothing else is known."""
    stack = stack_named(framework)
    if stack is None:
        return
    named = {"framework": stack.framework, "profile": stack.profile}
    if found.setdefault("software", named)["framework"] == stack.framework:
        found["traits"] = {**dict(stack.facts), **found.get("traits", {})}


def _known(
    record: Mapping[str, Any], name: str, given: Mapping[str, Part] | None = None
) -> dict[str, Part]:
    """What the lines of a table say of a record, by part: the first to set a key wins.

    ``given``: what is known already. A line's conditions see what was set before it.
    """
    found = {part: dict(values) for part, values in (given or {}).items()}
    for line in _lines(name):
        if all(_holds(record, found, key, words) for key, words in line["when"].items()):
            for path, value in line["set"].items():
                part, _, key = path.partition(".")
                found.setdefault(part, {}).setdefault(key, value)
    return found


@cache
def _lines(name: str) -> list[Part]:
    found: list[Part] = load_own(__package__, name)
    return found


def _holds(record: Mapping[str, Any], found: Mapping[str, Any], key: str, words: Any) -> bool:  # noqa: ANN401
    """Whether a field, as set or as stated, matches a pattern or one of several."""
    value = _of(found, key)
    said = str(_of(record, key) if value is None else value).lower()
    patterns = words if isinstance(words, list) else [words]
    return any(fnmatchcase(said, str(each).lower()) for each in patterns)


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


def _of(record: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401
    found: Any = record
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _spell_runtime(runtime: Part, parallel: Part | None) -> None:
    """CUDA graphs are what is captured: nothing, the whole iteration, or the scope's parts."""
    for given, own in SETTINGS.items():
        if given in runtime:
            runtime.setdefault(own, runtime.pop(given))
    if isinstance(several := runtime.get("dispatcher"), str):
        runtime["dispatcher"] = several.partition("/")[0]  # on this hardware the first
    scope = runtime.pop("cuda_graph_scope", None)
    graphs = runtime.get("cuda_graph")
    if graphs == "none":
        runtime["cuda_graph"] = []
    elif graphs == "full_iteration":
        runtime["cuda_graph"] = [graphs]
    elif isinstance(graphs, str):
        runtime["cuda_graph"] = [scope] if isinstance(scope, str) else scope
    if parallel is not None and (layers := runtime.pop("cpu_offloading_num_layers", None)):
        parallel |= {"offloaded_layers": layers, "offload": "none"}


def _spell_modules(parallel: Part) -> None:
    """Modules in one text are a list; of none, or of full recomputation, there are none to name."""
    given = parallel.get("recompute_modules", ())
    if given in (None, "full", ["full"]):
        parallel["recompute_modules"] = []
    elif isinstance(given, str):
        words = [word.strip() for word in given.split("," if "," in given else None)]
        parallel["recompute_modules"] = [MODULES.get(word.lower(), word) for word in words]


def _spell_attention(model: Part) -> None:
    """Which keys a query sees, where it is told in words."""
    words = model.get("attention")
    if words is None:
        model.pop("attention", None)
    if not isinstance(words, str):
        return
    if found := WINDOWS.fullmatch(words):
        model |= {"sliding_window": int(found[1]), "full_attention_step": 2}
    elif LINEAR in words:
        model["linear_attention"] = True
    else:
        return
    del model["attention"]


def _add_known(model: Part) -> None:
    """What the catalog knows of a model by this name, and records seldom state."""
    if (name := model.get("name")) not in list_models():
        return
    known = load_model(name)
    biases = known.biases
    if model.get("gated_mlp") and biases.qkv and biases.attention_output and biases.mlp:
        model.setdefault("biases", True)
    for field, holds in (("clamped", known.clamps_gate), ("scaled_rotary", known.scaled_rotary)):
        if holds:
            model.setdefault(field, True)


def _add_routing(record: Mapping[str, Any], runtime: Part) -> None:
    """Of a mixture: the dispatcher, capacity and balance of its experts that id and notes name.

    Without a name the dispatcher is the framework's usual one. Tokens go as the router chooses,
    unless a balance is forced or padded to.
    """
    name, model = record.get("framework"), record.get("model")
    if not (isinstance(model, Mapping) and model.get("moe")):
        return
    notes = str(record.get("notes")).lower()
    if isinstance(name, str):
        said = f"{record.get('id')} {notes}".lower()
        if found := DISPATCHERS.search(said):
            runtime.setdefault("dispatcher", found[0])
        if OVERLAPPED.search(said):
            runtime.setdefault("expert_overlap", True)
        if usual := USUAL_DISPATCHER.get(name.partition("/")[0]):
            runtime.setdefault("dispatcher", usual)
    if found := CAPACITY.search(notes):
        runtime.setdefault("capacity_factor", float(found[1]))
        runtime.setdefault("pads_to_capacity", bool(found[2]))
    if "notes" in record:
        is_balanced = BALANCED.search(notes)
        runtime.setdefault("routing", "balanced" if is_balanced else "natural")


def _add_layout(record: Mapping[str, Any], parallel: Part) -> None:
    """The stages that Megatron-Bridge gives DeepSeek-V3 where a recipe has no layout of its own.

    Source: set_deepseek_v3_pipeline_model_parallel_layout of its recipes.
    """
    name, model = record.get("framework"), record.get("model")
    if not (isinstance(model, Mapping) and str(name).startswith("megatron-bridge")):
        return
    is_known = str(model.get("name")).startswith(CHUNKED_MODEL)
    if not is_known or model.get("layers") != CHUNKED_LAYERS or parallel.get("pp_layout"):
        return
    degrees = [parallel.get(each) or 1 for each in ("pp", "vpp")]
    if all(isinstance(each, int) for each in degrees) and (
        layout := CHUNKS.get(math.prod(degrees))
    ):
        trains_mtp = "mtp" in str(record.get("flops_convention")).split("; ")
        parallel["pp_layout"] = layout + ("mL" if trains_mtp else "L")

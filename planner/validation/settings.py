"""Settings of a run in its launcher's words as the reader's own: runtime, modules, attention."""

import math
import re
from collections.abc import Mapping
from typing import Any

from planner.catalog.model_names import list_models
from planner.catalog.models import load_model

Part = dict[str, Any]

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
BALANCED = re.compile(r"\bforced?[- ]balanced?\b|\bwith padding\b")
OVERLAPPED = re.compile(r"a2a overlap\b")
CHUNKED_MODEL, CHUNKED_LAYERS = "deepseek-v3", 61
CHUNKS = {4: "Et*16|(t*16|)*2t*13", 8: "Et*8|(t*8|)*6t*5", 16: "Et*4|(t*4|)*14t"}
"""Decoder layers by the number of chunks of a pipeline, up to what stands before the loss."""
USUAL_DISPATCHER = {"megatron-bridge": "alltoall"}
"""Of frameworks whose recipes set another where they use it, by how their names begin."""


def spell_runtime(runtime: Part, parallel: Part | None) -> None:
    """CUDA graphs are what is captured: nothing, the whole iteration, or the scope's parts."""
    for given, own in SETTINGS.items():
        if given in runtime:
            runtime.setdefault(own, runtime.pop(given))
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


def spell_modules(parallel: Part) -> None:
    """Modules in one text are a list; of none, or of full recomputation, there are none to name."""
    given = parallel.get("recompute_modules", ())
    if given in (None, "full", ["full"]):
        parallel["recompute_modules"] = []
    elif isinstance(given, str):
        words = [word.strip() for word in given.split("," if "," in given else None)]
        parallel["recompute_modules"] = [MODULES.get(word.lower(), word) for word in words]


def spell_attention(model: Part) -> None:
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


def add_known(model: Part) -> None:
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


def add_dispatcher(record: Mapping[str, Any], runtime: Part) -> None:
    """Of a mixture: what its id or notes name, else its framework's usual dispatcher."""
    name, model = record.get("framework"), record.get("model")
    if not (isinstance(name, str) and isinstance(model, Mapping) and model.get("moe")):
        return
    said = f"{record.get('id')} {record.get('notes')}".lower()
    if found := DISPATCHERS.search(said):
        runtime.setdefault("dispatcher", found[0])
    if OVERLAPPED.search(said):
        runtime.setdefault("expert_overlap", True)
    if usual := USUAL_DISPATCHER.get(name.partition("/")[0]):
        runtime.setdefault("dispatcher", usual)


def add_capacity(record: Mapping[str, Any], runtime: Part) -> None:
    """Of a mixture: the capacity of its experts that the notes name."""
    model = record.get("model")
    if not (isinstance(model, Mapping) and model.get("moe")):
        return
    if found := CAPACITY.search(str(record.get("notes")).lower()):
        runtime.setdefault("capacity_factor", float(found[1]))
        runtime.setdefault("pads_to_capacity", bool(found[2]))


def add_routing(record: Mapping[str, Any], runtime: Part) -> None:
    """Of a mixture: as its router chooses, unless a balance is forced or padded to."""
    model = record.get("model")
    if isinstance(model, Mapping) and model.get("moe") and "notes" in record:
        is_balanced = BALANCED.search(str(record["notes"]).lower())
        runtime.setdefault("routing", "balanced" if is_balanced else "natural")


def add_layout(record: Mapping[str, Any], parallel: Part) -> None:
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

"""Settings of runs in their launchers' words."""

from typing import Any

import pytest

from planner.plans.splits import layout_layers
from planner.validation.spellings import spelled_alike

MIXTURE = {"name": "abacus", "moe": {"experts": 8}}


def of_runtime(**given: Any) -> dict[str, Any]:
    return spelled_alike({"runtime": given, "parallel": {}})


@pytest.mark.parametrize(
    ("given", "captured"),
    [
        ({"cuda_graph": "none", "cuda_graph_scope": "full_iteration"}, []),
        ({"cuda_graph": "full_iteration", "cuda_graph_scope": []}, ["full_iteration"]),
        ({"cuda_graph": "transformer_engine", "cuda_graph_scope": "mlp"}, ["mlp"]),
        (
            {"cuda_graph": "transformer_engine", "cuda_graph_scope": ["attn", "moe_router"]},
            ["attn", "moe_router"],
        ),
        ({"cuda_graph": ["attn"]}, ["attn"]),
    ],
)
def test_graphs_are_what_they_capture(given: dict[str, Any], captured: list[str]) -> None:
    assert of_runtime(**given)["runtime"] == {"cuda_graph": captured}


def test_launchers_names_of_settings_are_the_readers_own() -> None:
    given = of_runtime(moe_dispatcher="hybridep", moe_a2a_overlap=False)
    assert given["runtime"] == {"dispatcher": "hybridep", "expert_overlap": False}


def test_offloaded_layers_are_part_of_the_layout() -> None:
    given = of_runtime(cpu_offloading_num_layers=40)
    assert given["parallel"] == {"offloaded_layers": 40, "offload": "none"}


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ("norm, act, shared_expert", ["layernorm", "moe_act", "shared_experts"]),
        ("RMSNorm, MLA up-projection", ["layernorm", "mla_up_proj"]),
        ("layernorm moe", ["layernorm", "moe"]),
        (["moe_act"], ["moe_act"]),
    ],
)
def test_modules_are_named_as_launchers_do(words: Any, modules: list[str]) -> None:
    given = spelled_alike({"parallel": {"recompute_modules": words}})
    assert given["parallel"]["recompute_modules"] == modules


def test_windows_are_read_from_words() -> None:
    given = spelled_alike({"model": {"attention": "alternating sliding-window(128)/full"}})
    assert given["model"] == {"sliding_window": 128, "full_attention_step": 2}
    given = spelled_alike({"model": {"attention": "3:1 linear attention"}})
    assert given["model"] == {"linear_attention": True}
    assert spelled_alike({"model": {"attention": "odd"}})["model"] == {"attention": "odd"}


def test_the_catalog_knows_what_a_record_does_not_state() -> None:
    given = spelled_alike({"model": {"name": "gpt-oss-120b", "gated_mlp": True}})["model"]
    assert {name for name, holds in given.items() if holds is True} == {
        "gated_mlp",
        "biases",
        "clamped",
        "scaled_rotary",
    }
    stated = {"name": "gpt-oss-120b", "gated_mlp": True, "clamped": False}
    assert spelled_alike({"model": stated})["model"]["clamped"] is False
    other = {"name": "llama3.1-8b", "gated_mlp": True}
    assert spelled_alike({"model": other})["model"] == other


@pytest.mark.parametrize(
    ("given", "runtime"),
    [
        ({"id": "run-deepep", "framework": "megatron-core"}, {"dispatcher": "deepep"}),
        ({"id": "run", "framework": "megatron-core"}, {}),
        ({"id": "run", "framework": "megatron-bridge/megatron-core"}, {"dispatcher": "alltoall"}),
        (
            {"id": "run", "framework": "megatron-core", "notes": "HybridEP; A2A overlap on"},
            {"dispatcher": "hybridep", "expert_overlap": True, "routing": "natural"},
        ),
    ],
)
def test_a_dispatcher_is_the_one_that_is_named(
    given: dict[str, Any], runtime: dict[str, Any]
) -> None:
    record = {**given, "model": MIXTURE, "parallel": {}, "runtime": {}}
    assert spelled_alike(record)["runtime"] == runtime


@pytest.mark.parametrize(
    ("notes", "runtime"),
    [
        (
            "Token-drop MoE: capacity factor 1.0 with padding, alltoall dispatcher.",
            {"capacity_factor": 1.0, "pads_to_capacity": True, "routing": "balanced"},
        ),
        (
            "Capacity factor 1.25; rest dropped",
            {"capacity_factor": 1.25, "pads_to_capacity": False, "routing": "natural"},
        ),
        ("MoE: forced balanced routing, dropless.", {"routing": "balanced"}),
        ("forced-balance routing in the benchmark scripts", {"routing": "balanced"}),
        ("median tokens/s", {"routing": "natural"}),
    ],
)
def test_capacity_and_routing_are_what_notes_name(notes: str, runtime: dict[str, Any]) -> None:
    record = {"id": "run", "notes": notes, "model": MIXTURE, "parallel": {}, "runtime": {}}
    assert spelled_alike(record)["runtime"] == runtime


def test_dense_models_dispatch_nothing() -> None:
    given = {"id": "deepep", "framework": "megatron-bridge", "model": {}, "parallel": {}}
    assert spelled_alike({**given, "runtime": {}})["runtime"] == {}


@pytest.mark.parametrize("degrees", [(4, 1), (8, 1), (16, 1), (4, 2), (2, 8)])
def test_stages_of_deepseek_are_those_of_its_recipe(degrees: tuple[int, int]) -> None:
    pp, vpp = degrees
    model = {"name": "deepseek-v3-671b", "layers": 61}
    record = {
        "framework": "megatron-bridge/megatron-core",
        "flops_convention": "causal; mtp",
        "model": model,
        "parallel": {"pp": pp, "vpp": vpp},
    }
    layout = spelled_alike(record)["parallel"]["pp_layout"]
    assert layout.endswith("mL")
    assert sum(layout_layers(layout, pp)) == 61
    plain = spelled_alike({**record, "flops_convention": None})["parallel"]["pp_layout"]
    assert plain == layout.replace("mL", "L")
    elsewhere = spelled_alike({**record, "framework": "megatron-core"})
    assert "pp_layout" not in elsewhere["parallel"]

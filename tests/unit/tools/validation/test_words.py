"""Words of sources in those of the reader."""

from pathlib import Path
from typing import Any

import pytest

from planner.frameworks.registry import FRAMEWORKS, profile_names
from tools.validation.compare import compare, measured_figures
from tools.validation.mapping import layout_layers
from tools.validation.records import Record, read_runs
from tools.validation.words import spelled_alike

MIXTURE = {"name": "abacus", "moe": {"experts": 8}}
RUNS = Path(__file__).parents[3] / "validation" / "fine_tuning_runs.jsonl"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_runs(RUNS).records}


def spelled(part: str, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = spelled_alike({part: given})[part]
    return found


def test_an_accelerator_stands_for_its_usual_node() -> None:
    assert spelled("hardware", gpu="a100-80gb-sxm")["node"] == "dgx-a100-640"
    assert spelled("hardware", gpu="l40s-48gb-pcie")["node"] == "pcie-8x-l40s"
    assert "node" not in spelled("hardware", gpu="abacus")


def test_a_stated_node_is_kept() -> None:
    assert spelled("hardware", gpu="a100-80gb-sxm", node=None)["node"] is None


@pytest.mark.parametrize(("word", "stage"), [("dist-opt", 1), ("fsdp", 3), (2, 2), ("odd", "odd")])
def test_words_of_sharding_are_stages(word: str | int, stage: str | int) -> None:
    assert spelled("parallel", zero=word)["zero"] == stage


@pytest.mark.parametrize(
    ("detail", "offload"),
    [
        ({"optimizer": 1.0, "params": 0}, "optimizer:host"),
        ({"optimizer": 1.0, "params": 1.0}, "optimizer+parameters:host"),
        ({"optimizer": 0.25, "params": 0}, "in words"),
        ({"optimizer": 1.0, "activations": "checkpoint inputs"}, "in words"),
    ],
)
def test_offload_is_told_by_its_parts(detail: dict[str, Any], offload: str) -> None:
    given = spelled("parallel", offload="in words", offload_detail=detail)
    assert given["offload"] == offload


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ("norm, act, shared_expert", ["layernorm", "moe_act", "shared_experts"]),
        ("layernorm moe", ["layernorm", "moe"]),
        ("RMSNorm, MLA up-projection", ["layernorm", "mla_up_proj"]),
        (["mla_up_proj"], ["mla_up_proj"]),
        ("full", []),
        (None, []),
    ],
)
def test_recomputed_modules_are_the_launchers(words: Any, modules: list[str]) -> None:
    assert spelled("parallel", recompute_modules=words)["recompute_modules"] == modules


def test_offloaded_layers_are_a_number() -> None:
    given = spelled_alike(
        {"runtime": {"cpu_offloading_num_layers": 40}, "parallel": {"offload": "in words"}}
    )
    assert given["runtime"] == {}
    assert (given["parallel"]["offload"], given["parallel"]["offloaded_layers"]) == ("none", 40)


def test_windows_are_read_from_words() -> None:
    given = spelled_alike({"model": {"attention": "alternating sliding-window(128)/full"}})
    assert given["model"] == {"sliding_window": 128, "full_attention_step": 2}
    given = spelled_alike({"model": {"attention": "3:1 linear attention"}})
    assert given["model"] == {"linear_attention": True}
    assert spelled_alike({"model": {"attention": "odd"}})["model"] == {"attention": "odd"}


def test_a_stage_is_assumed_unless_stated() -> None:
    given = {"framework": "megatron-deepspeed", "parallel": {"zero": None}}
    assert spelled_alike(given)["assumed"] == {"zero": 1}
    assert "assumed" not in spelled_alike({**given, "parallel": {"zero": 2}})


def test_a_published_network_is_of_its_node() -> None:
    assert spelled("hardware", gpu="a100-80gb-sxm", inter="4x HDR 200Gb/s IB")["node"] == (
        "hgx-a100-80-4hdr"
    )


def test_fsdp_under_a_pipeline_keeps_what_it_gathered() -> None:
    assert spelled("parallel", zero="fsdp", pp=8)["zero"] == 2


def test_parts_of_another_kind_are_left_to_the_reader() -> None:
    assert spelled_alike({"parallel": 3, "runtime": None, "model": "x"})["parallel"] == 3


def test_autocast_trains_in_the_precision_of_its_products() -> None:
    assert spelled_alike({"precision": "bf16 autocast, fp32 optimizer"})["precision"] == "bf16"


def test_a_figure_is_of_the_kind_that_was_read() -> None:
    given = spelled("memory", reported_gb=5.0, kind="torch max reserved as logged", unit="GiB")
    assert given["reserved_gib"] == 5.0
    given = spelled("memory", reported_gb=5.0, kind="per GPU, tool not stated")
    assert given["reported_gb"] == 5.0


def test_gigabytes_are_not_gibibytes(records: dict[str, Record]) -> None:
    measured = measured_figures(records["fms-main-mistral-7b-full-none-b4-1xa100"])
    assert measured.allocated_gib == pytest.approx(72.43e9 / 2**30)


def test_a_framework_is_a_generation_unless_the_record_says_otherwise() -> None:
    given = {"framework": "megatron-deepspeed", "precision": "bf16"}
    assert spelled_alike(given)["software"]["profile"] == "megatron-bf16"
    own = {"framework": "torchtitan", "profile": "2024"}
    assert spelled_alike({**given, "software": own})["software"] == own
    nearest = spelled_alike({"framework": "abacus", "parallel": {"tp": 8}})["software"]
    assert nearest == {"framework": "megatron", "profile": "current", "is_nearest": True}


def test_every_framework_that_is_named_has_its_profile(records: dict[str, Record]) -> None:
    for record in records.values():
        assert record.software.framework in FRAMEWORKS
        assert record.software.profile in profile_names(record.software.framework)


def test_words_of_a_record_state_facts_of_its_software(records: dict[str, Record]) -> None:
    for name, stated in {
        "fms-main-mistral-7b-lora-none-b4-1xa100": {"software.loss": "shifted"},
        "fms-main-mistral-7b-lora-none-b4-2xa100": {
            "software.loss": "kept",
            "software.sharding": "fsdp1",
        },
        "fms-main-mistral-7b-lora-foak-fast-kernels-b4-1xa100": {
            "software.blocks": "fused",
            "software.loss": "fused-shifted",
        },
        "fms-main-mistral-7b-lora-baseline-peft-bnb-b4-1xa100": {
            "software.loss": "shifted",
            "kernels.widens_stream": True,
        },
        "qwen-readme-qwen-7b-lora-s256-1xa100": {
            "software.blocks": "eager-2023",
            "software.loss": "shifted",
            "kernels.adapters": "16-bit",
        },
    }.items():
        software = records[name].software
        assert (software.framework, software.profile) == ("accelerate", "peft")
        assert {**stated, "kernels.adapter_dropout": True}.items() <= records[name].traits.items()


def test_what_notes_deny_is_not_stated() -> None:
    for notes, blocks in (("torch.compile", "compiled"), ("no compile", "eager")):
        given = {"framework": "hf accelerate fsdp", "parallel": {"zero": 3}, "notes": notes}
        assert spelled_alike(given)["traits"]["software.blocks"] == blocks


def test_a_suspect_run_is_not_scored(records: dict[str, Record]) -> None:
    suspect = [record for record in records.values() if record.suspect]
    assert suspect
    assert not any(record.is_scored for record in suspect)


def test_a_peak_is_that_of_the_longest_batch(records: dict[str, Record]) -> None:
    record = records["peft-mm-llama3.2-3b-full-1xl40s"]
    assert record.model.seq_len == 210
    assert record.at_peak.model.seq_len == 768
    at_mean = record.model_copy(update={"memory": None})
    whole, mean = compare(record).predicted, compare(at_mean).predicted
    assert whole is not None
    assert mean is not None
    assert whole.iter_time_s == mean.iter_time_s
    assert whole.reserved_gib == pytest.approx(39.7, abs=0.1)
    assert mean.reserved_gib == pytest.approx(28.3, abs=0.1)


def test_runs_of_one_length_peak_at_it(records: dict[str, Record]) -> None:
    record = records["fms-main-mistral-7b-full-none-b4-1xa100"]
    assert record.at_peak is record


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

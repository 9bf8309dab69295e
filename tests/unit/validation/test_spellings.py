"""Words of sources in those of the reader."""

from pathlib import Path
from typing import Any

import pytest

from planner.frameworks.registry import FRAMEWORKS, profile_names
from planner.validation.compare import compare, measured_figures
from planner.validation.records import Record, read_runs
from planner.validation.spellings import spelled_alike

RUNS = Path(__file__).parents[2] / "validation" / "fine_tuning_runs.jsonl"


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


@pytest.mark.parametrize(
    ("kind", "scope", "captured"),
    [
        ("full_iteration", [], ["full_iteration"]),
        ("transformer_engine", "mlp", ["mlp"]),
        ("transformer_engine", ["attn"], ["attn"]),
        ("none", "full_iteration", []),
    ],
)
def test_cuda_graphs_are_what_they_capture(kind: str, scope: Any, captured: list[str]) -> None:
    given = spelled("runtime", cuda_graph=kind, cuda_graph_scope=scope, moe_dispatcher="deepep")
    assert given == {"cuda_graph": captured, "dispatcher": "deepep"}


def test_offloaded_layers_are_a_number() -> None:
    given = spelled_alike(
        {"runtime": {"cpu_offloading_num_layers": 40}, "parallel": {"offload": "in words"}}
    )
    assert given["runtime"] == {}
    assert (given["parallel"]["offload"], given["parallel"]["offloaded_layers"]) == ("none", 40)


def test_windows_are_told_from_words() -> None:
    given = spelled("model", name="own", attention="alternating sliding-window(128)/full")
    assert (given["sliding_window"], given["full_attention_step"]) == (128, 2)
    given = spelled("model", name="own", attention="hybrid: DeltaNet linear attention 3:1")
    assert given["linear_attention"] is True


def test_what_is_known_by_name_is_set_unless_stated() -> None:
    assert spelled("model", name="gpt-oss-120b")["clamped"] is True
    assert spelled("model", name="gpt-oss-120b", clamped=False)["clamped"] is False
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
    assert "software" not in spelled_alike({"framework": "abacus"})


def test_every_framework_that_is_named_has_its_profile(records: dict[str, Record]) -> None:
    for record in records.values():
        if record.software:
            assert record.software.framework in FRAMEWORKS
            assert record.software.profile in profile_names(record.software.framework)


def test_words_of_a_record_choose_the_profile_of_its_adapters(records: dict[str, Record]) -> None:
    for name, profile in {
        "fms-main-mistral-7b-lora-none-b4-1xa100": "peft-2024",
        "fms-main-mistral-7b-lora-none-b4-2xa100": "peft-2024-fsdp1",
        "fms-main-mistral-7b-lora-foak-fast-kernels-b4-1xa100": "peft-2024-fused",
        "fms-main-mistral-7b-lora-baseline-peft-bnb-b4-1xa100": "peft-2024-widened",
        "fms-main-mistral-7b-lora-accelerated-peft-bnb-foak-b4-1xa100": "peft-2024-4-bit",
        "qwen-readme-qwen-7b-lora-s256-1xa100": "peft-2023",
    }.items():
        software = records[name].software
        assert software is not None
        assert (software.framework, software.profile) == ("accelerate", profile)


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

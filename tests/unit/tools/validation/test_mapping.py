"""Records of five frameworks mapped by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.spec.model import ModelSpec
from tools.validation.compare import measured_figures
from tools.validation.mapping import Run, layers_per_stage, layout_layers, to_run
from tools.validation.records import Parallel, Record, read_records, read_runs
from tools.validation.setup import CannotEstimateError

LINES = Path(__file__).parents[3] / "validation" / "published_runs.jsonl"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_records(LINES)}


def run_of(records: dict[str, Record], name: str) -> Run:
    return to_run(records[name])


def test_megatron_of_2022_is_classic_on_selene(records: dict[str, Record]) -> None:
    run = run_of(records, "korthikanti-22b-8-full")
    traits, strategy = run.context.traits, run.strategy
    assert (traits.name, traits.profile, traits.kernels.attention) == (
        "megatron",
        "classic",
        "unfused",
    )
    assert run.context.cluster.node.name == "selene-dgx-a100"
    assert run.context.cluster.num_nodes == 1
    assert (strategy.tp, strategy.dp, strategy.pp, strategy.zero_stage) == (8, 1, 1, 0)
    assert strategy.recompute == "full"
    assert strategy.num_micro_batches == 1
    assert not strategy.sequence_parallel
    assert run.context.model.norm == "layernorm"


def test_bloom_counts_embedding_and_head_as_layers(records: dict[str, Record]) -> None:
    name = "bloom-pre-L70h14336a64-384a100-dp8tp4pp12mb2gb2048-rebalance-02-28"
    run = run_of(records, name)
    assert run.strategy.layers_per_stage == (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5)
    assert run.strategy.num_micro_batches == 2048 // (8 * 2)
    assert run.strategy.zero_stage == 1
    assert run.context.cluster.node.name == "jean-zay-a100"
    assert run.context.cluster.num_accelerators == 384


def profile_of(record: Record) -> tuple[str, str]:
    software = record.software
    return software.framework, software.profile


def test_bloom_optimizer_follows_precision(records: dict[str, Record]) -> None:
    bf16 = next(
        r for r in records.values() if r.id.startswith("bloom-pre") and r.precision == "bf16"
    )
    fp16 = next(
        r for r in records.values() if r.id.startswith("bloom-pre") and r.precision == "fp16"
    )
    assert profile_of(bf16) == ("deepspeed", "megatron-bf16")
    assert profile_of(fp16) == ("deepspeed", "megatron")


def test_torchtitan_is_sharded_and_dated(records: dict[str, Record]) -> None:
    run = run_of(records, "torchtitan-llama3.1-8b-8h100-fsdp")
    assert run.context.traits.profile == "2024-eager"
    assert run.strategy.zero_stage == 3
    assert run.strategy.selective_layers_per_stage == (32,)
    by_layer = run_of(records, "torchtitan-llama2-13b-64a100-fsdp-selectivelayer")
    assert by_layer.strategy.recompute_layers_per_stage == (20,)
    assert run.context.cluster.node.name == "hgx-h100-96-500w"
    compiled = records["torchtitan-llama3.1-8b-8h100-fsdp-compile"]
    assert profile_of(compiled) == ("torchtitan", "2024")


def test_composer_reduces_in_the_stated_type(records: dict[str, Record]) -> None:
    run = run_of(records, "mpt-13b-s2048-512xh100ls")
    assert run.context.traits.profile == "fsdp1"
    assert run.context.traits.states.gradient_reduce_bytes in (2.0, 4.0)
    assert run.notes[0].startswith("states.gradient_reduce_bytes")
    assert run.context.model.gated_mlp is False


def test_bridge_deepseek_with_pipeline_layout(records: dict[str, Record]) -> None:
    name = "bridge-26.08-deepseek-v3-671b-gb300-256-mxfp8-tp1pp2cp1vp8ep32-gbs4096"
    run = run_of(records, name)
    assert run.strategy.layers_per_stage == (32, 29)
    assert run.strategy.ep == 32
    assert run.context.job.precision == "mxfp8"
    model = run.context.model
    assert model.head_dim == 192
    assert model.moe is not None
    assert model.moe.shared_ffn_size == 2048
    assert run.context.cluster.node.num_accelerators == 4
    assert run.context.cluster.node.scale_up.num_accelerators == 72


def test_part_of_a_node(records: dict[str, Record]) -> None:
    run = run_of(records, "megatron-2020-1b-v100-tp1")
    assert run.context.cluster.num_accelerators == 1
    assert run.context.cluster.accelerator.name == "v100-sxm3-32"


def test_skipped_with_a_reason(records: dict[str, Record]) -> None:
    with pytest.raises(CannotEstimateError, match="not published in full"):
        run_of(records, "megatron-sc21-t1-1.7b-32")
    dense = next(r for r in records.values() if r.complete)
    offload = dense.parallel.model_copy(update={"offload": "cpu"})
    with pytest.raises(CannotEstimateError, match="this offload is not modelled: cpu"):
        to_run(dense.model_copy(update={"parallel": offload}))
    lora = next(r for r in records.values() if r.task == "lora" and r.complete)
    with pytest.raises(CannotEstimateError, match="adapters not published"):
        to_run(lora.model_copy(update={"lora": None}))


def test_adapters_that_a_table_leaves_to_its_recipes_are_those(records: dict[str, Record]) -> None:
    run = run_of(records, "bridge-26.06-llama3-70b-h100-8-fp8-tp2pp4cp1vp20ep1-gbs32-lora")
    assert run.context.traits.training.words == "lora of rank 16 on q,k,v"
    assert run.context.traits.kernels.joins_adapters


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (24, 4, (6, 6, 6, 6)),
        (94, 8, (11, 12, 12, 12, 12, 12, 12, 11)),
        (61, 4, (16, 15, 15, 15)),
        (7, 1, (7,)),
    ],
)
def test_layers_per_stage(layers: int, pp: int, expected: tuple[int, ...]) -> None:
    assert layers_per_stage(layers, Parallel(pp=pp)) == expected


def test_layout_layers() -> None:
    assert layout_layers("Et*4|(t*4|)*14tmL", 2) == (32, 29)
    assert layout_layers("Ett|tt|tL", 3) == (2, 2, 1)


def test_experts_lie_as_published(records: dict[str, Record]) -> None:
    def mesh(name: str) -> tuple[int, int, int]:
        strategy = run_of(records, name).strategy
        return strategy.tp, strategy.ep, strategy.etp

    assert mesh("moezoo-qwen3-235b-h100-256-tuned") == (2, 32, 1)
    # Unstated: Megatron splits experts as the other layers.
    assert mesh("dgxc-grok1-h100-64-bf16-L8") == (4, 8, 4)
    assert mesh("korthikanti-22b-8-full") == (8, 1, 8)


def test_experts_that_do_not_fit_the_ranks_of_a_stage(records: dict[str, Record]) -> None:
    # tp 2 x cp 1 x dp 16 = 32 ranks.
    record = records["moezoo-qwen3-235b-h100-256-tuned"]
    wide = record.model_copy(
        update={"parallel": record.parallel.model_copy(update={"ep": 32, "etp": 2})}
    )
    with pytest.raises(CannotEstimateError, match="ep 32 x etp 2 ranks do not divide the 32"):
        to_run(wide)


def test_memory_units(records: dict[str, Record]) -> None:
    bloom = next(r for r in records.values() if r.memory and r.memory.nvidia_smi_gb)
    assert bloom.memory is not None
    assert measured_figures(bloom).nvidia_smi_gib == bloom.memory.nvidia_smi_gb
    titan = measured_figures(records["torchtitan-llama3.1-8b-32h200-fp8"])
    assert titan.reserved_gib == 47.96


def test_every_malformed_line_is_reported(tmp_path: Path) -> None:
    good: dict[str, Any] = json.loads(LINES.read_text(encoding="utf-8").splitlines()[0])
    wrong = {**good, "id": "wrong", "hardware": {"gpu": "x", "gpus": -1}}
    file = tmp_path / "runs.jsonl"
    lines = [json.dumps(good), "{", json.dumps(wrong), json.dumps(good), ""]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_records(file)
    where = [(problem.where, problem.key) for problem in caught.value.problems]
    assert where == [(f"{file}:2", "record"), (f"{file}:3", "hardware.gpus"), (f"{file}:4", "id")]


def test_a_line_that_is_no_record_is_skipped_by_name(tmp_path: Path) -> None:
    good: dict[str, Any] = json.loads(LINES.read_text(encoding="utf-8").splitlines()[0])
    file = tmp_path / "runs.jsonl"
    lines = [json.dumps(good), json.dumps({**good, "id": "odd", "task": "distillation"}), "{"]
    file.write_text("\n".join(lines), encoding="utf-8")
    runs = read_runs(file)
    assert [record.id for record in runs.records] == [good["id"]]
    assert [line.name for line in runs.unread] == ["odd", f"{file}:3"]
    assert runs.unread[0].problems[0].key == "task"


def test_a_file_without_any_record_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(InputError):
        read_runs(file)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"extra": 1}, "extra"),
        ({"task": "distillation"}, "task"),
        ({"runtime": {"cuda_graph": ["all"]}}, "runtime.cuda_graph.0"),
        ({"assumed": {"vpp": 2}}, "record"),
        ({"parallel": {"pp": 10**10}}, "parallel.pp"),
        ({"parallel": {"micro_batch": 10**300}}, "parallel.micro_batch"),
        ({"mfu": 10**400}, "record"),
    ],
    ids=str,
)
def test_what_the_reader_does_not_know_is_refused(
    changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    good = json.loads(LINES.read_text(encoding="utf-8").splitlines()[0])
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({**good, **changes}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_records(file)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_records(tmp_path / "none.jsonl")


def test_alternating_windows_are_mapped(records: dict[str, Record]) -> None:
    name = "bridge-26.02-gpt-oss-120b-b300-64-bf16-tp1pp1cp1vp1ep64-gbs1280"
    model = run_of(records, name).context.model
    assert (model.sliding_window, model.windowed_share) == (128, 0.5)


def test_layers_offloaded_under_one_stage_are_mapped(records: dict[str, Record]) -> None:
    name = "bridge-26.04.01-llama3-70b-gb200-64-fp8-tp1pp1cp1vp1ep1-gbs256"
    run = to_run(records[name])
    assert run.strategy.zero_stage == 3
    assert run.strategy.offloaded_layers_per_stage == (40,)
    assert run.strategy.offload == "none"


def test_biases_are_as_stated_else_those_of_models_that_are_not_gated(
    records: dict[str, Record],
) -> None:
    def model(name: str) -> ModelSpec:
        return run_of(records, name).context.model

    assert model("korthikanti-22b-8-full").biases.mlp
    assert not model("dgxc-nemotron4-15b-h100-16-bf16").biases.mlp
    clamped = model("bridge-26.08-gpt-oss-120b-gb200-64-mxfp8-tp1pp1cp1vp1ep64-gbs1280")
    assert clamped.moe
    assert clamped.moe.expert_bias
    assert clamped.biases.qkv
    assert clamped.clamps_gate

"""Writing DeepSpeed files: keys of every decision, refusals by name, edits of a user's file."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.deepspeed.format import emit, write_into
from planner.formats.format import SourceText
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_optimizer
from planner.spec.strategy import Strategy

PLAN = Strategy(
    dp=8, tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1, zero_stage=1, micro_batch=1, num_micro_batches=2,
    sequence_parallel=False, offload="none", layers_per_stage=(4,),
    selective_layers_per_stage=(0,), recompute_layers_per_stage=(0,),
)  # fmt: skip


@pytest.fixture
def context(context_of: Callable[..., Context]) -> Context:
    return context_of(framework="deepspeed")


def content(context: Context, **changes: Any) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(emit(context, replace(PLAN, **changes)).files[0].text)
    return written


def test_a_plain_plan_states_batch_precision_optimizer_and_stage(context: Context) -> None:
    assert content(context) == {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {
            "stage": 1,
            "overlap_comm": True,
            "reduce_bucket_size": 500000000,
            "allgather_bucket_size": 500000000,
        },
        "training_script": {"sequence_length": 1024},
    }


def test_another_frameworks_plan_leaves_buckets_to_deepspeed(
    context_of: Callable[..., Context],
) -> None:
    zero = content(context_of(framework="megatron"))["zero_optimization"]
    assert not [key for key in zero if key.endswith("_bucket_size")]


def test_several_nodes_come_with_a_hostfile(context_of: Callable[..., Context]) -> None:
    several = context_of(framework="deepspeed", cluster="2xdgx-h100")
    files = emit(several, replace(PLAN, dp=16)).files
    assert [file.name for file in files] == ["ds_config.json", "hostfile"]
    assert files[1].text == "worker-0 slots=8\nworker-1 slots=8\n"
    assert [file.name for file in emit(several, PLAN).files] == ["ds_config.json"]


def test_autotp_states_replicas_in_place_of_the_batch(context: Context) -> None:
    written = content(context, dp=4, tp=2, etp=2, num_micro_batches=4)
    assert written["tensor_parallel"] == {"autotp_size": 2}
    assert written["data_parallel_size"] == 4
    assert "train_batch_size" not in written


def test_a_pipeline_leaves_its_stages_to_the_script(context: Context) -> None:
    stages = {"pp": 2, "layers_per_stage": (1, 3), "recompute_layers_per_stage": (1, 0)}
    counts = {
        "selective_layers_per_stage": (0, 0),
        "dp": 2,
        "tp": 2,
        "etp": 2,
        "num_micro_batches": 8,
    }
    plan = replace(PLAN, **stages, **counts)
    emitted = emit(context, plan)
    written = json.loads(emitted.files[0].text)
    assert written["pipeline"] == {"stages": 2}
    assert "tensor_parallel" not in written
    assert written["training_script"] == {
        "sequence_length": 1024,
        "tensor_parallel_size": 2,
        "layers_per_stage": [1, 3],
        "recompute_layers_per_stage": [1, 0],
    }
    assert "PipelineModule of 2 stages" in emitted.variables["TRAIN_SCRIPT"]
    assert emitted.command[0] == "${TRAIN_SCRIPT}"


def test_offload_names_devices_paths_and_the_share(context: Context) -> None:
    written = content(
        context, zero_stage=3, offload="optimizer+parameters:nvme", offload_percent=50
    )
    zero = written["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "nvme"
    assert zero["offload_optimizer"]["nvme_path"]
    assert zero["offload_optimizer"]["ratio"] == 0.5
    assert "ratio" not in zero["offload_param"]


def test_zero_plus_plus_shares_weights_inside_the_node(context: Context) -> None:
    zeropp = replace(context, traits=load_traits("deepspeed", "zero++"))
    zero = content(zeropp, zero_stage=3)["zero_optimization"]
    assert zero["zero_hpz_partition_size"] == 8
    assert "zero_hpz_partition_size" not in content(zeropp, zero_stage=2)["zero_optimization"]


@pytest.mark.parametrize(
    ("name", "stage", "expected"),
    [
        ("adam-bf16", 2, {"type": "AdamW", "params": {"torch_adam": True}}),
        ("sgd-momentum", 1, {"type": "SGD", "params": {"momentum": 0.9}}),
        ("muon", 3, {"type": "Muon"}),
        ("lion", 1, {"type": "Lion"}),
    ],
)
def test_optimizers_come_with_what_they_need(
    context: Context, name: str, stage: int, expected: dict[str, Any]
) -> None:
    traits = with_optimizer(context.traits, name)
    written = content(replace(context, traits=traits), zero_stage=stage)
    assert written["optimizer"] == expected
    assert written.get("zero_allow_untested_optimizer", False) is (name == "sgd-momentum")
    scatters = written["zero_optimization"].get("reduce_scatter", True)
    assert scatters is (name != "muon")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vpp": 2}, "vpp 2"),
        ({"schedule": "gpipe"}, "schedule gpipe"),
        ({"pp": 2, "zero_stage": 2}, "zero_stage 2 with pp 2"),
        ({"pp": 2, "cp": 2}, "cp 2 with pp 2"),
        ({"placement": "tp-cp-ep-pp-dp"}, "placement tp-cp-ep-pp-dp"),
        ({"sequence_parallel": True}, "sequence_parallel"),
        ({"tp": 2, "cp": 2}, "cp 2 with tp 2"),
        ({"ep": 2, "tp": 2, "etp": 2}, "ep 2 with"),
        ({"tp": 2}, "etp 1 with tp 2"),
        ({"tp": 32}, "tp 32: AutoTP splits attention along the 16"),
        ({"cp": 3}, "cp 3: Ulysses splits the 16 heads"),
        ({"dp_replicate": 2}, "dp_replicate 2"),
        ({"offloaded_layers_per_stage": (1,)}, "offloaded_layers_per_stage"),
        ({"offload": "optimizer:host", "zero_stage": 0}, "offload optimizer:host"),
        ({"offload": "optimizer:nvme"}, "NVMe"),
        ({"offload": "optimizer+parameters:host"}, "offload_param needs stage 3"),
        ({"offload": "optimizer:host", "offload_percent": 50}, "offload_percent 50"),
    ],
)
def test_what_no_key_can_say_is_refused_by_name(
    context: Context, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ExpressError, match=reason):
        emit(context, replace(PLAN, **changes))


def test_precision_optimizer_and_groups_are_refused_by_name(context: Context) -> None:
    fp8 = replace(context, job=replace(context.job, precision="fp8"))
    with pytest.raises(ExpressError, match="precision fp8"):
        emit(fp8, PLAN)
    half = replace(context, traits=with_optimizer(context.traits, "adam-bf16"))
    with pytest.raises(ExpressError, match="needs bf16"):
        emit(replace(half, job=replace(context.job, precision="fp16")), PLAN)
    zeropp = replace(context, traits=load_traits("deepspeed", "zero++"))
    with pytest.raises(ExpressError, match="zero_hpz_partition_size 8 with tp"):
        emit(zeropp, replace(PLAN, zero_stage=3, tp=2))
    with pytest.raises(ExpressError, match="must divide 12"):
        emit(zeropp, replace(PLAN, zero_stage=3, dp=12))
    lion = replace(context, traits=with_optimizer(context.traits, "lion"))
    with pytest.raises(ExpressError, match="needs Adam"):
        emit(lion, replace(PLAN, zero_stage=3, offload="optimizer:host", offload_percent=50))


def test_every_written_key_is_explained(context: Context) -> None:
    emitted = emit(context, PLAN)
    text = emitted.files[0].text
    assert all(each.why and each.key.split(".")[-1] in text for each in emitted.decided)


USER = """{
  // ours since 2024
  "train_batch_size": 64, # was 128
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": 0.5,
  "bfloat16": {"enabled": true},
  "optimizer": {"type": "Adam", "params": {"lr": 3e-4}},
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": 1e8,
    "offload_optimizer": {"device": "cpu", "buffer_count": 4}
  }
}
"""


def test_a_plan_is_written_into_a_users_file_in_place(context: Context) -> None:
    assert write_into(SourceText(path="ds.json", text=USER), context, PLAN) == (
        """{
  // ours since 2024
  "train_batch_size": 16, # was 128
  "train_micro_batch_size_per_gpu": 1,
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": 0.5,
  "bfloat16": {"enabled": true},
  "optimizer": {"type": "Adam", "params": {"lr": 3e-4}},
  "zero_optimization": {
    "stage": 1,
    "reduce_bucket_size": 1e8,
    "offload_optimizer": {"device": "none", "buffer_count": 4}
  }
}
"""
    )


@pytest.mark.parametrize(
    "section",
    ['"offload_param": {"device": "cpu"}', '"cpu_offload": false'],
    ids=["weights alone", "old switch"],
)
def test_an_offload_that_decides_nothing_stays(context: Context, section: str) -> None:
    text = f'{{"zero_optimization": {{"stage": 3, {section}}}}}'
    written = write_into(SourceText(path="f", text=text), context, replace(PLAN, zero_stage=3))
    assert section in written


def test_the_old_switch_of_an_offload_stays_where_it_says_the_same(context: Context) -> None:
    text = '{"zero_optimization": {"stage": 2, "cpu_offload": true}}'
    source = SourceText(path="f", text=text)
    zero_1 = json.loads(write_into(source, context, replace(PLAN, offload="optimizer:host")))
    assert zero_1["zero_optimization"] == {"stage": 1, "cpu_offload": True}
    none = json.loads(write_into(source, context, PLAN))
    assert none["zero_optimization"] == {"stage": 1}


def test_an_optimizer_is_changed_and_never_added(context: Context) -> None:
    lion = replace(context, traits=with_optimizer(context.traits, "lion"))
    changed = write_into(SourceText(path="ds.json", text=USER), lion, PLAN)
    assert '"optimizer": {"type": "Lion", "params": {"lr": 3e-4}}' in changed
    assert "optimizer" not in json.loads(write_into(SourceText(path="f", text="{}"), lion, PLAN))


FOR_TRAINER = """{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "fp16": {"enabled": "auto"},
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 2}
}
"""


def test_what_trainer_fills_in_stays_its_own(context: Context) -> None:
    source = SourceText(path="ds.json", text=FOR_TRAINER)
    written = write_into(source, context, replace(PLAN, zero_stage=3))
    assert written == FOR_TRAINER.replace('"stage": 2', '"stage": 3')
    larger = write_into(source, context, replace(PLAN, zero_stage=2, micro_batch=2))
    micro = '"train_micro_batch_size_per_gpu": '
    assert larger == FOR_TRAINER.replace(f'{micro}"auto"', f"{micro}2")


@pytest.mark.parametrize(
    ("micro", "steps", "written"),
    [
        (
            '"auto"',
            "4",
            {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2},
        ),
        (
            "4",
            '"auto"',
            {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": "auto"},
        ),
    ],
)
def test_of_a_batch_that_is_partly_auto_the_numbers_change(
    context: Context, micro: str, steps: str, written: dict[str, object]
) -> None:
    text = f'{{"train_micro_batch_size_per_gpu": {micro}, "gradient_accumulation_steps": {steps}}}'
    made = json.loads(write_into(SourceText(path="f", text=text), context, PLAN))
    assert {key: made[key] for key in written} == written
    assert "train_batch_size" not in made


@pytest.mark.parametrize("kind", ["Lamb", "RAdam", "auto"])
def test_an_optimizer_that_no_plan_has_stays(context: Context, kind: str) -> None:
    text = json.dumps({"optimizer": {"type": kind, "params": {"lr": 0.1}}})
    written = json.loads(write_into(SourceText(path="f", text=text), context, PLAN))
    assert written["optimizer"] == {"type": kind, "params": {"lr": 0.1}}


def test_momentum_goes_where_the_plan_counts_none(context: Context) -> None:
    text = '{"optimizer": {"type": "SGD", "params": {"lr": 1.0, "momentum": 0.9}}}'
    sgd = replace(context, traits=with_optimizer(context.traits, "sgd"))
    written = json.loads(write_into(SourceText(path="f", text=text), sgd, PLAN))
    assert written["optimizer"]["params"] == {"lr": 1.0}


def test_writing_into_a_file_refuses_what_emitting_refuses(context: Context) -> None:
    with pytest.raises(ExpressError, match="vpp 2"):
        write_into(SourceText(path="f", text="{}"), context, replace(PLAN, vpp=2))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"recompute_layers_per_stage": (2,)}, "training_script.recompute_layers_per_stage"),
        ({"pp": 2, "dp": 4, "layers_per_stage": (2, 2)}, "pipeline.stages"),
    ],
)
def test_nothing_for_a_script_is_written_into_a_file_that_trainer_fills_in(
    context: Context, changes: dict[str, Any], key: str
) -> None:
    none = (0,) * len(changes.get("layers_per_stage", (4,)))
    counts = {"selective_layers_per_stage": none, "recompute_layers_per_stage": none}
    plan = replace(PLAN, **{**counts, "num_micro_batches": 16 // changes.get("dp", 8), **changes})
    with pytest.raises(ExpressError, match=key):
        write_into(SourceText(path="ds.json", text=USER), context, plan)

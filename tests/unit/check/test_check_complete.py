"""What a file leaves open follows from the job; what it contradicts is said at its line."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_format import FORMAT, demo_text
from places import assert_places

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.check.check import legality_findings
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.query.from_file import Job, Request
from planner.query.layout import Completed, complete

CASES = yaml.safe_load(Path(__file__).with_name("completed.yaml").read_text("utf-8"))


def completed(job: dict[str, int] | None = None, **changes: object) -> Completed:
    reading = FORMAT.read(SourceText(path="run.demo", text=demo_text(**changes)))
    request = Request(**(job or {}))
    model, cluster = load_model("llama3-8b"), load_cluster("2xdgx-h100")
    return complete(reading, Job(model=model, cluster=cluster, request=request), "megatron")


@pytest.mark.parametrize(
    ("job", "keys", "places"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_what_a_file_leaves_open_follows(
    job: dict[str, int], keys: dict[str, Any], places: dict[str, Any]
) -> None:
    made = completed(job, **keys)
    assert made.findings == ()
    assert_places(made.layout, places)


def said(made: Completed) -> list[tuple[str, str, int]]:
    assert made.layout is None or made.findings
    return [(finding.rule, finding.key, finding.line) for finding in made.findings]


def test_what_nobody_states_is_assumed_in_words() -> None:
    assert completed(length=4096, precision="bf16").assumed == ()
    assert completed({"seq_len": 4096}, precision="bf16").assumed == ()
    open_batch = completed(length=4096, precision="bf16", batch=None, micro=None)
    assert open_batch.assumed == ("micro-batch 1", "one micro-batch per iteration")
    assert completed().assumed == ("sequences of 8192 tokens", "bf16")


def test_a_padded_vocabulary_is_the_models() -> None:
    assert completed(vocabulary=128256).findings == ()
    assert completed(vocabulary=128384).findings == ()
    assert said(completed(vocabulary=128512)) == [("job.model", "vocabulary", 7)]


@pytest.mark.parametrize("digits", [3999, 5000])
def test_a_number_of_thousands_of_digits_is_a_finding(digits: int) -> None:
    assert [finding.rule for finding in completed(tp="9" * digits).findings] == ["job.value"]


def test_the_world_knows_file_job_and_model() -> None:
    world = completed(micro=2).world
    known = {"tp": 2, "dp": 8, "num_micro_batches": 8, "model.num_heads": 32, "num_gpus": 16}
    assert known.items() <= dict(world.decisions).items()
    assert world.decisions["layers_per_stage"] == (32,)


def test_rules_are_asked_where_the_gpus_do_not_divide() -> None:
    world = completed(tp=3).world
    assert world.decisions["tp"] == 3
    assert "dp" not in world.decisions


def of_format(name: str, text: str, model: str = "llama3-8b", framework: str = "") -> Completed:
    reading = load_format(name).read(SourceText(path="run", text=text))
    job = Job(model=load_model(model), cluster=load_cluster("2xdgx-h100"))
    return complete(reading, job, framework or name)


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("trainer", '{"per_device_train_batch_size": 1,\n"deepspeed": "ds.json"}', "deepspeed"),
        (
            "accelerate",
            "{distributed_type: DEEPSPEED, deepspeed_config:\n{deepspeed_config_file: ds.json}}",
            "deepspeed_config.deepspeed_config_file",
        ),
    ],
)
def test_states_split_by_another_file_are_not_guessed_and_its_key_named(
    name: str, text: str, key: str
) -> None:
    assert said(of_format(name, text, framework="accelerate")) == [("job.zero_stage", key, 2)]


@pytest.mark.parametrize(
    ("options", "held"),
    [
        ("--bf16", 4),
        ("--bf16 --grad-reduce-in-bf16", 2),
        ("--fp16", 2),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 4),
    ],
)
def test_gradients_are_as_wide_as_megatron_s_options_make_them(options: str, held: int) -> None:
    text = f"--num-layers 32 --micro-batch-size 1 --global-batch-size 16 {options}\n"
    states = of_format("megatron", text).layout.context.traits.states
    assert (states.gradient_bytes, states.gradient_reduce_bytes) == (held, held)


def test_chunks_that_plans_do_not_model_are_no_error() -> None:
    text = "--module llama3 --config llama3_70b --parallelism.pipeline_parallel_degree 4 "
    text += "--training.local_batch_size 8 --parallelism.data_parallel_shard_degree 4 "
    text += "--parallelism.tensor_parallel_degree 1 "
    text += "--parallelism.pipeline_parallel_schedule Interleaved1F1B\n"
    layout = of_format("torchtitan", text, "llama3-70b").layout
    found = [(one.rule, one.severity) for one in legality_findings(layout, is_plan=False)]
    assert found == [("legality.chunks_offered", "warning")]


def test_all_sizes_that_one_word_chooses_are_one_finding_at_that_word() -> None:
    words = "--module llama3 --config llama3_70b\n"
    found = of_format("torchtitan", words).findings
    assert [(each.rule, each.key) for each in found] == [("job.model", "--config")]
    assert found[0].message == "num layers of llama3-8b is 32; given 80 (and 3 other sizes)"

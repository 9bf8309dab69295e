"""What a file leaves open follows from the job; what it contradicts is said at its line."""

import pytest
from fake_format import FORMAT, demo_text

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.check.check import legality_findings
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.query.from_file import Job, Request
from planner.query.layout import Completed, complete
from planner.spec.strategy import Strategy


def completed(job: dict[str, int] | None = None, **changes: object) -> Completed:
    reading = FORMAT.read(SourceText(path="run.demo", text=demo_text(**changes)))
    request = Request(**(job or {}))
    model, cluster = load_model("llama3-8b"), load_cluster("2xdgx-h100")
    return complete(reading, Job(model=model, cluster=cluster, request=request), "megatron")


def strategy_of(made: Completed) -> Strategy:
    assert made.findings == ()
    assert made.layout is not None
    return made.layout.strategy


def said(made: Completed) -> list[tuple[str, str, int]]:
    assert made.layout is None or made.findings
    return [(finding.rule, finding.key, finding.line) for finding in made.findings]


def test_data_parallelism_is_what_the_cluster_leaves() -> None:
    strategy = strategy_of(completed(pp=2, cp=2))
    assert (strategy.dp, strategy.num_gpus) == (2, 16)


def test_gpus_of_the_file_come_before_those_of_the_cluster() -> None:
    assert strategy_of(completed(gpus=8)).dp == 4


def test_gpus_of_the_job_come_before_those_of_the_cluster() -> None:
    assert strategy_of(completed({"num_gpus": 4})).dp == 2


def test_gpus_follow_from_all_degrees() -> None:
    made = completed(dp=4)
    assert made.world.num_gpus == 8
    assert strategy_of(made).num_micro_batches == 32


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"batch": 128, "micro": 2, "steps": None}, (2, 8, 128)),
        ({"batch": 128, "micro": None, "steps": 4}, (4, 4, 128)),
        ({"batch": 128, "micro": None, "steps": None}, (1, 16, 128)),
        ({"batch": None, "micro": 2, "steps": 4}, (2, 4, 64)),
        ({"batch": None, "micro": 2, "steps": None}, (2, 1, 16)),
        ({"batch": None, "micro": None, "steps": None}, (1, 1, 8)),
        ({"batch": 64, "micro": 2, "steps": 4}, (2, 4, 64)),
    ],
)
def test_what_is_open_of_the_batch_follows(
    given: dict[str, object], expected: tuple[int, int, int]
) -> None:
    made = completed(**given)
    strategy = strategy_of(made)
    assert made.layout is not None
    batch = made.layout.context.job.global_batch
    assert (strategy.micro_batch, strategy.num_micro_batches, batch) == expected


def test_the_batch_of_the_job_stands_in_for_the_files() -> None:
    assert strategy_of(completed({"global_batch": 256}, batch=None)).num_micro_batches == 32


def test_what_nobody_states_is_assumed_in_words() -> None:
    assert completed(length=4096, precision="bf16").assumed == ()
    assert completed({"seq_len": 4096}, precision="bf16").assumed == ()
    open_batch = completed(length=4096, precision="bf16", batch=None, micro=None)
    assert open_batch.assumed == ("micro-batch 1", "one micro-batch per iteration")
    assert completed().assumed == ("sequences of 8192 tokens", "bf16")


def test_layers_are_dealt_out_evenly() -> None:
    assert strategy_of(completed(pp=4)).layers_per_stage == (8, 8, 8, 8)
    assert strategy_of(completed(pp=4, layers="7,9,9,7")).layers_per_stage == (7, 9, 9, 7)


def test_all_stands_for_every_layer_of_every_stage() -> None:
    strategy = strategy_of(completed(pp=4, layers="7,9,9,7", full="all"))
    assert strategy.recompute_layers_per_stage == (7, 9, 9, 7)


def test_the_sequence_length_is_the_files_the_jobs_or_the_usual() -> None:
    def length(made: Completed) -> int:
        assert made.layout is not None
        return made.layout.context.job.seq_len

    assert length(completed(length=2048)) == 2048
    assert length(completed({"seq_len": 4096})) == 4096
    assert length(completed()) == 8192


def test_placement_and_optimizer_are_the_frameworks_usual() -> None:
    made = completed(optimizer="sgd")
    assert strategy_of(made).placement == "tp-cp-ep-dp-pp"
    assert made.layout is not None
    assert made.layout.context.traits.optimizer.name == "sgd"
    assert strategy_of(completed()).schedule == "1f1b"


def test_a_profile_that_offers_the_schedule_is_taken() -> None:
    made = completed(pp=2, schedule="zb-h1")
    assert made.layout is not None
    assert made.layout.context.traits.profile == "zero-bubble"


def test_a_padded_vocabulary_is_the_models() -> None:
    assert completed(vocabulary=128256).findings == ()
    assert completed(vocabulary=128384).findings == ()
    assert said(completed(vocabulary=128512)) == [("job.model", "vocabulary", 7)]


def test_a_number_of_thousands_of_digits_is_a_finding() -> None:
    (finding,) = completed(tp="9" * 3999).findings
    assert finding.rule == "job.value"
    (finding,) = completed(tp="9" * 5000).findings
    assert finding.rule == "job.value"


def test_the_world_knows_file_job_and_model() -> None:
    world = completed(micro=2).world
    known = {"tp": 2, "dp": 8, "num_micro_batches": 8, "model.num_heads": 32, "num_gpus": 16}
    assert known.items() <= dict(world.decisions).items()
    assert world.decisions["layers_per_stage"] == (32,)


def test_rules_are_asked_where_the_gpus_do_not_divide() -> None:
    world = completed(tp=3).world
    assert world.decisions["tp"] == 3
    assert "dp" not in world.decisions


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
    reading = load_format(name).read(SourceText(path="run", text=text))
    job = Job(model=load_model("llama3-8b"), cluster=load_cluster("2xdgx-h100"))
    assert said(complete(reading, job, "accelerate")) == [("job.zero_stage", key, 2)]


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
    reading = load_format("megatron").read(SourceText(path="megatron.args", text=text))
    job = Job(model=load_model("llama3-8b"), cluster=load_cluster("2xdgx-h100"))
    layout = complete(reading, job, "megatron").layout
    assert layout is not None
    states = layout.context.traits.states
    assert (states.gradient_bytes, states.gradient_reduce_bytes) == (held, held)


def test_chunks_that_plans_do_not_model_are_no_error() -> None:
    text = "--module llama3 --config llama3_70b --parallelism.pipeline_parallel_degree 4 "
    text += "--training.local_batch_size 8 --parallelism.data_parallel_shard_degree 4 "
    text += "--parallelism.tensor_parallel_degree 1 "
    text += "--parallelism.pipeline_parallel_schedule Interleaved1F1B\n"
    reading = load_format("torchtitan").read(SourceText(path="torchtitan.args", text=text))
    job = Job(model=load_model("llama3-70b"), cluster=load_cluster("2xdgx-h100"))
    layout = complete(reading, job, "torchtitan").layout
    assert layout is not None
    found = [(one.rule, one.severity) for one in legality_findings(layout, is_plan=False)]
    assert found == [("legality.chunks_offered", "warning")]


def test_all_sizes_that_one_word_chooses_are_one_finding_at_that_word() -> None:
    words = "--module llama3 --config llama3_70b\n"
    reading = load_format("torchtitan").read(SourceText(path="a.args", text=words))
    job = Job(model=load_model("llama3-8b"), cluster=load_cluster("2xdgx-h100"))
    found = list(complete(reading, job, "torchtitan").findings)
    assert [(each.rule, each.key) for each in found] == [("job.model", "--config")]
    assert found[0].message == "num layers of llama3-8b is 32; given 80 (and 3 other sizes)"

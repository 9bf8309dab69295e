"""What scripts that start OpenRLHF decide, in the options of two of its releases."""

import pytest

from planner.formats.format import ALL, Reading, SourceText
from planner.formats.registry import load_format, recognised

SFT = """\
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \\
   --max_len 4096 \\
   --train_batch_size 256 \\
   --micro_train_batch_size 2 \\
   --pretrain meta-llama/Meta-Llama-3-8B \\
   --zero_stage 3 {more}
EOF
deepspeed --module $training_commands
"""
PPO = """\
ray job submit -- python3 -m openrlhf.cli.train_ppo_ray \\
   --actor.num_nodes 2 --actor.num_gpus_per_node 8 \\
   --actor.model_name_or_path Qwen/Qwen2.5-7B-Instruct \\
   --vllm.gpu_memory_utilization 0.6 \\
   --train.micro_batch_size 2 --train.batch_size 128 \\
   --data.max_len 2048 --ds.zero_stage 2 {more}
"""
OLD = """\
python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --actor_num_gpus_per_node 4 \\
   --prompt_max_len 1024 --generate_max_len 3072 \\
   --micro_train_batch_size 2 --train_batch_size 128 --vllm_gpu_memory_utilization 0.4 {more}
"""


def read(more: str = "", text: str = PPO) -> Reading:
    source = SourceText(path="run.sh", text=text.format(more=more))
    assert [each.name for each in recognised(source)] == ["openrlhf"]
    return load_format("openrlhf").read(source)


def decided(reading: Reading) -> dict[str, object]:
    return {name: value.value for name, value in reading.decisions.items()}


def note(reading: Reading) -> str:
    (found,) = [each.message for each in reading.findings if each.rule == "job.unpriced"]
    return found


def test_a_command_in_a_here_document_is_read_with_its_lines() -> None:
    reading = read("--gradient_checkpointing", SFT)
    found = decided(reading)
    assert (found["micro_batch"], found["global_batch"], found["zero_stage"]) == (2, 256, 3)
    assert found["recompute_layers_per_stage"] == ALL
    assert reading.decisions["zero_stage"].line == 7
    assert reading.longest is not None
    assert reading.longest.value == 4096
    assert not reading.findings


def test_fine_tuning_takes_its_gpus_from_the_launcher() -> None:
    command = (
        "deepspeed --num_nodes 2 --num_gpus 4 --module openrlhf.cli.train_sft --max_len 1024 {more}"
    )
    assert decided(read("", command))["num_gpus"] == 8
    assert "num_gpus" not in decided(read("", SFT))


def test_the_actor_s_gpus_are_the_job_s() -> None:
    found = decided(read())
    assert found["num_gpus"] == 16
    assert (found["micro_batch"], found["global_batch"]) == (2, 128)


def test_options_of_older_releases_say_the_same() -> None:
    reading = read("--adam_offload", OLD)
    found = decided(reading)
    assert found["num_gpus"] == 4
    assert found["offload"] == "optimizer:host"
    assert reading.longest is not None
    assert reading.longest.value == 4096


def test_a_bound_on_tokens_fills_micro_batches() -> None:
    reading = read("--train.dynamic_batch_enable --train.max_tokens_per_gpu 8192")
    found = decided(reading)
    assert (found["micro_batch"], found["num_micro_batches"]) == (4, 128 // (16 * 4))
    assert "global_batch" not in found


@pytest.mark.parametrize(
    ("more", "share"),
    [
        ("--train.colocate_all", 0.6),
        ("--train.colocate_all --vllm.enable_sleep", None),
        ("--train.colocate_all --train.async_enable", None),
        ("", None),
    ],
)
def test_vllm_s_share_is_taken_off_where_it_stays(more: str, share: float | None) -> None:
    held = read(more).held_share
    assert (held and held.value) == share


def test_what_shares_the_gpus_is_named() -> None:
    assert "the critic, whose states share these GPUs" in note(read("--train.colocate_all"))
    alone = note(read("--algo.advantage.estimator rloo"))
    assert "critic" not in alone
    assert "vLLM has GPUs of its own" in alone


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--ds.ring_attn_size 2", "ring attention is not modelled"),
        ("--ds.lora.rank 64", "adapters under DeepSpeed"),
        ("--ds.zpg 8", "second shards within a node"),
        ("--actor.optim muon", "plans price adam"),
    ],
)
def test_what_is_not_priced_is_said_by_its_option(more: str, words: str) -> None:
    assert words in read(more).unpriced


def test_a_size_by_an_unset_variable_is_left_open() -> None:
    reading = read("--ds.tensor_parallel_size $TP --data.max_len $LENGTH")
    assert set(reading.left_open) == {"tp"}
    assert reading.longest is None
    assert any(each.rule == "openrlhf.unresolved" for each in reading.findings)

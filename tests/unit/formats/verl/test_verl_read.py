"""What scripts that start verl decide, what of them is priced, and what is said beside."""

from pathlib import Path

import pytest

from planner.check.check import check_file
from planner.check.job import Request
from planner.formats.format import ALL, Reading, SourceText
from planner.formats.registry import load_format, recognised

PPO = """\
set -x
n=${{GROUP:-8}}
python3 -m verl.trainer.main_ppo {head} \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=512 \\
    data.max_prompt_length=$((1024 * 2)) \\
    data.max_response_length=6144 \\
    actor_rollout_ref.model.path=$HOME/models/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=8 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=2 {more} $@
"""
ACTOR = "actor_rollout_ref.actor"
FSDP = f"{ACTOR}.fsdp_config"
MEGATRON = f"{ACTOR}.megatron"
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"


def read(more: str = MICRO, head: str = "", text: str = PPO) -> Reading:
    source = SourceText(path="run.sh", text=text.format(more=more, head=head))
    assert [each.name for each in recognised(source)] == ["verl"]
    return load_format("verl").read(source)


def decided(reading: Reading) -> dict[str, object]:
    return {name: value.value for name, value in reading.decisions.items()}


def test_a_mini_batch_is_so_many_answers_to_each_prompt() -> None:
    found = decided(read())
    assert found["num_gpus"] == 16
    assert found["micro_batch"] == 4
    assert found["num_micro_batches"] == 128 * 8 // (16 * 4)


def test_sequences_are_as_long_as_prompt_and_response_at_most() -> None:
    reading = read()
    assert reading.longest is not None
    assert reading.longest.value == 8192
    assert "seq_len" not in reading.decisions


def test_padded_sequences_are_that_long() -> None:
    reading = read(f"{MICRO} actor_rollout_ref.model.use_remove_padding=False")
    assert decided(reading)["seq_len"] == 8192
    assert reading.longest is None


def test_a_bound_on_tokens_fills_micro_batches() -> None:
    reading = read(f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=20480")
    found = decided(reading)
    assert reading.longest is not None
    assert found["micro_batch"] == 2
    assert reading.longest.value * 2 == 20480
    assert found["num_micro_batches"] == -(-128 * 8 * 8192 // (16 * 20480))


def test_ranks_of_a_sequence_share_the_bound() -> None:
    bound = f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=4096"
    found = decided(read(f"{bound} {ACTOR}.ulysses_sequence_parallel_size=2"))
    assert (found["cp"], found["micro_batch"]) == (2, 1)
    assert found["num_micro_batches"] == 128 * 8 // 8


def test_states_moved_to_the_host_between_phases_are_back_for_the_step() -> None:
    between = f"{FSDP}.param_offload=True {FSDP}.optimizer_offload=True"
    assert "offload" not in decided(read(f"{MICRO} {between}"))
    within = f"{ACTOR}.strategy=fsdp2 {FSDP}.offload_policy=True"
    assert decided(read(f"{MICRO} {within}"))["offload"] == "optimizer+parameters:host"


def test_gradient_checkpointing_is_on_unless_it_is_switched_off() -> None:
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    assert decided(read())["recompute_layers_per_stage"] == ALL
    assert "recompute_layers_per_stage" not in decided(read(f"{MICRO} {key}=False"))


def test_groups_of_shards_are_replicas_of_each_other() -> None:
    assert decided(read(f"{MICRO} {FSDP}.fsdp_size=8"))["dp_replicate"] == 2
    assert "dp_replicate" not in decided(read(f"{MICRO} {FSDP}.fsdp_size=-1"))


def test_megatron_s_sizes_are_its_own() -> None:
    sizes = f"{MEGATRON}.tensor_model_parallel_size=4 {MEGATRON}.pipeline_model_parallel_size=2"
    recompute = f"+{MEGATRON}.override_transformer_config.recompute_granularity"
    more = f"{recompute}=full +{MEGATRON}.override_transformer_config.recompute_method=uniform"
    reading = read(f"{MICRO} {sizes} {more}", "--config-name=ppo_megatron_trainer.yaml")
    found = decided(reading)
    assert load_format("verl").framework_of(reading) == "megatron"
    assert (found["tp"], found["pp"], found["dp"]) == (4, 2, 2)
    assert found["zero_stage"] == 1
    assert found["num_micro_batches"] == 128 * 8 // (2 * 4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("actor_rollout_ref.model.lora_rank=32", "model_dtype fp32: frozen weights in 32 bits"),
        ("actor_rollout_ref.model.enable_activation_offload=True", "activations go to the host"),
        (f"{ACTOR}.strategy=veomni", "strategy veomni: plans price fsdp, fsdp2, megatron"),
        (f"{ACTOR}.optim.optimizer=Muon", "optimizer Muon: of another library"),
        (f"{FSDP}.fsdp_size=2 {ACTOR}.ulysses_sequence_parallel_size=4", "the 4 ranks of a"),
    ],
)
def test_what_is_not_priced_is_said_by_its_key(more: str, words: str) -> None:
    assert words in read(f"{MICRO} {more}").unpriced


def test_adapters_beside_16_bits_are_priced() -> None:
    dtype = f"{FSDP}.model_dtype=bfloat16"
    more = f"actor_rollout_ref.model.lora_rank=32 {dtype}"
    reading = read(f"{MICRO} {more} 'actor_rollout_ref.model.target_modules=[q_proj,v_proj]'")
    assert not reading.unpriced
    assert reading.training is not None
    assert (reading.training.rank, reading.training.targets) == (32, ("q", "v"))


def test_the_engine_s_share_is_taken_off_only_while_it_keeps_it() -> None:
    assert read().held_share is None
    held = read(f"{MICRO} actor_rollout_ref.rollout.free_cache_engine=False").held_share
    assert held is not None
    assert held.value == 0.6


def test_what_shares_the_gpus_is_named() -> None:
    (note,) = [each for each in read().findings if each.rule == "job.unpriced"]
    assert "critic" not in note.message
    assert "generation and log-probabilities" in note.message
    text = PPO.replace("adv_estimator=grpo", "adv_estimator=gae")
    (note,) = [each for each in read(text=text).findings if each.rule == "job.unpriced"]
    assert "the critic, whose states share these GPUs" in note.message


def test_the_model_is_known_behind_a_variable() -> None:
    model = read().named_model
    assert model is not None
    assert model.value == "Qwen3-8B"


def test_a_size_by_an_unset_variable_is_left_open() -> None:
    reading = read(f"{MICRO} {ACTOR}.ulysses_sequence_parallel_size=$SP trainer.nnodes=$NODES")
    assert set(reading.left_open) == {"cp", "num_gpus"}


def test_a_misspelt_key_has_its_neighbour_named() -> None:
    found = read(f"{ACTOR}.ppo_mirco_batch_size_per_gpu=4").findings
    (wrong,) = [each for each in found if each.rule == "verl.unknown_key"]
    assert "did you mean actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu" in wrong.message


def test_another_configuration_is_named_and_not_read() -> None:
    found = read(head="--config-name='gsm8k_multiturn_grpo'").findings
    assert any(each.rule == "verl.other_config" for each in found)


def test_experimental_trainers_are_named_and_held_to_no_rule() -> None:
    text = PPO.replace("verl.trainer.main_ppo", "verl.experimental.one_step_off_policy.main_ppo")
    reading = read(text=text)
    assert reading.made_for
    (note,) = [each for each in reading.findings if each.rule == "job.unpriced"]
    assert "nothing of it is checked" in note.message


SFT = """\
torchrun --standalone --nnodes=1 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer {head} \\
    data.max_length=2048 data.train_batch_size=256 data.micro_batch_size_per_gpu=8 \\
    model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct {more}
"""


def test_fine_tuning_takes_its_processes_from_torchrun() -> None:
    found = decided(read("", text=SFT))
    assert found["num_gpus"] == 4
    assert found["num_micro_batches"] == 256 // (4 * 8)
    assert not [each for each in read("", text=SFT).findings if each.rule == "job.unpriced"]


def test_fine_tuning_offloads_where_both_words_say_so() -> None:
    section = "model.fsdp_config"
    both = f"{section}.cpu_offload=True {section}.offload_params=True"
    assert "offload" not in decided(read(f"{section}.offload_params=True", text=SFT))
    assert decided(read(both, text=SFT))["offload"] == "optimizer+parameters:host"


def test_an_engine_that_stays_takes_its_share_of_memory(tmp_path: Path) -> None:
    usable = []
    for frees in ("True", "False"):
        path = tmp_path / f"{frees}.sh"
        more = f"{MICRO} actor_rollout_ref.rollout.free_cache_engine={frees}"
        path.write_text(PPO.format(more=more, head=""))
        request = Request(cluster="2xdgx-h100", with_advice=False)
        result = check_file(str(path), request)
        assert result.figures is not None
        usable.append(result.figures.usable_bytes)
    assert usable[1] == pytest.approx(0.4 * usable[0])

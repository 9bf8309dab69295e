"""What files of LLaMA-Factory, axolotl, TRL and ms-swift decide, in words of TrainingArguments."""

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.formats.format import ALL, ParsedConfig, SourceText
from planner.formats.registry import load_format, recognised
from planner.spec.training import TARGETS, Target, Training

FACTORY = """\
model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
finetuning_type: {mode}
dataset: identity
template: qwen3
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
bf16: true
{more}
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3.1-8B
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 8192
sample_packing: true
micro_batch_size: 1
gradient_accumulation_steps: 8
optimizer: paged_adamw_8bit
bf16: auto
{more}
"""
TRL = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: stanfordnlp/imdb
learning_rate: 0.0001
{more}
"""
GROUPED = "train_sampling_strategy: group_by_length"
ZERO_3 = "deepspeed: {zero_optimization: {stage: 3}}"
SWIFT = """\
NPROC_PER_NODE=4 \\
swift sft \\
    --model Qwen/Qwen2.5-7B-Instruct \\
    --tuner_type lora \\
    --dataset 'swift/self-cognition#1000' \\
    --lora_rank 8 \\
    --target_modules all-linear \\
    --per_device_train_batch_size 1 \\
    --gradient_accumulation_steps $(expr 16 / $n) \\
    --max_length 2048 {more}
"""


def read(name: str, text: str, path: str = "train.yaml") -> ParsedConfig:
    source = SourceText(path=path, text=text)
    assert [each.name for each in recognised(source)] == [name]
    return load_format(name).read(source)


def values(reading: ParsedConfig) -> dict[str, object]:
    return {name: each.value for name, each in reading.decisions.items()}


def test_a_file_of_llama_factory_decides_batch_precision_and_recomputation() -> None:
    found = read("llamafactory", FACTORY.format(mode="full", more=""))
    decided = values(found)
    assert (decided["micro_batch"], decided["num_micro_batches"]) == (2, 8)
    assert (decided["precision"], decided["zero_stage"]) == ("bf16", 0)
    assert decided["recompute_layers_per_stage"] == ALL
    assert found.longest is not None
    assert found.longest.value == 4096
    assert found.training == Training()
    assert not found.findings


def test_recomputation_is_off_by_its_own_word_alone() -> None:
    off = "disable_gradient_checkpointing: true"
    for more, is_on in ((off, False), ("gradient_checkpointing: false", True)):
        decided = values(read("llamafactory", FACTORY.format(mode="full", more=more)))
        assert ("recompute_layers_per_stage" in decided) == is_on


def test_adapters_have_rank_targets_and_bits() -> None:
    more = "lora_rank: 64\nlora_target: q_proj,v_proj\nquantization_bit: 4"
    found = read("llamafactory", FACTORY.format(mode="lora", more=more))
    assert found.training == Training(mode="qlora", rank=64, targets=("q", "v"))
    plain = read("llamafactory", FACTORY.format(mode="lora", more=""))
    assert plain.training == Training(mode="lora", rank=8, targets=TARGETS)
    assert plain.supposes == ("adapters of rank 8", "adapters on all linear layers")
    assert plain.traits == (("kernels.all_linear", "modules"),)


PEFT = "use_peft: true\ndtype: auto\nlora_target_modules: [c_attn, c_proj]"
LORA = "adapter: lora\nlora_target_modules: [query_key_value]\nlora_modules_to_save: [embed_out]"
JOINED = "model: a/b\ntuner_type: lora\ntarget_modules: [qkv_proj, gate_up_proj]"
ENDS = "additional_target: embed_tokens,lm_head"
UP = "mlp.experts.gate_up_proj"
STACK: tuple[Target, ...] = ("expert_up",)


@pytest.mark.parametrize(
    ("name", "text", "targets"),
    [
        ("llamafactory", FACTORY.format(mode="lora", more=ENDS), (*TARGETS, "embedding", "head")),
        ("trl", TRL.format(more=PEFT), ("q", "k", "v", "o", "down")),
        ("axolotl", AXOLOTL.format(more=LORA), ("q", "k", "v", "head")),
        ("ms-swift", JOINED, ("q", "k", "v", "gate", "up")),
        (
            "trl",
            TRL.format(more=f"{PEFT}\nlora_target_parameters: [{UP}]"),
            ("q", "k", "v", "o", "down", *STACK),
        ),
        (
            "axolotl",
            AXOLOTL.format(more=f"{LORA}\nlora_target_parameters: {UP}"),
            ("q", "k", "v", *STACK, "head"),
        ),
        (
            "ms-swift",
            f"{JOINED}\ntarget_parameters: {UP}",
            ("q", "k", "v", "gate", "up", *STACK),
        ),
    ],
)
def test_modules_have_the_names_of_the_models_code(
    name: str, text: str, targets: tuple[Target, ...]
) -> None:
    found = read(name, text)
    assert found.training is not None
    assert (found.unpriced, found.training.targets) == ("", targets)


def test_adapters_of_the_ends_are_left_out_in_words() -> None:
    found = read("llamafactory", FACTORY.format(mode="lora", more="lora_target: q_proj,lm_head"))
    assert (found.unpriced, found.training) == ("", Training(mode="lora", rank=8, targets=("q",)))
    assert "adapters of lm_head left out" in found.supposes


@pytest.mark.parametrize(
    "more",
    [
        "lora_target: q_proj,w9",
        "lora_target: q_proj,layers.7.v_proj",
        "additional_target: norm",
        "lora_target: lm_head",
    ],
)
def test_modules_that_plans_do_not_know_are_named(more: str) -> None:
    key = more.partition(":")[0]
    said = read("llamafactory", FACTORY.format(mode="lora", more=more)).unpriced
    assert said.startswith(f"{key} ")
    assert said.endswith(": no projection of a layer that plans know")


@pytest.mark.parametrize("more", ["stage: dpo", "use_galore: true", "use_dora: true", "fp8: true"])
def test_what_plans_do_not_price_is_said_by_its_key(more: str) -> None:
    text = FACTORY.format(mode="lora", more=more).replace("stage: sft\n", "stage: pt\n")
    text = text.replace("stage: pt\n", "") if more.startswith("stage") else text
    assert read("llamafactory", text).unpriced.startswith(more.partition(":")[0])


def test_axolotl_packs_and_holds_weights_in_16_bits_where_nothing_shards() -> None:
    found = values(read("axolotl", AXOLOTL.format(more="")))
    assert (found["seq_len"], found["profile"]) == (8192, "pure-bf16")
    assert (found["optimizer"], found["precision"]) == ("adam-8bit-bitsandbytes", "bf16")
    assert "recompute_layers_per_stage" not in found
    more = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false\n  offload_params: true"
    sharded = values(read("axolotl", AXOLOTL.format(more=more)))
    assert "profile" not in sharded
    assert (sharded["zero_stage"], sharded["offload"]) == (2, "optimizer+parameters:host")


def test_the_old_words_of_fsdp_are_understood() -> None:
    more = "fsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP"
    assert values(read("axolotl", AXOLOTL.format(more=more)))["zero_stage"] == 2


def test_a_loss_that_is_never_whole_is_a_trait() -> None:
    for more in ("cut_cross_entropy: true", "liger_fused_linear_cross_entropy: true"):
        found = read("axolotl", AXOLOTL.format(more=more))
        assert ("kernels.loss", "liger") in found.traits
    assert not read("axolotl", AXOLOTL.format(more="")).traits


def test_trl_recomputes_in_bf16_and_chunks_the_loss_by_default() -> None:
    found = read("trl", TRL.format(more="max_length: 512"))
    decided = values(found)
    assert (decided["precision"], decided["micro_batch"]) == ("bf16", 8)
    assert decided["recompute_layers_per_stage"] == ALL
    assert ("kernels.loss", "liger") in found.traits
    assert not read("trl", TRL.format(more="loss_type: nll")).traits


def test_frozen_weights_in_32_bits_are_not_priced() -> None:
    assert "float32" in read("trl", TRL.format(more="use_peft: true")).unpriced
    narrow = read("trl", TRL.format(more="use_peft: true\ntorch_dtype: bfloat16"))
    assert not narrow.unpriced
    assert narrow.training == Training(mode="lora", rank=16, targets=("q", "v"))


def test_a_command_of_ms_swift_says_processes_and_what_the_shell_decides() -> None:
    found = read("ms-swift", SWIFT.format(more=""), "train.sh")
    decided = values(found)
    assert (decided["num_gpus"], decided["micro_batch"]) == (4, 1)
    assert "num_micro_batches" not in decided
    assert [one.rule for one in found.findings] == ["ms-swift.unresolved"]
    assert found.settings["model"].line == 3


@pytest.mark.parametrize(
    ("name", "stage", "offload"),
    [("zero2", 2, None), ("zero3_offload", 3, "optimizer+parameters:host")],
)
def test_the_names_that_ms_swift_knows_stand_for_deepspeed_files(
    name: str, stage: int, offload: str | None
) -> None:
    text = SWIFT.format(more=f"--deepspeed {name}").replace("lora", "full")
    found = values(read("ms-swift", text, "train.sh"))
    assert (found["zero_stage"], found.get("offload")) == (stage, offload)


@pytest.mark.parametrize(
    ("name", "text", "optimizer"),
    [
        ("llamafactory", FACTORY.format(mode="lora", more=ZERO_3), "adam"),
        ("axolotl", AXOLOTL.format(more=f"adapter: qlora\n{ZERO_3}"), "adam-8bit-bitsandbytes"),
        (
            "trl",
            TRL.format(more=f"use_peft: true\ndtype: auto\noptim: lion_8bit\n{ZERO_3}"),
            "lion-8bit",
        ),
    ],
)
def test_adapters_under_deepspeed_are_priced(name: str, text: str, optimizer: str) -> None:
    found = read(name, text)
    assert found.training is not None
    assert (found.unpriced, found.training.is_frozen) == ("", True)
    assert values(found).get("optimizer", "adam") == optimizer


def test_a_nearly_known_key_is_an_error_and_others_are_one_note() -> None:
    more = "gradient_acumulation_steps: 4\nmy_own_key: 1\nanother: 2"
    found = read("axolotl", AXOLOTL.format(more=more)).findings
    assert [(one.severity, one.key) for one in found] == [
        ("error", "gradient_acumulation_steps"),
        ("note", "my_own_key"),
    ]
    assert "did you mean gradient_accumulation_steps" in found[0].message
    assert "another" in found[1].message


def test_a_command_takes_the_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(TRL.format(more="max_length: 512"))
    script = tmp_path / "run.sh"
    script.write_text("trl sft --config sft.yaml --max_length 2048 --packing true\n")
    found = load_format("trl").read(SourceText(path=str(script), text=script.read_text()))
    assert values(found)["seq_len"] == 2048
    assert found.named_model is not None
    assert found.named_model.line == 1


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(InputError):
        load_format("axolotl").read(SourceText(path="a.yaml", text="- 1"))


def test_trainers_own_arguments_stay_trainers() -> None:
    text = "per_device_train_batch_size: 4\nmodel_name_or_path: Qwen/Qwen2.5-7B\noutput_dir: x\n"
    assert [each.name for each in recognised(SourceText(path="a.yaml", text=text))] == ["trainer"]


@pytest.mark.parametrize(
    ("name", "text", "severity"),
    [
        ("trl", TRL.format(more="seed: 1\nseed: 1"), "warning"),
        ("llamafactory", FACTORY.format(mode="full", more="seed: 1\nseed: 1"), "error"),
    ],
)
def test_a_key_given_twice_is_an_error_where_the_loader_refuses_it(
    name: str, text: str, severity: str
) -> None:
    (finding,) = [each for each in read(name, text).findings if each.kind == "duplicate_key"]
    assert (finding.severity, finding.key) == (severity, "seed")


PADDED = ("padded", "packing_strategy")
APART = AXOLOTL.replace("sample_packing: true", "sample_packing: false")


@pytest.mark.parametrize(
    ("name", "text", "more", "found"),
    [
        ("trl", TRL, "", PADDED),
        ("trl", TRL, "packing: false", PADDED),
        ("trl", TRL, "packing: true", ("packed", "packing")),
        ("trl", TRL, "packing: true\npacking_strategy: bfd", ("packed", "packing")),
        ("trl", TRL, "packing: true\npacking_strategy: wrapped", None),
        ("trl", TRL, "packing_strategy: wrapped", PADDED),
        ("trl", TRL, "padding_free: true", ("grouped", "padding_free")),
        ("trl", TRL, GROUPED, ("grouped", "train_sampling_strategy")),
        ("llamafactory", FACTORY, "", ("padded", "neat_packing")),
        ("llamafactory", FACTORY, "packing: true", None),
        ("llamafactory", FACTORY, "packing: true\nneat_packing: true", ("packed", "neat_packing")),
        ("llamafactory", FACTORY, "group_by_length: true", ("grouped", "group_by_length")),
        ("axolotl", AXOLOTL, "", ("packed", "sample_packing")),
        ("axolotl", APART, "", ("padded", "sample_packing")),
        ("axolotl", APART, "group_by_length: true", ("grouped", "group_by_length")),
        ("axolotl", APART, "pad_to_sequence_len: true", None),
        ("ms-swift", SWIFT, "", ("padded", "packing")),
        ("ms-swift", SWIFT, "--packing true", ("packed", "--packing")),
        ("ms-swift", SWIFT, "--padding_free true", ("grouped", "--padding_free")),
        ("ms-swift", SWIFT, "--group_by_length true", ("grouped", "--group_by_length")),
    ],
)
def test_documents_are_packed_grouped_or_padded(
    name: str, text: str, more: str, found: tuple[str, str] | None
) -> None:
    path = "train.sh" if text is SWIFT else "train.yaml"
    batching = read(name, text.format(mode="full", more=more), path).batching
    assert (batching and (batching.value, batching.key)) == found
    assert not batching or (batching.line > 0) == (batching.value != "padded")

"""torchtitan's words as people write them: scripts, files of arguments, lists of words."""

import pytest

from planner.errors import InputError
from planner.formats.format import ALL, CheckContext, ParsedConfig, SourceText
from planner.formats.torchtitan.format import FORMAT

HEAD = "--module llama3 --config llama3_8b "


def read(text: str) -> ParsedConfig:
    return FORMAT.read(SourceText(path="run.sh", text=text))


def decided(text: str) -> dict[str, object]:
    return {name: value.value for name, value in read(text).decisions.items()}


def rules(text: str) -> list[tuple[str, int]]:
    return [(each.rule.partition(".")[2], each.line) for each in read(text).findings]


def test_a_script_is_read_behind_its_program_with_continued_lines() -> None:
    text = """#!/bin/bash
set -euo pipefail  # it's strict
TP=${TP:-4}
torchrun --nproc_per_node=8 \\
  -m torchtitan.train --module llama3 --config llama3_8b \\
  --parallelism.tensor_parallel_degree ${TP} \\
  --parallelism.pipeline-parallel-degree=${PP:-2} activation-checkpoint:full
echo --training.seq_len 7
"""
    reading = read(text)
    assert not reading.findings
    assert (reading.decisions["tp"].value, reading.decisions["tp"].line) == (4, 6)
    assert (reading.decisions["pp"].value, reading.decisions["pp"].line) == (2, 7)
    assert reading.decisions["recompute_layers_per_stage"].value == (16, 16)
    assert reading.decisions["seq_len"].value == 8192


@pytest.mark.parametrize(
    "text",
    [
        (
            'ARGS="--module llama3 --config llama3_8b\n  --training.seq_len 4096"\n'
            "torchrun -m torchtitan.train $ARGS\n"
        ),
        "MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.seq_len 4096\n",
        "--module=llama3 --config=llama3_8b --training.seq-len=4096",
    ],
)
def test_words_of_strings_and_environment_are_found(text: str) -> None:
    reading = read(text)
    assert not reading.findings
    assert reading.decisions["seq_len"].value == 4096
    assert reading.decisions["model.hidden_size"].value == 4096


def test_defaults_of_the_config_are_decisions_without_a_line() -> None:
    found = read("--module llama3 --config llama3_70b").decisions
    assert (found["tp"].value, found["tp"].line) == (8, 0)
    assert found["recompute_layers_per_stage"].value == (80,)
    assert found["zero_stage"].value == 3
    assert "num_gpus" not in found


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("--training.seq_length 4096", "unknown_key"),
        ("--training.seq_len ${LENGTH}", "open_variable"),
        ("--training.seq_len 4k", "bad_value"),
        ("--training.seq_len", "bad_value"),
        ("--training.dtype float16", "bad_value"),
        ("--compile.enable True", "bad_value"),
        ("--compile.enable=True", "bad_value"),
        ("activation-checkpoint:some", "bad_value"),
        ("stray", "bad_value"),
        ("--training.seq_len 4096 --training.seq_len 2048", "duplicate_key"),
        ("activation-checkpoint:full --training.seq_len 4096", "misplaced_option"),
        ("--parallelism.pipeline_parallel_schedule LoopedBFS", "schedule_not_modelled"),
    ],
)
def test_what_is_wrong_is_found_with_its_line(text: str, rule: str) -> None:
    assert rules(f"{HEAD}\n{text}") == [(rule, 2)]


def test_a_mistyped_key_and_config_get_the_nearest() -> None:
    (finding,) = read(HEAD + "--training.sequence_len 1").findings
    assert "--training.seq_len" in finding.message
    (finding,) = read("--module llama3 --config llama3_7b").findings
    assert "llama3_8b" in finding.message


def test_a_mistyped_module_gets_the_nearest() -> None:
    (mistyped,) = read("--module lama3 --config llama3_8b").findings
    (own,) = read("--module my.job --config tiny").findings
    assert mistyped.message.endswith("did you mean llama3?")
    assert "did you mean" not in own.message


def test_a_quote_that_is_not_closed_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match="line 2"):
        read("--module llama3\n--config 'llama3_8b")


def test_processes_are_those_that_torchrun_starts() -> None:
    script = "torchrun --nnodes=2 --nproc_per_node=8 -m torchtitan.train " + HEAD
    found = read(script).decisions["num_gpus"]
    assert (found.value, found.key, found.line) == (16, "--nproc-per-node", 1)
    unset = "torchrun --nproc_per_node=${NGPU} -m torchtitan.train " + HEAD
    assert "num_gpus" not in read(unset).decisions


def test_layers_follow_from_weights_where_parts_are_not_listed() -> None:
    pipeline = "--parallelism.pipeline_parallel_degree 4 --training.disable_cuda_graphs "
    assert decided(HEAD + pipeline)["layers_per_stage"] == (8, 9, 8, 7)
    weights = "--parallelism.pipeline_parallel_first_stage_less_layers 0 "
    weights += "--parallelism.pipeline_parallel_last_stage_less_layers 0"
    assert decided(HEAD + pipeline + weights)["layers_per_stage"] == (8, 8, 8, 8)
    interleaved = "--parallelism.pipeline_parallel_schedule interleaved1f1b"
    found = decided(HEAD + pipeline + interleaved)
    assert (found["vpp"], found["schedule"]) == (2, "1f1b")


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        ("torchrun -m torchtitan.train --module a --config b", True),
        ("--parallelism.tensor_parallel_degree 2", True),
        ("activation-checkpoint:none", True),
        ('{"train_batch_size": 8}', False),
        ("torchrun pretrain_gpt.py --tensor-model-parallel-size 2", False),
        ("deepspeed train.py --config ds.json", False),
        ("", False),
    ],
)
def test_only_torchtitan_words_are_recognised(text: str, *, is_ours: bool) -> None:
    assert FORMAT.recognise(SourceText(path="x", text=text)) is is_ours


def test_of_several_starts_the_one_with_a_launcher_is_read() -> None:
    text = """if [ -n "$MODE" ]; then
  python3 -m torchtitan.train --module llama3 --config llama3_8b --comm.mode=${MODE:-}
else
  torchrun --nproc_per_node=4 -m torchtitan.train --module llama3 --config llama3_8b
fi
"""
    reading = read(text)
    assert not reading.findings
    assert reading.decisions["num_gpus"].value == 4


def test_the_wrapper_takes_its_processes_from_a_variable() -> None:
    reading = read("NGPU=4 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh\n")
    assert (reading.decisions["num_gpus"].value, reading.decisions["num_gpus"].key) == (4, "NGPU")


def test_the_number_of_the_wrapper_is_named_where_its_toml_file_is_not_read() -> None:
    with pytest.raises(InputError, match=r"check the TOML file itself, with --gpus 4 for NGPU$"):
        read('NGPU=4 CONFIG_FILE="./llama3_8b.toml" ./run_train.sh\n')
    with pytest.raises(InputError, match=r"check the TOML file itself$"):
        read("CONFIG_FILE=a.toml ./run_train.sh\n")


@pytest.mark.parametrize(
    "text",
    ["./run_train.sh --debug.seed 42\n", "torchrun -m torchtitan.train --module $M --config $C\n"],
)
def test_a_config_that_is_chosen_elsewhere_is_not_missing(text: str) -> None:
    reading = read(text)
    assert [each.rule for each in reading.findings] == ["torchtitan.open_variable"] * 2
    world = CheckContext(num_gpus=8, decisions={})
    broken = [each for rule in FORMAT.rules for each in rule.check(reading.settings, world)]
    assert broken == []


def test_a_module_and_a_config_that_are_missing_are_one_finding() -> None:
    rule = next(rule for rule in FORMAT.rules if rule.name == "config_is_named")
    reading = read("torchrun -m torchtitan.train --training.seq_len 4096\n")
    found = list(rule.check(reading.settings, CheckContext(num_gpus=8, decisions={})))
    assert [each.message for each in found] == ["missing; torchtitan needs --module and --config"]


OLDER = """[job]
description = "of 2025"
[model]  # sizes
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
compile = true
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
unheard_of = 3
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""


def test_a_toml_file_of_an_older_release_is_read_and_not_judged() -> None:
    source = SourceText(path="llama3_8b.toml", text=OLDER)
    assert FORMAT.recognise(source)
    reading = FORMAT.read(source)
    assert not reading.findings
    found = {name: value.value for name, value in reading.decisions.items()}
    assert (found["tp"], found["dp"], found["num_gpus"], found["seq_len"]) == (2, 8, 16, 8192)
    assert (found["model.num_layers"], found["profile"]) == (32, "2025")
    assert found["selective_layers_per_stage"] == (32,)
    tp = reading.decisions["tp"]
    assert (tp.key, tp.line) == ("parallelism.tensor_parallel_degree", 12)
    world = CheckContext(num_gpus=3, decisions={})
    assert not [each for rule in FORMAT.rules for each in rule.check(reading.settings, world)]


def test_names_of_2024_and_every_nth_layer_are_understood() -> None:
    text = OLDER.replace("[parallelism]\n", "").replace("local_batch_size", "batch_size")
    text = text.replace('"op"', '"2"')
    reading = FORMAT.read(SourceText(path="a.toml", text=text))
    assert (reading.decisions["tp"].value, reading.decisions["profile"].value) == (2, "2024")
    assert reading.decisions["micro_batch"].value == 2
    assert "selective_layers_per_stage" not in reading.decisions
    assert reading.decisions["recompute_layers_per_stage"].value == (16,)
    assert not reading.assumes
    unknown = FORMAT.read(SourceText(path="a.toml", text=text.replace("8B", "9B")))
    assert unknown.assumes == ("recompute",)


@pytest.mark.parametrize(
    ("compiled", "profile", "loss"),
    [
        ("compile = true", "2025", None),
        ("compile = false", "2024-eager", None),
        ("", "2024-eager", None),
        ('[compile]\nenable = true\ncomponents = ["model"]', "2024", None),
        ('[compile]\nenable = true\ncomponents = ["loss"]', "2024-eager", "compiled"),
    ],
)
def test_blocks_and_loss_are_compiled_where_the_file_says_so(
    compiled: str, profile: str, loss: str | None
) -> None:
    reading = FORMAT.read(SourceText(path="a.toml", text=OLDER.replace("compile = true", compiled)))
    assert reading.decisions["profile"].value == profile
    assert dict(reading.traits).get("kernels.loss") == loss
    # Of the present release: off unless the config or an option says otherwise.
    assert decided(HEAD)["profile"] == "eager"
    assert "profile" not in decided(f"{HEAD} --compile.enable")


def test_converters_leave_the_precision_open_whatever_it_was() -> None:
    """They make 8-bit products of 16-bit ones, or change nothing of 32-bit ones."""
    wide = OLDER.replace("seq_len", 'mixed_precision_param = "float32"\nseq_len')
    for text in (OLDER, wide):
        text = text.replace("[training]", 'converters = ["float8"]\n[training]')
        reading = FORMAT.read(SourceText(path="a.toml", text=text))
        assert "precision" not in reading.decisions


@pytest.mark.parametrize(
    ("mode", "decision"),
    [("full", "recompute_layers_per_stage"), ("selective", "selective_layers_per_stage")],
)
def test_recomputation_is_read_of_models_whose_layers_nobody_knows(
    mode: str, decision: str
) -> None:
    """Llama 2 has no config in the present release."""
    text = OLDER.replace('"selective"', f'"{mode}"').replace('flavor = "8B"', 'flavor = "70B-x"')
    reading = FORMAT.read(SourceText(path="a.toml", text=text))
    assert "model.num_layers" not in reading.decisions
    assert reading.decisions[decision].value == ALL
    assert reading.assumes == ()


def test_a_value_of_the_wrong_kind_in_a_toml_file_is_found_with_its_line() -> None:
    text = OLDER.replace("tensor_parallel_degree = 2", 'tensor_parallel_degree = "two"')
    (finding,) = FORMAT.read(SourceText(path="a.toml", text=text)).findings
    assert (finding.rule, finding.line) == ("torchtitan.bad_value", 12)


@pytest.mark.parametrize("text", [OLDER + "[job\n", OLDER + f"a = {'[' * 9000}\n"])
def test_what_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no TOML"):
        FORMAT.read(SourceText(path="a.toml", text=text))


@pytest.mark.parametrize(
    "text",
    [
        "torchrun -m torchtitan.train --job.config_file a.toml --training.steps 10\n",
        "CONFIG_FILE=a.toml ./run_train.sh --model.flavor 8B\n",
    ],
)
def test_what_is_for_an_older_torchtitan_is_refused_as_such(text: str) -> None:
    assert FORMAT.recognise(SourceText(path="a", text=text))
    with pytest.raises(InputError, match=r"before 0\.3.*--module and --config"):
        read(text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("infer.sh", "# see run_train.sh\ntorchrun --role rank infer.py --checkpoint.enable\n"),
        ("ci.yaml", "run: ./run_train.sh --parallelism.tensor_parallel_degree 2\n"),
    ],
)
def test_a_file_that_only_names_torchtitans_script_is_not_its(path: str, text: str) -> None:
    assert not FORMAT.recognise(SourceText(path=path, text=text))


@pytest.mark.parametrize(("stated", "is_judged"), [("data_parallel_shard", False), ("all", True)])
def test_degrees_of_a_config_that_is_not_known_make_no_world(stated: str, is_judged: bool) -> None:
    others = ("data_parallel_replicate", "context_parallel", "tensor_parallel", "pipeline_parallel")
    names = ("data_parallel_shard", *(others if stated == "all" else ()))
    words = [f"--parallelism.{name}_degree {4 if name == names[0] else 1}" for name in names]
    reading = read(f"--module mine --config own {' '.join(words)}")
    (rule,) = [each for each in FORMAT.rules if each.name == "degrees_make_world"]
    assert (
        bool(list(rule.check(reading.settings, CheckContext(num_gpus=8, decisions={}))))
        is is_judged
    )


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("--module llama3 --config llama3_8b", "llama3-8b"),
        ("--module qwen3 --config qwen3_1_7b", "qwen3-1.7b"),
        ("--module deepseek_v3 --config deepseek_v3_debugmodel", None),
        ("--module my.own --config llama3_8b", None),
    ],
)
def test_a_config_names_its_model(words: str, model: str | None) -> None:
    named = read(f"{words} --training.steps 1\n").named_model
    assert (named.value if named else None) == model

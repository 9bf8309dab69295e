"""Reading scripts, args files and YAML of Megatron-LM."""

import pytest

from planner.formats.format import ParsedConfig, SourceText
from planner.formats.registry import load_format

MEGATRON = load_format("megatron")


def read(text: str) -> ParsedConfig:
    return MEGATRON.read(SourceText(path="run.sh", text=text))


def rules(reading: ParsedConfig) -> list[tuple[str, int]]:
    return [(finding.rule, finding.line) for finding in reading.findings]


def test_variables_arrays_and_sums_are_filled_in() -> None:
    reading = read(
        "TP=${TP:-8}\nN=$((8*4))\nARGS=( --num-layers 32 # width\n --hidden-size ${H:=4096} )\n"
        'torchrun --nproc_per_node=8 --nnodes 4 pretrain_gpt.py "${ARGS[@]}" \\\n'
        " --tensor-model-parallel-size $TP --global-batch-size=$N --micro-batch-size 1\n"
    )
    values = {name: value.value for name, value in reading.decisions.items()}
    assert not reading.findings
    assert (values["tp"], values["global_batch"], values["model.hidden_size"]) == (8, 32, 4096)
    assert (values["num_gpus"], values["dp"], values["num_micro_batches"]) == (32, 4, 8)
    assert reading.decisions["model.hidden_size"].line == 4
    assert reading.decisions["tp"].line == 6


def test_a_command_line_in_quotes_is_taken_apart() -> None:
    text = 'O=\' --num-layers 2 \n --bf16\'\nC="python pretrain_gpt.py $O"\nsrun sh -c "$C"\n'
    assert read(text).decisions["model.num_layers"].value == 2


@pytest.mark.parametrize(
    "handed_on",
    ["srun bash -c '$LAUNCHER $CMD'", 'sbatch <<EOF\nsrun bash -c "$CMD"\nEOF'],
)
def test_a_command_line_in_a_variable_is_found_however_it_is_handed_on(handed_on: str) -> None:
    text = f'CMD="pretrain_gpt.py --num-layers 2 \\\n --bf16"\n{handed_on}\n'
    reading = read(text)
    assert reading.decisions["model.num_layers"].value == 2
    assert not reading.findings


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    reading = read("--num-layers 2\n--tensor-model-parallel-siz 4\n")
    assert rules(reading) == [("megatron.unknown_key", 2)]
    assert "--tensor-model-parallel-size" in reading.findings[0].message


FOREIGN = " ".join(f"--foreign-{name} {name}" for name in "abcdef")


@pytest.mark.parametrize(
    ("text", "severities", "said"),
    [
        (f"python pretrain_gpt.py --bf16 --num-layers 2 {FOREIGN}", ["error"], "6 options"),
        (f"python my.py --bf16 --num-layers 2 {FOREIGN}", ["note"], "my.py may add them"),
        ("python my.py --bf16 --num-layers 2 --own 1", ["note"], "my.py may add"),
        (
            f"python my.py --bf16 --num-layers 2 {FOREIGN} --tensor-model-parallel-siz 2",
            ["note"],
            "--tensor-model-parallel-siz",
        ),
        ("--bf16 --data-impl mmap", ["note"], "another release"),
        ("--bf16 --fp8-hybrid", ["note"], "--fp8-hybrid is --fp8-format hybrid today"),
        (
            "python pretrain_gpt.py --deepspeed --bf16 --zero-stage 1 --sed 1",
            ["note"],
            "is for Mega",
        ),
        ("python pretrain_gpt.py --bf16 --export-te-mcore-model --num-layers 2", [], ""),
        ("python pretrain_gpt.py --num-layers 2 --seed 1 --${DTYPE}", ["note"], "not set"),
    ],
)
def test_options_that_megatron_lacks_are_wrong_as_far_as_the_script_does_not_add_them(
    text: str, severities: list[str], said: str
) -> None:
    findings = read(text).findings
    assert [each.severity for each in findings] == severities
    assert said in " ".join(each.message for each in findings)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("--num-layers two", "bad_value"),
        ("--num-layers 1 --bf16=yes", "bad_value"),
        ("--num-layers", "bad_value"),
        ("--fp8-format e3", "bad_value"),
        ("--num-layers 1 --num-layers 2", "duplicate_key"),
        ("--num-layers $N", "unresolved"),
        ("--num-layers 2 $EXTRA", "unresolved"),
        ("--bf16 stray", "unknown_key"),
    ],
)
def test_wrong_words_are_findings(text: str, rule: str) -> None:
    assert rules(read(text)) == [(f"megatron.{rule}", 1)]


def test_a_script_in_a_folder_that_is_looked_up_is_found() -> None:
    reading = read("D=$(cd `dirname $0`; pwd)\npython $D/pretrain_gpt.py --num-layers 2 --bf16\n")
    assert reading.decisions["model.num_layers"].value == 2


def test_words_left_of_one_text_are_one_finding() -> None:
    reading = read(
        'DIR="my own folder"\npython pretrain_gpt.py --save $DIR --bf16 --num-layers 2\n'
    )
    assert rules(reading) == [("megatron.unknown_key", 1)]
    assert "own folder" in reading.findings[0].message


def test_options_added_in_two_branches_are_a_note() -> None:
    text = """if [[ $BIG == 1 ]]; then
  ARGS+=" --num-layers 80 --tensor-model-parallel-size 8"
else
  ARGS="$ARGS --num-layers 32"
fi
python pretrain_gpt.py $ARGS --bf16
"""
    (finding,) = read(text).findings
    assert (finding.rule, finding.severity) == ("megatron.duplicate_key", "note")
    assert read(text).decisions["model.num_layers"].value == 32


def test_a_variable_of_what_decides_nothing_is_no_finding() -> None:
    reading = read('--num-layers 2 --lr $RATE --data-path "$DATA" --save=$OUT')
    assert rules(reading) == []
    assert reading.settings["--lr"].value is None


def test_exported_variables_are_settings() -> None:
    text = "export CUDA_DEVICE_MAX_CONNECTIONS=1\npython pretrain_gpt.py --num-layers 2\n"
    settings = read(text).settings
    assert settings["CUDA_DEVICE_MAX_CONNECTIONS"].value == "1"
    assert settings["script"].value == "pretrain_gpt.py"


def test_another_trainers_script_is_not_taken_for_a_few_names() -> None:
    shared = "accelerate launch finetune.py --seed 1 --bf16"
    few = f"{shared} {' '.join(f'--trainer_option_{n} {n}' for n in range(4))}\n"
    many = f"{shared} {' '.join(f'--trainer_option_{n} {n}' for n in range(8))}\n"
    assert MEGATRON.recognise(SourceText(path="run.sh", text=few))
    assert not MEGATRON.recognise(SourceText(path="run.sh", text=many))


def test_the_batch_is_the_last_of_a_schedule() -> None:
    words = "--num-layers 2 --micro-batch-size 2 --step-batch-size-schedule '0:256 1B:512'"
    found = read(f"torchrun --nproc-per-node 8 pretrain_gpt.py {words}\n").decisions
    assert (found["global_batch"].value, found["num_micro_batches"].value) == (512, 32)

"""What is typed otherwise is read as it is meant, or refused with the command that works."""

from pathlib import Path

import pytest
from in_process import planner

from planner.cli.app import COMMANDS
from planner.cli.meant import EXAMPLE_CLUSTER, EXAMPLE_MODEL
from planner.query.words import OF_CLUSTER, SAME_OPTIONS, UNKNOWN_OPTIONS, as_meant

LORA = "plan {Q} --train lora --framework megatron"
QUESTION = f"{EXAMPLE_MODEL} {EXAMPLE_CLUSTER}"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("M C --tp 2", "plan M C --tp 2"),
        ("--model M --cluster C", "plan M C"),
        ("plan --model=M --cluster=C --tp 2", "plan M C --tp 2"),
        ("plan M --cluster C --tp 2", "plan M C --tp 2"),
        ("plan --cluster C M", "plan M C"),
        ("explain --model M --cluster C memory", "explain M C memory"),
        ("explain M --cluster C memory", "explain M C memory"),
        ("memory M C --tp 2", "explain M C --tp 2 memory"),
        ("memory --help", "explain --help"),
        ("collective all-reduce 1GB --cluster C", "collective all-reduce 1GB C"),
        ("calibrate --cluster C FILE", "calibrate C FILE"),
        ("check FILE --model M --cluster C", "check FILE --model M --cluster C"),
        ("repair FILE", "check --fix FILE"),
        ("sweep FILE --workers 2", "sweep run FILE --workers 2"),
        ("sweep show FILE", "sweep show FILE"),
        ("help size", "size --help"),
        ("help", "--help"),
        ("paln M C", "paln M C"),
    ],
)
def test_words_are_read_as_a_command_and_its_arguments(typed: str, meant: str) -> None:
    assert as_meant(typed.split(), COMMANDS) == meant.split()


@pytest.mark.parametrize(
    ("typed", "other"),
    [
        ("plan {Q} --batch-size 256", "plan {Q} --global-batch 256"),
        ("plan {Q} --zero=3 --fp8", "plan {Q} --zero-stage 3 --precision fp8"),
        ("plan {Q} --fsdp", "plan {Q} --framework torchtitan"),
        ("plan {Q} --zero3", "plan {Q} --zero-stage 3"),
        ("plan {Q} --deepspeed ds.json", "plan {Q} --framework deepspeed"),
        ("plan {Q} --lora --out x", "plan {Q} --train lora --out x --emit accelerate"),
        ("plan llama3-8b h100 --gpus 16", "plan llama3-8b 16xh100"),
        ("plan llama3-8b dgx-h100 --gpus 16 --tp 2", "plan llama3-8b 2xdgx-h100 --tp 2"),
        ("plan --model llama3-8b --gpus 64 --gpu-type h100", "plan llama3-8b 64xh100"),
        ("why {Q} --nodes 4 --tp 2", "why llama3-8b 32xh100 --tp 2"),
        ("plan llama3-8b 64 h100", "plan llama3-8b '64 h100'"),
        ("plan 8xh100 llama3-8b", "plan {Q}"),
        ("plan llama3-8b", "plan {Q}"),
        ("plan", "plan {Q}"),
        ("why {Q}", "why {Q} --tp 2"),
        ("job {Q}", "job {Q} --tokens 15T"),
        ("plan {Q} --global-batch 4M", "plan {Q} --global-batch-tokens 4M"),
        ("plan {Q} --emit deepspeed", "plan {Q} --emit deepspeed --out run"),
        ("plan {Q} --out x", "plan {Q} --out x --emit megatron"),
        ("emit {Q}", "emit {Q} --to megatron"),
        ("plan lama3-8b 8xh101", "plan llama3-8b 8xh100"),
        ("plan {Q} --fix tpp=2", "plan {Q} --fix tp=2"),
        ("show models lama3-8b", "show models llama3-8b"),
        (LORA, f"{LORA} --profile bridge"),
        ("largest {Q}", "plan {Q} --maximize seq-len"),
        ("scale llama3-8b dgx-h100", "size llama3-8b dgx-h100 --gpus 8..512"),
        ("report best.yaml", "export best.yaml --to html --out plan.html"),
        ("trace best.yaml", "export best.yaml --to perfetto --out plan.json"),
        ("recipes h100", "show recipes h100"),
    ],
)
def test_a_dead_end_names_the_command_that_works(
    typed: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = planner(*typed.format(Q=QUESTION).split())
    assert (run.code, run.out) == (2, "")
    assert run.err.splitlines()[-1] == f"try: planner {other.format(Q=QUESTION)}"


def test_no_command_is_named_where_none_is_known() -> None:
    for words in ("plan {Q} --plot", "why {Q} --nonsense", "show models --nonsense"):
        assert "try: " not in planner(*words.format(Q=QUESTION).split()).err


def test_what_would_be_refused_again_is_not_named() -> None:
    run = planner("plan", *QUESTION.split(), "--framework", "megatorn", "--precision", "int8")
    assert len(run.err.splitlines()) == 2


def test_every_option_of_another_program_stands_in_one_table() -> None:
    assert not set(OF_CLUSTER) & {*SAME_OPTIONS, *UNKNOWN_OPTIONS}


def test_the_examples_are_a_question() -> None:
    assert planner("plan", EXAMPLE_MODEL, EXAMPLE_CLUSTER, "--space").code == 0

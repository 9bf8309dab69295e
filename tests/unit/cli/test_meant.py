"""What is typed otherwise is read as it is meant, or refused with the command that works."""

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


def test_every_option_of_another_program_stands_in_one_table() -> None:
    assert not set(OF_CLUSTER) & {*SAME_OPTIONS, *UNKNOWN_OPTIONS}


def test_the_examples_are_a_question() -> None:
    assert planner("plan", EXAMPLE_MODEL, EXAMPLE_CLUSTER, "--space").code == 0

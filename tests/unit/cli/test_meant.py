"""What is typed otherwise is read as it is meant, or refused with the command that works."""

from pathlib import Path

import pytest
import yaml
from in_process import planner

from planner.cli.app import COMMANDS
from planner.cli.meant import EXAMPLE_CLUSTER, EXAMPLE_MODEL
from planner.query.words import OF_CLUSTER, SAME_OPTIONS, UNKNOWN_OPTIONS, as_meant

MEANT = yaml.safe_load(Path(__file__).with_name("meant.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("typed", "meant"), MEANT.items())
def test_words_are_read_as_a_command_and_its_arguments(typed: str, meant: str) -> None:
    assert as_meant(typed.split(), COMMANDS) == meant.split()


def test_every_option_of_another_program_stands_in_one_table() -> None:
    assert not set(OF_CLUSTER) & {*SAME_OPTIONS, *UNKNOWN_OPTIONS}


def test_the_examples_are_a_question() -> None:
    assert planner("plan", EXAMPLE_MODEL, EXAMPLE_CLUSTER, "--space").code == 0

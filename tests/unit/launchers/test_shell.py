"""Words of a script reach the program as they were meant."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.formats.format import Emitted, UserKey
from planner.launchers import check_lines, command_lines, key_lines, quoted

NOTHING = Emitted(files=(), command=())
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


def words_of(command: str, environment: dict[str, str] | None = None) -> list[str]:
    """What a program is given when bash runs the command."""
    script = f"show() {{ printf '%s\\0' \"$@\"; }}\nshow {command}\n"
    done = subprocess.run(
        ["bash", "-euc", script], env=environment or {}, capture_output=True, check=True
    )
    return done.stdout.decode().split("\0")[:-1]


@given(st.lists(TEXT.filter(lambda text: "${" not in text), min_size=1, max_size=4))
def test_any_words_reach_the_program_unchanged(words: list[str]) -> None:
    assert words_of(command_lines(words)) == words


@given(TEXT, TEXT, TEXT)
def test_a_variable_inside_a_word_is_replaced_by_any_value(
    before: str, value: str, after: str
) -> None:
    before, after = before.replace("${", ""), after.replace("${", "")
    assert words_of(quoted(f"{before}${{NAME}}{after}"), {"NAME": value}) == [
        f"{before}{value}{after}"
    ]


def test_parts_and_options_start_lines() -> None:
    text = command_lines(("run", "--a=1"), ("x", "--b", "2", "3"))
    assert text == "run \\\n  --a=1 \\\n  x \\\n  --b 2 3"


@pytest.mark.parametrize(
    ("text", "is_asked"),
    [
        ('{"optimizer": {"type": "Adam"}}', True),
        ('{"optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}', False),
        ("{}", False),
    ],
)
def test_a_key_that_the_user_adds_is_asked_for_beside_its_section(
    tmp_path: Path, text: str, is_asked: bool
) -> None:
    (tmp_path / "a file.json").write_text(text)
    key = UserKey(file="a file.json", key="lr", what="the user's $(rate)", section="optimizer")
    script = f"set -euo pipefail\n{check_lines('run.sh', NOTHING, key_lines('run.sh', key))}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=False)
    words = b"run.sh: lr is not set in a file.json: the user's $(rate)\n"
    assert (done.returncode, done.stderr) == ((2, words) if is_asked else (0, b""))


def test_nothing_to_check_is_no_text() -> None:
    assert check_lines("s.sh", NOTHING) == ""

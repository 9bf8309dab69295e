"""What variables hold behind the branches of a script."""

import subprocess

import pytest

from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.shell.script import MAX_DEPTH, read_script

DECIDED = [
    'S=7B; if [ "$S" = 7B ]; then N=32; elif [ "$S" = 70B ]; then N=80; else N=1; fi',
    "S=70B; if [[ $S == 7B ]]; then N=32; elif [[ $S == 70B ]]; then N=80; else N=1; fi",
    "S=x; if [ $S = 7B ]\nthen\n N=32\nelse N=1\nfi",
    'N=""; if [ -z "$N" ]; then N=8; fi',
    "G=16; N=1; if [ $G -gt 8 ]; then N=$((G / 8)); fi",
    "G=4; N=1; if [ $G -gt 8 ]; then N=$((G / 8)); if [ $N = 2 ]; then N=9; fi; fi",
    "N=1; if [ 1 = 2 ]; then N=2; exit 1; fi",
    "N=1; [ 1 = 1 ] && # a word of its own\n  N=2",
]


def words(text: str) -> list[tuple[str, bool]]:
    """The words of the last command, and whether each is known."""
    found = (
        read_script(SourceText(path="run.sh", text=text.replace("echo", "run"))).commands[-1].words
    )
    return [(word.text, not word.unknown) for word in found]


@pytest.mark.parametrize("text", DECIDED)
def test_a_test_of_known_values_chooses_the_branch_as_bash_does(text: str) -> None:
    script = f"{text}\necho $N\n"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert words(script) == [("run", True), (done.stdout.strip(), True)]


@pytest.mark.parametrize(
    "text",
    [
        'if [ -z "$N" ]; then N=8; fi',
        "if [ $A = 1 ]; then N=8; else N=8; fi",
        "if [ $A = 1 ]; then N=8; elif [ $A = 2 ]; then N=; fi",
        "case $A in a) N=8 ;; b) N=8 ;; *) exit 1 ;; esac",
        "if a && [ $A = 1 ]; then :; else N=8; fi",
    ],
)
def test_what_all_branches_that_set_it_agree_on_is_known(text: str) -> None:
    assert words(f"{text}\necho $N") == [("run", True), ("8", True)]


@pytest.mark.parametrize(
    "text",
    [
        "N=1; if [ $A = 1 ]; then N=8; fi",
        "if [ $A = 1 ]; then N=8; else N=4; fi",
        "case $A in a) N=8 ;; *) N=4 ;; esac",
        "N=1; case $A in a) N=8 ;; b) : ;; esac",
        "N=1; if [ $A = 1 ]; then if [ $B = 1 ]; then N=8; fi; fi",
        "if [ $A = 1 ]; then N=(1 2); else N=(1 3); fi",
    ],
)
def test_what_branches_differ_on_is_not_known(text: str) -> None:
    assert words(f"{text}\necho $N") == [("run", True), ("${N}", False)]


def test_what_branches_add_stays_in_all_of_them() -> None:
    text = (
        "A=(--x)\nif [ $B = 1 ]; then A+=(--y); fi\nif [ $C = 1 ]; then A+=(--z); fi\nrun ${A[@]}"
    )
    assert [word for word, _ in words(text)] == ["run", "--x", "--y", "--z"]


def test_a_command_in_a_branch_that_is_passed_over_is_left_out() -> None:
    text = "D=0\nif [ $D -eq 1 ]; then run --debug; else run --x; fi"
    found = read_script(SourceText(path="run.sh", text=text)).commands
    assert [[word.text for word in each.words] for each in found] == [["run", "--x"]]


def nested(depth: int) -> str:
    return "if a; then N=1\n" * depth + "fi\n" * depth + "echo $N"


def test_statements_in_each_other_are_read_and_without_end_refused() -> None:
    assert words(nested(MAX_DEPTH - 10)) == [("run", True), ("1", True)]
    with pytest.raises(InputError, match="nested"):
        words(nested(MAX_DEPTH + 10))

"""Shell text is read as bash reads it, as far as launch scripts go, and refused where bash does."""

import subprocess
from contextlib import suppress

import pytest

from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.shell.launch import launches_in
from planner.formats.shell.script import read_script, read_words
from planner.formats.shell.word import Word


def source(text: str) -> SourceText:
    return SourceText(path="run.sh", text=text)


def last_command(text: str) -> tuple[Word, ...]:
    """The words of the script's own last command, not of one within its words."""
    commands = read_script(source(text)).commands
    return [each for each in commands if not each.launcher][-1].words


def last_words(text: str) -> list[str]:
    return [word.text for word in last_command(text)]


@pytest.mark.parametrize(
    "text",
    [
        "printf '%s\\n' a \"b c\" d\\ e 'f g'",
        'A=1; B=${A}2; printf \'%s\\n\' $B "$A b" ${C:-c} ${C:-"d"}',
        'ARGS=(--x 1 # one\n "--y z"\n); ARGS+=(--w)\nprintf "%s\\n" "${ARGS[@]}"',
        'ARGS="--x 1\n --y 2"\nprintf "%s\\n" $ARGS',
        'A=("--x 1" --y)\nprintf "%s\\n" a${A[@]}b\n',
        'A=("--x 1" --y)\nprintf "%s\\n" ${A[*]} "${A[@]}"\n',
        'printf "%s\\n" a\\\n b # c\n',
        "printf '%s\\n' $'it is' \"it's\" $((2 * 3 + 1))",
        "A=8; printf '%s\\n' $(expr 16 / $A) `expr 2 '*' $A` $(expr $A \\* 3)",
        "cat > /dev/null <<END\nit's\nEND\nprintf '%s\\n' a 2>&1",
        "printf '%s\\n' a 2> /dev/null b c",
        "A=\"a b\"; printf '%s\\n' X=$A",
    ],
)
def test_words_are_those_that_bash_hands_to_the_command(text: str) -> None:
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert last_words(text.replace("printf", "run"))[2:] == done.stdout.splitlines()


@pytest.mark.parametrize("written", ["$(cat a | wc -l)", "$(expr 8 / 0)", "`bc <<< $A`"])
def test_an_expansion_that_is_not_resolved_is_one_word_whatever_stands_in_it(written: str) -> None:
    text = f'ARGS="--x {written} --y"\nrun $ARGS\n'
    assert last_words(text) == ["run", "--x", written, "--y"]
    assert [bool(word.unknown) for word in last_command(text)] == [False, False, True, False]


def test_a_handed_on_command_line_ends_where_the_next_command_begins() -> None:
    commands = read_script(source('sh -c "cd a && run --x 1; cd b"')).commands
    lines = [[word.text for word in each.words] for each in commands]
    assert lines[1:] == [["cd", "a"], ["run", "--x", "1"], ["cd", "b"]]


@pytest.mark.parametrize(
    ("text", "line"), [("a\nb 'c\nd", 2), ('a\n\nb "c\nd', 3), ('a "b"\n"', 2), ("a $'b\\'", 1)]
)
def test_a_quote_that_nothing_closes_is_refused_with_its_line_as_by_bash(
    text: str, line: int
) -> None:
    assert subprocess.run(["bash", "-nc", text], capture_output=True, check=False).returncode
    with pytest.raises(InputError, match=f"line {line}: a quote is not closed"):
        read_script(source(text))
    with pytest.raises(InputError, match=f"line {line}: a quote is not closed"):
        read_words(source(text))


def test_every_word_of_a_line_names_what_is_left_open_in_it() -> None:
    found = last_command('A="--a ${X} --b $(c d)-${X}"\nrun $A')
    assert [(word.text, word.unknown) for word in found][1:] == [
        ("--a", ()),
        ("${X}", ("${X}",)),
        ("--b", ()),
        ("$(c d)-${X}", ("$(c d)", "${X}")),
    ]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("tp=12; run --tp $tp", "12"),
        ("tp='12'; run --tp $tp", "12"),
        ('tp="12"; run --tp "$tp"', "12"),
        ("tp=${TP:-12}; run --tp $tp", "12"),
        ('A=(--tp "12"); run "${A[@]}"', "12"),
        ('A="--tp 12"; run $A', "12"),
        ('n=12; A="--tp $n --x"; run $A', "12"),
        ('run "--tp" 1"2"', None),
        ("run --tp $((6 * 2))", "$((6 * 2))"),
    ],
)
def test_a_word_says_where_its_text_is_made(text: str, made: str | None) -> None:
    word = last_command(text)[2]
    assert word.text == "12"
    assert made == (word.origin and text[slice(*word.origin)])


def test_a_word_keeps_where_it_stands_and_where_it_is_made() -> None:
    text = "tp=1\nrun --tp $tp"
    word = last_command(text)[2]
    assert word.place == (14, 17)
    assert word.origin == (3, 4)


def test_the_variable_of_a_loop_is_not_known() -> None:
    text = "N=1\nfor N in 2 4; do run --n $N; done"
    assert last_words(text) == ["run", "--n", "${N}"]


def test_a_program_in_a_here_document_is_no_command() -> None:
    text = "cat <<E | tee a\nrun --x 1 'it\nE\nrun --y"
    commands = [[word.text for word in each.words] for each in read_script(source(text)).commands]
    assert commands == [["cat"], ["tee", "a"], ["run", "--y"]]


@pytest.mark.parametrize(
    "text",
    [
        "time ( run --x ) > log",
        "{ run --x; } 2>&1 | tee log",
        "! run --x",
        "echo ok && ( run --x )",
    ],
)
def test_a_command_within_another_is_one_of_its_own(text: str) -> None:
    commands = [[word.text for word in each.words] for each in read_script(source(text)).commands]
    assert ["run", "--x"] in commands


def test_places_count_characters_whatever_their_bytes() -> None:
    text = "# \u00e4\U0001f600\r\nrun '\u00e9' --x 1\r\n"
    words = last_command(text)
    assert [word.text for word in words] == ["run", "\u00e9", "--x", "1"]
    assert [text[slice(*word.place)] for word in words if word.place] == [
        *("run", "'\u00e9'", "--x", "1")
    ]


HOSTILE = ("''\"\"", "(", "$((", "$(", "${", "${A:-", "`", "if a; then ", "<", "a=(", "{ ", '"$(')


@pytest.mark.parametrize("part", HOSTILE)
def test_texts_that_nest_or_repeat_without_end_are_read_or_refused(part: str) -> None:
    text = part * (60_000 // len(part))
    for read in (read_script, read_words):
        with suppress(InputError):
            read(source(text))


def test_a_text_that_is_read_again_and_again_is_refused() -> None:
    with pytest.raises(InputError, match="takes too long to read"):
        read_script(source("a=(" * 9_000))


@pytest.mark.parametrize("part", ["''\"\"", "a b\n"])
def test_a_script_of_more_words_or_signs_than_any_is_refused(part: str) -> None:
    with pytest.raises(InputError, match=r"more than [12]0,000 "):
        read_script(source(part * 50_000))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f() { run $1; }; f", ["run", "${1}"]),
        ("f() { f; run a; }\nf", ["run", "a"]),
        ('A=(a b)\nrun ${A[@]+"${A[@]}"} ${B:+c} ${A:+d}', ["run", "a", "b", "${B}", "d"]),
        ("A=1 run $A", ["run", "${A}"]),
        ('A=""\nrun $A "$A" b', ["run", "", "b"]),
        ("unset A; A=1; read A; run $A", ["run", "${A}"]),
        ("A=1; B=(2); let A=A*2; mapfile -t B; run $A $B", ["run", "${A}", "${B}"]),
        ("case x3 in y*) A=1 ;; x?) A=2 ;; *) A=3 ;; esac\nrun $A", ["run", "2"]),
        ('A=1; [ -n "$B" ] && A=2; run $A', ["run", "${A}"]),
        ("A=1; false || A=1; run $A", ["run", "1"]),
        ("run --data <path to data> --x", ["run", "--data", "<path to data>", "--x"]),
        ("run --nodes ${SLURM_NNODES:-1} ${N:-1}", ["run", "--nodes", "${SLURM_NNODES}", "1"]),
    ],
)
def test_a_command_gets_what_the_script_did_before_it(text: str, words: list[str]) -> None:
    assert last_words(text) == words


def test_a_launch_that_is_not_looked_into_is_named_with_its_line() -> None:
    text = 'f() { "$@"; }\n\nf run --x 1'
    with pytest.raises(InputError, match=r"none; not looked into: the arguments of f in line 3$"):
        launches_in(source(text), list, list, lambda _: 0, is_list=False, lacking="none")

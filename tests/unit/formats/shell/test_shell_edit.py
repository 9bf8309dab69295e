"""Options of a file of words are changed, taken out and added, and nothing else is."""

import pytest

from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.shell.edit import edited
from planner.formats.shell.launch import Entry, Launches
from planner.formats.shell.script import read_script, read_words
from planner.formats.shell.word import Command


def options(source: SourceText) -> Launches:
    """Options with at most one value, in a list or behind ``run``."""
    is_list = source.text.startswith("--")
    words = read_words(source) if is_list else read_script(source).commands[0].words
    entries: list[Entry] = []
    for word in words:
        name, sign, joined = word.text.partition("=")
        if word.text.startswith("--"):
            value = joined if sign else None
            entries.append(Entry(name=name, word=word, joined=value))
        elif entries:
            last = entries.pop()
            entries.append(Entry(name=last.name, word=last.word, values=(word,)))
    command = Command(words=tuple(words), is_list=is_list, program=None if is_list else words[0])
    return (command, entries), ()


def after(text: str, last: str = "", **wanted: str | None) -> str:
    """The text with options of these values; None: without."""
    words = {
        f"--{name}": [] if value is None else [f"--{name}", value] for name, value in wanted.items()
    }
    return edited(SourceText(path="run.sh", text=text), options, words, 8, (), last=last)


@pytest.mark.parametrize(
    ("text", "wanted", "new"),
    [
        ("run --a 1 --b 2\n", {"a": "3"}, "run --a 3 --b 2\n"),
        ("A=1\nrun --a $A --b 2\n", {"a": "3"}, "A=3\nrun --a $A --b 2\n"),
        ("A=1\nrun --a $A --b $A\n", {"a": "3"}, "A=1\nrun --a 3 --b $A\n"),
        ("run --a=1 --b 2\n", {"a": "x y"}, "run '--a=x y' --b 2\n"),
        ('ARGS="--a 1 --b 2"\nrun $ARGS\n', {"a": "x|y"}, 'ARGS="--a x|y --b 2"\nrun $ARGS\n'),
        ("run \\\n  --a 1 \\\n  --b 2\n", {"a": None}, "run \\\n  --b 2\n"),
        ("--a 1\n--b 2\n--c 3\n", {"b": None}, "--a 1\n--c 3\n"),
        ("--a 1\n--b 2\n", {"c": "x|y"}, "--a 1\n--b 2\n--c 'x|y'\n"),
        ("run --a 1 --b 2 --a 3\n", {"a": "4"}, "run --a 4 --b 2\n"),
        (
            "X=(--b 2)\nif [ -n $W ]; then X+=(--w 1); fi\nrun --a 1 ${X[@]}\n",
            {"c": "3"},
            "X=(--b 2 --c 3)\nif [ -n $W ]; then X+=(--w 1); fi\nrun --a 1 ${X[@]}\n",
        ),
    ],
)
def test_an_edit_stands_where_the_value_is_made_and_nowhere_else(
    text: str, wanted: dict[str, str | None], new: str
) -> None:
    assert after(text, **wanted) == new


def test_new_options_stand_before_the_one_that_ends_the_list() -> None:
    assert after("run --a 1 --end\n", last="--end", b="2") == "run --a 1 --b 2 --end\n"
    assert after("run --end\n", last="--end", b="2") == "run --b 2 --end\n"


def test_an_option_behind_the_one_that_ends_the_list_moves() -> None:
    assert after("run --a 1 --end --b 2\n", last="--end", b="3") == "run --a 1 --b 3 --end\n"


def test_where_no_edit_is_safe_the_words_are_said() -> None:
    with pytest.raises(ExpressError, match="write them as plain words: --b 'x y'"):
        after('ARGS="--b 2"\nrun ${ARGS}\n', b="x y")

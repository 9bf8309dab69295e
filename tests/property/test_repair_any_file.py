"""Whatever is edited in a file: a repair that holds, or an error in words; never an exception."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from broken_files import BROKEN, CLUSTER, MODEL, BrokenFile
from hypothesis import event, given, settings
from hypothesis import strategies as st

from planner.check.check import check_file
from planner.check.fix import FixedFile, fix_file
from planner.errors import PlannerError
from planner.formats.format import SourceText
from planner.query.from_file import Request

NUMBER = re.compile(r"(?<=[=: ])\d+(?=[,}\s]|$)")
VALUES = st.one_of(
    st.integers(0, 66).map(str),
    st.sampled_from(["128", "8192", "99", "-1", "10" * 12, "1.5", "null", "true", "x"]),
)
EDITS = st.lists(st.tuples(st.integers(0, 40), VALUES), max_size=2)


def edited(text: str, edits: list[tuple[int, str]]) -> str:
    for position, value in edits:
        places = list(NUMBER.finditer(text))
        if places:
            start, end = places[position % len(places)].span()
            text = f"{text[:start]}{value}{text[end:]}"
    return text


def request_for(broken: BrokenFile) -> Request:
    framework = "trainer" if broken.name == "args.json" else "auto"
    return Request(
        model=MODEL, cluster=CLUSTER, framework=framework, global_batch=128, with_advice=False
    )


def mended(text: str, broken: BrokenFile) -> FixedFile | None:
    """The repair; None where it is refused in words."""
    try:
        return fix_file(SourceText(path=broken.name, text=text), request_for(broken))
    except PlannerError:
        return None


@settings(max_examples=40, derandomize=True)
@given(name=st.sampled_from(sorted(BROKEN)), edits=EDITS)
def test_a_repaired_file_checks_clean(
    tmp_path: Path, name: str, edits: list[tuple[int, str]]
) -> None:
    broken = BROKEN[name]
    made = mended(edited(broken.text, edits), broken)
    if made is None or made.fixed is None:
        event("refused" if made is None else "sound, or nothing fits")
        return
    event("repaired")
    path = tmp_path / broken.name
    path.write_text(made.fixed.text)
    result = check_file(str(path), request_for(broken))
    errors = {(one.rule, one.key) for one in result.findings if one.severity == "error"}
    assert errors == {(one.rule, one.key) for one in made.errors_left}
    assert errors <= {(one.rule, one.key) for one in made.errors}


COMMENTED = ("megatron-degree", "accelerate-degree", "torchtitan-degree", "bridge-degree")
COMMENTS = st.lists(
    st.text("abc -=:#{}[]\"'\\", min_size=1, max_size=12).map(lambda text: f"# {text}x"),
    min_size=1,
    max_size=3,
)


@settings(max_examples=20, derandomize=True)
@given(name=st.sampled_from(COMMENTED), comments=COMMENTS)
def test_comments_and_foreign_keys_keep_text_and_order(name: str, comments: list[str]) -> None:
    broken = BROKEN[name]
    text = "".join(f"{one}\n" for one in comments) + broken.text
    made = mended(text, broken)
    assert made is not None
    assert made.fixed is not None
    after = made.fixed.text
    assert after.startswith("".join(f"{one}\n" for one in comments))
    places = [after.index(kept) for kept in broken.foreign]
    assert places == sorted(places)


@pytest.mark.parametrize("of", [lambda text: "", lambda text: text[:40], lambda text: text * 2])
@pytest.mark.parametrize("name", ["deepspeed-batch", "megatron-batch", "accelerate-degree"])
def test_torn_files_are_refused_in_words_or_repaired(name: str, of: Callable[[str], str]) -> None:
    made = mended(of(BROKEN[name].text), BROKEN[name])
    assert made is None or made.is_sound or made.fixed is not None

"""Whatever a file holds: findings or a repair that holds, never an exception, never a hang."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from broken_files import BROKEN, CLUSTER, MODEL, BrokenFile
from depth import of_all
from fake_format import DECISIONS
from hypothesis import event, given, settings
from hypothesis import strategies as st
from plan_document import plan_document

from planner.check.check import check_file
from planner.check.fix import FixedFile, fix_file
from planner.check.result import exit_code
from planner.errors import InputError, PlannerError
from planner.formats.format import Format, SourceText, read_source
from planner.limits import MAX_DIGITS
from planner.query.from_file import Request
from planner.report.findings import (
    render_github,
    render_junit,
    render_sarif,
    render_text,
)

JOB = Request(model="llama3-8b", cluster="2xdgx-h100", with_advice=False)
NUMBERS = st.one_of(
    st.integers(-2, 64), st.sampled_from([128, 8192, 10**7, 10**9, 10**19, 10**400])
)
WORDS = st.sampled_from(["true", "none", "all", "1f1b", "zb-v", "bf16", "fp4", "adam", "x", "1,2"])
LISTS = st.lists(st.integers(0, 40), min_size=2, max_size=4).map(
    lambda values: ",".join(map(str, values))
)
CONFIGS = st.dictionaries(
    st.sampled_from([*DECISIONS, "log_every", "other"]),
    st.one_of(NUMBERS, NUMBERS, WORDS, LISTS),
    max_size=8,
)
SECTIONS = ["schema_version: 1", "inputs: {}", "strategy: {}"]
PLAN = plan_document()


def checked(path: Path, request: Request = JOB) -> int:
    result = check_file(str(path), request)
    for render in (render_text, render_sarif, render_github, render_junit):
        render([result]).encode()
    assert all(finding.message for finding in result.findings)
    return exit_code([result])


@given(st.binary(max_size=200))
def test_any_bytes_are_checked_as_text_or_an_input_error(
    tmp_path: Path, demo_format: Format, data: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    try:
        text = read_source(path).text
    except InputError:
        assert b"\0" in data or "\ufffd" in data.decode(errors="replace")
    else:
        assert text.encode() == data.removeprefix(b"\xef\xbb\xbf")
    assert checked(path) == 2 or b"# demo" in data


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=300))
def test_any_name_is_read_or_an_input_error(name: str) -> None:
    with pytest.raises(InputError):
        read_source(f"nowhere{os.sep}{name}")


@settings(max_examples=of_all(60))
@given(CONFIGS)
def test_any_decisions_are_checked(
    tmp_path: Path, demo_format: Format, config: dict[str, object]
) -> None:
    path = tmp_path / "file"
    lines = [f"{key} {value}" for key, value in config.items()]
    path.write_text("\n".join(["# demo", *lines]))
    assert checked(path) in (0, 1)


@given(st.permutations(SECTIONS), st.text(alphabet="ab:-[]{}&*!|>'\"#, \n\t1", max_size=60))
def test_any_text_beside_the_sections_of_a_plan_is_checked(
    tmp_path: Path, sections: list[str], text: str
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("\n".join([*sections[:2], text, *sections[2:]]))
    assert checked(path) in (1, 2)


@given(
    st.sampled_from(["inputs", "strategy"]),
    st.data(),
    st.one_of(NUMBERS, WORDS, st.none(), st.lists(st.integers(0, 40), max_size=4), st.floats()),
)
def test_any_value_in_a_plan_is_checked(
    tmp_path: Path, section: str, data: st.DataObject, value: object
) -> None:
    key = data.draw(st.sampled_from(sorted(PLAN[section])))  # type: ignore[call-overload]
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN | {section: PLAN[section] | {key: value}}))  # type: ignore[operator]
    is_read = not isinstance(value, int) or value < 10**MAX_DIGITS
    assert checked(path, Request(with_advice=False)) in ((0, 1) if is_read else (2,))


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

"""Files read: every case of reading/ is a text and what is read of it.

A case has a ``text``, or under ``each FIELD`` texts with the value of that field; ``around`` is
what they stand in, at ``<>``. ``path`` is the file's name, ``format`` its format where it is not
that of the table. Nothing is found in the text but

- ``findings``: attributes of each, and a part of its message, of which ^ and $ are the ends

and of the reading, if they are given, these are true:

- ``decides``: decisions, None for those that are left open; ``lines`` and ``keys``: their places
- ``settings``: values of keys
- ``breaks``: the rules that it breaks on ``num_gpus`` (else 8) beside what is ``known``, and a part
  of their messages
- ``framework``: the one that it starts; ``formats``: all that take it for theirs
- ``batch``: the kind of batching and its key, on a line unless it is the default
- ``says``: parts of texts of the reading, by attribute; other fields are attributes of the reading

``refused`` is what is said of a text that cannot be read at all.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.errors import InputError
from planner.formats.format import CheckContext, Format, Located, ParsedConfig, SourceText
from planner.formats.registry import load_format, recognised

Case = Mapping[str, Any]


def cases() -> Iterator[Any]:
    for path in sorted(Path(__file__).with_name("reading").glob("*.yaml")):
        for claim, case in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            if claim.startswith("_"):
                continue  # what cases share
            case = {"format": path.stem} | case
            rows = [(None, {})] if "text" in case else []
            for name in [name for name in case if name.startswith("each")]:
                field = name.removeprefix("each").strip()
                each = case.pop(name).items()
                rows += [(text, {field: value} if field else value) for text, value in each]
            for number, (text, own) in enumerate(rows):
                given = case | own | ({} if text is None else {"text": text})
                yield pytest.param(given, id=f"{path.stem}: {claim} {number or ''}".strip())


def plain(value: Any) -> Any:
    """A value of a reading as YAML has it."""
    if isinstance(value, Located):
        return plain(value.value)
    if is_dataclass(value):
        return {name: plain(each) for name, each in asdict(value).items()}  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value


def assert_found(reading: ParsedConfig, wanted: list[Case]) -> None:
    found = [f"{one.kind} {one.key} {one.line}: {one.message}" for one in reading.findings]
    assert len(found) == len(wanted), found
    for one, expected in zip(reading.findings, wanted, strict=True):
        assert expected.get("message", "") in f"^{one.message}$"
        attributes = {name: getattr(one, name) for name in expected if name != "message"}
        assert attributes == {k: v for k, v in expected.items() if k != "message"}, found
        assert one.rule.startswith(f"{reading.format}.")


def assert_broken(form: Format, reading: ParsedConfig, case: Case) -> None:
    decisions = {name: each.value for name, each in reading.decisions.items()}
    known = decisions | case.get("known", {})
    world = CheckContext(num_gpus=case.get("num_gpus", 8), decisions=known)
    broken = {
        rule.name: f"{each.key} ^{each.message}$"
        for rule in form.rules
        for each in rule.check(reading.settings, world)
    }
    assert broken.keys() == case["breaks"].keys(), broken
    for name, message in case["breaks"].items():
        assert message in broken[name]


COMPARED_APART = {"text", "around", "path", "format", "formats", "refused", "findings", "breaks"}
COMPARED_APART |= {
    "num_gpus",
    "known",
    "decides",
    "lines",
    "keys",
    "settings",
    "says",
    "framework",
    "batch",
}


@pytest.mark.parametrize("case", [*cases()])
def test_a_text_is_read_as(case: Case) -> None:
    form, text = load_format(case["format"]), case.get("around", "<>").replace("<>", case["text"])
    source = SourceText(path=case.get("path", "run.sh"), text=text)
    if "formats" in case:
        assert [each.name for each in recognised(source)] == case["formats"]
        return
    if "refused" in case:
        with pytest.raises(InputError, match=case["refused"]):
            form.read(source)
        return
    reading = form.read(source)
    assert_found(reading, case.get("findings", []))
    decisions = {name: plain(each) for name, each in reading.decisions.items()}
    assert {name: decisions.get(name) for name in case.get("decides", {})} == case.get(
        "decides", {}
    )
    for attribute in ("line", "key"):
        places = case.get(f"{attribute}s", {})
        assert {n: getattr(reading.decisions[n], attribute) for n in places} == places
    settings = case.get("settings", {})
    assert {name: plain(reading.settings[name]) for name in settings} == settings
    if "breaks" in case:
        assert_broken(form, reading, case)
    assert form.framework_of(reading) == case.get("framework", form.framework_of(reading))
    if "batch" in case:
        made = reading.batching
        assert (made and [made.value, made.key]) == case["batch"]
        assert not made or (made.line > 0) == (made.value != "padded")
    for name, part in case.get("says", {}).items():
        assert re.search(part, str(plain(getattr(reading, name))))
    for name in case.keys() - COMPARED_APART:
        assert plain(getattr(reading, name)) == case[name], name

"""The picture of a terminal: what the command writes, as a person sees it, and nothing fetched."""

import re
from xml.etree import ElementTree

import pytest

from tools import screen
from tools.pages import DOCS

QUICK = "planner show models llama3-8b"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "COMMAND", QUICK)


def test_the_picture_fetches_nothing() -> None:
    text = (DOCS / "screen.svg").read_text("utf-8")
    assert "@font-face" not in text
    assert set(re.findall(r"url\((.)", text)) == {"#"}


def test_the_picture_is_the_same_each_time(quick: None) -> None:
    first = screen.screen_picture()
    assert first == screen.screen_picture()
    assert ElementTree.fromstring(first).tag.endswith("svg")


def test_the_picture_shows_the_command_and_its_first_rows(quick: None) -> None:
    shown = screen.rows()
    assert shown[0] == f"$ {QUICK}"
    assert 1 < len(shown) <= screen.ROWS
    assert QUICK.split()[-1] in screen.screen_picture()


def test_rows_are_as_a_person_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "COMMAND", "planner memory llama3-8b 1xdgx-h100 --tp 8")
    assert any("\x1b[" in row for row in screen.rows())


def test_a_command_that_fails_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "COMMAND", "planner show models nothing-of-the-kind")
    with pytest.raises(ValueError, match="is the name of nothing"):
        screen.rows()

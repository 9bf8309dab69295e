"""Charts: the formats, what is left out, what is refused."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.report.plot import MAX_TICKS, line_chart, log_ticks, short_number

SERIES = {
    "ring": ([8.0, 64.0, 512.0], [1.0, 0.9, 0.5]),
    "tree": ([8.0, 64.0, 512.0], [0.8, 0.7, 0.6]),
}


def draw(path: Path | None = None, series: Any = SERIES, **settings: Any) -> None:
    line_chart(series, title="Efficiency", x_label="GPUs", y_label="share", path=path, **settings)


def test_png_and_svg_hold_a_picture_of_their_kind(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", log_x=True)
    draw(tmp_path / "a.svg", log_x=True)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<svg" in text


def test_the_same_chart_gives_the_same_file(tmp_path: Path) -> None:
    for suffix in ("png", "svg"):
        draw(tmp_path / f"a.{suffix}")
        draw(tmp_path / f"b.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_a_picture_is_replaced_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    path.write_text("mine")
    with pytest.raises(InputError, match="--force"):
        draw(path)
    assert path.read_text() == "mine"
    draw(path, force=True)
    assert "<svg" in path.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["a.svg"]


@pytest.mark.parametrize("name", ["a.pdf", "a"])
def test_other_suffixes_are_refused_with_those_allowed(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=re.escape(".png, .svg")):
        draw(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_terminal_chart_names_everything_and_holds_no_control_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    draw(log_x=True)
    text = capsys.readouterr().out
    for name in ("Efficiency", "GPUs", "share", "ring", "tree", "8", "64", "512"):
        assert name in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 90
    assert text.count("*") > 3
    assert text.count("o") > 3


def test_points_without_a_place_on_the_axis_are_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    series = {
        "curve": ([0.0, 10.0, 100.0, 1000.0], [1.0, float("nan"), 3.0, 4.0]),
        "nothing": ([1.0], [float("inf")]),
    }
    draw(series=series, log_x=True)
    assert "curve" in capsys.readouterr().out
    draw(tmp_path / "a.png", series=series, log_x=True, log_y=True)


@pytest.mark.parametrize("suffix", ["", ".svg"])
def test_a_missing_library_names_the_way_to_get_it(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=re.escape("pip install 'parallel-planner[plot]'")):
        draw(tmp_path / f"a{suffix}" if suffix else None)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([8, 64, 8, 512], [8, 64, 512]),
        ([2.0**i for i in range(3, 17)], [10, 100, 1000, 10000]),
        ([1 + i / 20 for i in range(20)], [1 + i / 20 for i in range(0, 20, 3)]),
    ],
)
def test_logarithmic_ticks(values: Sequence[float], ticks: Sequence[float]) -> None:
    assert log_ticks(values) == pytest.approx(ticks)
    assert len(log_ticks(values)) <= MAX_TICKS


@pytest.mark.parametrize(
    ("value", "text"), [(8, "8"), (65536, "65536"), (350e9, "350G"), (0.00125, "0.00125")]
)
def test_short_numbers(value: float, text: str) -> None:
    assert short_number(value) == text

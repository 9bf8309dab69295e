"""Accuracy in a sentence: its figures are those of the page."""

from pathlib import Path

import pytest

from tools import limits

PAGE = """
| dense models | 298 | 5.0 | 3.7 | 10.0 | -1.4 |
| mixture-of-experts models | 50 | 14.7 | 11.2 | 34.7 | -11.7 |
| whole device (nvidia-smi) | 70 | 4.8 | 3.8 | 9.2 | -2.1 |
All 1073 runs: 87.6 % inside their class, 89.8 % inside the one taken without their source (88 %).
"""


def test_figures_are_the_pages_mean_and_ninetieth_percentile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accuracy.md").write_text(PAGE)
    monkeypatch.setattr(limits, "ACCURACY", tmp_path / "accuracy.md")
    words = " ".join(limits.accuracy_in_words().split())
    assert "298 published runs of dense models iteration time is off by 5.0 %" in words
    assert "(nine of ten within 10.0 %), on 50 of mixtures of experts by 14.7 %" in words
    assert "on 70 runs, by 4.8 % (within 9.2 %)" in words
    assert "held 89.8 % of 1073 runs" in words


def test_a_page_without_the_rows_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accuracy.md").write_text(PAGE.replace("| dense", "| Dense"))
    monkeypatch.setattr(limits, "ACCURACY", tmp_path / "accuracy.md")
    with pytest.raises(ValueError, match="no row 'dense models'"):
        limits.accuracy_in_words()

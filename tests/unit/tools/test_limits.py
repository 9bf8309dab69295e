"""Accuracy in a sentence: its figures are those of the page."""

from pathlib import Path

import pytest

from tools import limits

PAGE = """\
| dense models as makers tune them | 173 | 5.5 | 2.7 | 11.3 | +0.4 |
| mixtures of experts as makers tune them | 82 | 15.9 | 13.7 | 30.1 | -11.4 |
| dense models as others run them | 799 | 7.4 | 4.5 | 16.3 | -1.4 |
| mixtures of experts as others run them | 27 | 29.3 | 24.3 | 52.3 | -22.0 |
| whole device (nvidia-smi) as others run them | 108 | 5.6 | 4.3 | 10.9 | -3.3 |
All 1073 runs: 88 % inside, 89.8 % inside the one taken without their source
"""


def test_figures_are_the_pages_mean_and_ninetieth_percentile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accuracy.md").write_text(PAGE)
    monkeypatch.setattr(limits, "ACCURACY", tmp_path / "accuracy.md")
    words = " ".join(limits.accuracy_in_words().split())
    assert "On 173 runs of dense models" in words
    assert "off by 5.5 % on average (nine of ten within 11.3 %), on 82 of mixtures" in words
    assert "on 799 runs of others by 7.4 % (within 16.3 %) and on 27 of mixtures" in words
    assert "on 108 runs of others, is off by 5.6 % (within 10.9 %)" in words
    assert "held 89.8 % of 1073 runs" in words


def test_a_page_without_the_rows_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accuracy.md").write_text(PAGE.replace("| dense", "| Dense"))
    monkeypatch.setattr(limits, "ACCURACY", tmp_path / "accuracy.md")
    with pytest.raises(ValueError, match="no row 'dense models as makers tune them'"):
        limits.accuracy_in_words()

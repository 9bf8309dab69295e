"""The page in a real browser, where one is installed: both themes, on paper, and without errors.

A browser is no Python package and none is brought by scripts/oracles: without one these tests are
skipped, which says nothing about the page.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from browser_pipe import BROWSER, BROWSERS, pipeline_plan

from planner.report.document import rendered
from planner.report.page import describe

ALONE = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
WIDTH, HEIGHT = 1200, 4000
THEMES = {"dark": 0, "light": 1}  # as the engine numbers preferred colour schemes
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is there")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "page.html"
    described = describe(pipeline_plan(folder), origin="", files=(), refused="none", answer=None)
    path.write_text(rendered("page.html.j2", page=described), encoding="utf-8")
    return path


def browse(page: Path, *options: str) -> str:
    assert BROWSER is not None
    profile = page.parent / "profile"
    words = (BROWSER, *ALONE, f"--user-data-dir={profile}", *options, page.as_uri())
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def picture(page: Path, theme: str) -> np.ndarray:
    """Red, green and blue of every dot, 0 to 1."""
    path = page.parent / f"{theme}.png"
    scheme = f"--blink-settings=preferredColorScheme={THEMES[theme]}"
    browse(page, scheme, f"--screenshot={path}", f"--window-size={WIDTH},{HEIGHT}")
    image = pytest.importorskip("PIL.Image").open(path)
    return np.asarray(image.convert("RGB")) / 255.0


def test_both_themes_show_charts_on_their_own_paper(page: Path) -> None:
    light, dark = picture(page, "light"), picture(page, "dark")
    assert light[0, 0].min() > 0.95
    assert dark[0, 0].max() < 0.2
    for seen in (light, dark):
        assert seen.shape == (HEIGHT, WIDTH, 3)
        coloured = np.ptp(seen, axis=2) > 0.25
        # Charts are on most of the page's width, at several heights.
        assert coloured.any(axis=0).mean() > 0.7
        assert 0.05 < coloured.mean() < 0.6


def test_the_page_prints_with_what_is_folded(page: Path) -> None:
    path = page.parent / "page.pdf"
    browse(page, f"--print-to-pdf={path}", "--no-pdf-header-footer")
    printed = path.read_bytes()
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page/") >= 3


def test_the_browser_reads_all_of_it(page: Path) -> None:
    tree = browse(page, "--dump-dom")
    assert tree.count("<svg") == 2 * 4 + 1
    assert tree.count("<section") == page.read_text(encoding="utf-8").count("<section")
    assert "<script" not in tree

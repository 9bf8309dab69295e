"""Files that no reader can use end every command as any other wrong input does, at once."""

import os
import time
from pathlib import Path

import pytest
from in_process import planner

COMMANDS = {
    "model": ["plan", "{file}", "1xdgx-h100"],
    "cluster": ["plan", "llama3-8b", "{file}"],
    "plan": ["explain", "{file}"],
    "config": ["check", "{file}", "--model", "llama3-8b", "--cluster", "1xdgx-h100"],
}
TEXTS = {"deep": "a: " + "[" * 200_000, "digits": "a: " + "9" * 5000, "large": " " * 10**8}
MAX_SECONDS = 5.0  # Modules that are loaded first included


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("kind", ["pipe", "device", "loop", *TEXTS])
def test_a_file_that_cannot_be_read_is_an_input_error(
    tmp_path: Path, command: list[str], kind: str
) -> None:
    path = tmp_path / "file.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in TEXTS:
        path.write_text(TEXTS[kind])
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    start = time.process_time()
    done = planner(*(word.format(file=path) for word in command))
    assert time.process_time() - start < MAX_SECONDS
    assert done.code == 2
    assert "::" in done.err or "file.unreadable" in done.out

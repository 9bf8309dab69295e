"""Files and paths written to do harm: nothing runs, nothing falls over, nothing moves a cursor."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from in_process import planner

MODEL = """\
num_layers: {layers}
hidden_size: 1024
num_heads: 8
vocab_size: 32000
max_seq_len: 4096
"""


def test_a_file_with_an_odd_name_gives_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "`id` $(x)é.yaml"
    path.write_text(MODEL.format(layers=2))
    run = planner("plan", str(path), "1xdgx-h100", "--format", "json", "--top", "1")
    assert run.code == 0
    assert '"id- --x--"' in run.out


def test_a_time_limit_holds_while_shapes_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL.format(layers=1000))
    words = ("--time-limit", "2", "--top", "1", "--format", "json")
    start = time.process_time()
    run = planner("plan", str(path), "2000xdgx-h100", *words)
    assert time.process_time() - start < 6.0
    assert run.code in (0, 3)
    assert run.code or not json.loads(run.out)["search"]["is_complete"]


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\x1b[2J", "\u202e", "a\nb::c: d"])
def test_control_characters_are_shown_escaped(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(f"{json.dumps(text)}: 1\nname: small\n")
    run = planner("plan", str(path), "1xdgx-h100")
    assert run.code == 2
    assert run.err.replace("\n", "").isprintable()
    assert all("model.yaml::" in line for line in run.err.splitlines())


def test_texts_of_a_file_move_no_cursor_on_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "megatron.args"
    path.write_text("--num-layers 32\n--tensor-model-parallel-size '\x1b[2J[/x]'\n")
    run = planner("check", str(path), "--model", "llama3-8b", "--cluster", "1xdgx-h100")
    assert "\x1b" not in run.out + run.err
    assert "\\x1b[2J[/x]" in run.out


@pytest.mark.parametrize("option", ["--save", "--out"])
def test_links_in_a_circle_are_no_place_to_write(tmp_path: Path, option: str) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    words = ("--emit", "megatron") if option == "--out" else ()
    run = planner("plan", "llama3-8b", "1xdgx-h100", *words, option, str(loop))
    assert run.code == 2
    assert f"{option}: cannot be written: Symlink loop" in run.err


def test_nothing_is_left_behind_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.fdopen

    def full(descriptor: int, mode: str, **options: Any) -> Any:
        if mode != "wb":
            return opened(descriptor, mode, **options)
        os.close(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    run = planner("plan", "llama3-8b", "1xdgx-h100", "--save", str(tmp_path / "plan.yaml"))
    assert run.code == 2
    assert "No space left on device" in run.err
    assert list(tmp_path.iterdir()) == []


DIGITS = "9" * 6000


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "llama3-8b", "2xdgx-h100", "--tokens", DIGITS),
        ("plan", "llama3-8b", "2xdgx-h100", "--tokens", "1T", "--budget", DIGITS),
        ("plan", "llama3-8b", "2xdgx-h100", "--tokens", "1T", "--deadline", f"{DIGITS}d"),
        ("plan", "llama3-8b", "2xdgx-h100", "--tokens", "9999999T"),
        ("plan", "llama3-8b", f"{DIGITS}xdgx-h100"),
        ("why", "llama3-8b", "2xdgx-h100", "--fix", f"tp={DIGITS[:1900]}"),
        ("plan", "llama3-8b", f"2xdgx-h100@{DIGITS}GiB"),
        ("size", "llama3-8b", "dgx-h100", "--gpus", f"8..{DIGITS}"),
        ("memory", "llama3-8b", "2xdgx-h100", "--layers-per-stage", DIGITS),
        ("collective", "all-reduce", DIGITS, "2xdgx-h100"),
    ],
    ids=lambda words: words[-1][:12],
)
def test_a_number_of_thousands_of_digits_is_an_error_of_the_input(words: tuple[str, ...]) -> None:
    run = planner(*words)
    assert run.code == 2
    assert "internal error" not in run.err
    assert all(len(line) < 400 for line in run.err.splitlines())


MANY = {
    "top.yaml": lambda keys: "distributed_type: FSDP\n" + "".join(f"{key}: 1\n" for key in keys),
    "section.yaml": lambda keys: (
        "distributed_type: FSDP\nfsdp_config:\n" + "".join(f"  fsdp_{key}: 1\n" for key in keys)
    ),
    "ds.json": lambda keys: json.dumps({"train_batch_size": 8, **dict.fromkeys(keys, 1)}),
}


@pytest.mark.parametrize("name", MANY)
def test_ten_times_as_many_keys_take_ten_times_as_long(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    taken_s = []
    for number in (100, 400, 4_000):  # the first loads what the others find loaded
        path.write_text(MANY[name]([f"key_{each}" for each in range(number)]))
        start = time.process_time()
        assert (
            planner("check", str(path), "--model", "llama3-8b", "--cluster", "1xdgx-h100").code < 2
        )
        taken_s.append(time.process_time() - start)
    # Work that grew as the square would take a hundred times as long.
    assert taken_s[2] < 25.0 * taken_s[1]

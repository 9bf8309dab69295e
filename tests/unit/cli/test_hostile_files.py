"""Files and paths written to do harm: nothing runs, nothing falls over, nothing moves a cursor."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from in_process import planner

MODEL = """\
name: {name}
num_layers: 2
hidden_size: 1024
num_heads: 8
vocab_size: 32000
max_seq_len: 4096
norm: rmsnorm
gated_mlp: true
activation: silu
biases: {{norm: false}}
"""
CODE = '"\\"\\"\\"\\nimport os; os.system(\'touch PWNED\')\\n\\"\\"\\""'


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """A model file with keys added or replaced."""

    def write(name: str = "small", **keys: object) -> str:
        lines = MODEL.format(name=name).splitlines()
        lines = [line for line in lines if line.partition(":")[0] not in keys]
        lines += [f"{key}: {value}" for key, value in keys.items()]
        path = tmp_path / "model.yaml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("name", [CODE, '"\\\\N{x}"', '"a\\nb"', '"\\e[2J"', "''", "x" * 101])
def test_a_name_that_could_be_code_is_refused_at_the_door(
    model: Any, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    words = ("--framework", "torchtitan", "--emit", "torchtitan", "--out", str(out))
    run = planner("plan", model(name), "1xdgx-h100", *words)
    assert run.code == 2
    assert "model.yaml::name: must be a name of 1 to 100 ASCII letters" in run.err
    assert not out.exists()


def test_a_file_with_an_odd_name_gives_a_plain_one(model: Any) -> None:
    path = Path(model()).rename(Path(model()).with_name("`id` $(x)é.yaml"))
    path.write_text(path.read_text().replace("name: small\n", ""))
    run = planner("plan", str(path), "1xdgx-h100", "--format", "json", "--top", "1")
    assert run.code == 0
    assert '"id- --x--"' in run.out


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\x1b[2J", "\u202e", "a\nb::c: d"])
def test_control_characters_are_shown_escaped(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(f"{yaml_quoted(text)}: 1\nname: small\n")
    run = planner("plan", str(path), "1xdgx-h100")
    assert run.code == 2
    assert run.err.replace("\n", "").isprintable()
    assert all("model.yaml::" in line for line in run.err.splitlines())


def yaml_quoted(text: str) -> str:
    return '"' + text.encode("unicode_escape").decode() + '"'


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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_layers", 10_000),
        ("vocab_size", 10**30),
        ("hidden_size", 10**9),
        ("moe", f"{{num_experts: {10**15}, top_k: 1, expert_ffn_size: 8}}"),
    ],
)
def test_a_count_no_model_has_is_refused(model: Any, key: str, value: object) -> None:
    run = planner("plan", model(**{key: value}), "1xdgx-h100", "--time-limit", "5")
    assert run.code == 2
    assert f"model.yaml::{key}" in run.err
    assert "must be less than or equal to" in run.err


def test_a_time_limit_holds_while_shapes_are_listed(model: Any) -> None:
    words = ("--time-limit", "2", "--top", "1", "--format", "json")
    start = time.process_time()
    run = planner("plan", model(num_layers=1000), "2000xdgx-h100", *words)
    assert time.process_time() - start < 6.0
    assert run.code in (0, 3)
    assert run.code or not json.loads(run.out)["search"]["is_complete"]


KEYS = range(10_000)
MANY = {
    "top.yaml": "distributed_type: FSDP\n" + "".join(f"key_{each}: 1\n" for each in KEYS),
    "section.yaml": "distributed_type: FSDP\nfsdp_config:\n"
    + "".join(f"  fsdp_key_{each}: 1\n" for each in KEYS),
    "ds.json": json.dumps({"train_batch_size": 8, **{f"key_{each}": 1 for each in KEYS}}),
}


@pytest.mark.parametrize("name", MANY)
def test_ten_thousand_keys_are_read_in_seconds(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(MANY[name])
    start = time.process_time()
    assert planner("check", str(path), "--model", "llama3-8b", "--cluster", "1xdgx-h100").code < 2
    assert time.process_time() - start < 12

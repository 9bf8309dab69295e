"""What tools print, from files and from executables of ours in place of the tools."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import assert_places

from planner.catalog import observe
from planner.catalog.observe import ask_host, clean, parse, read_source
from planner.errors import InputError

CASES = yaml.safe_load(Path(__file__).with_name("observed.yaml").read_text("utf-8"))
REFUSED = CASES.pop("refused")
SAMPLES = Path(__file__).parents[2] / "examples" / "hardware" / "positive"
MEMINFO = "MemFree: 1 kB\nMemTotal:       2113634304 kB\n"


@pytest.mark.parametrize(
    ("text", "places"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_what_a_tool_prints_is_observed(text: str, places: dict[str, Any]) -> None:
    found = parse(text, "tool")
    assert_places(found, places)
    assert len(found) == 1 + max(int(place[0]) for place in places)


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse(text, "tool")


def test_of_very_many_problems_the_first_are_told() -> None:
    with pytest.raises(InputError) as error:
        parse("name, memory.total [MiB]\n" + "A, x\n" * 100, "smi")
    assert len(error.value.problems) == observe.MAX_PROBLEMS


def test_byte_order_marks_foreign_line_ends_and_colours_change_nothing(tmp_path: Path) -> None:
    plain = (SAMPLES / "dgx-h100.smi.csv").read_bytes()
    coloured = plain.replace(b"NVIDIA", b"\x1b[4mNVIDIA\x1b[0m")
    path = tmp_path / "smi.csv"
    path.write_bytes(b"\xef\xbb\xbf" + coloured.replace(b"\n", b"\r\n"))
    assert read_source(path) == parse(plain.decode(), str(path))


def test_colours_without_their_escape_character_are_dropped() -> None:
    (read,) = parse(clean("[4mname, index[0m\nNVIDIA L4, 0\n", "smi"), "smi")
    assert (read.gpu, read.num_gpus) == ("NVIDIA L4", 1)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, code: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    path.chmod(0o755)


def install_nvidia_smi(folder: Path) -> None:
    sample = str(SAMPLES / "dgx-h100.smi.csv")
    code = f'assert sys.argv[2:] == ["--format=csv"], sys.argv\nprint(open({sample!r}).read())'
    install(folder, "nvidia-smi", code)


def test_all_tools_are_asked_and_the_host_memory_read(tools: Path, tmp_path: Path) -> None:
    install_nvidia_smi(tools)
    install(tools, "sinfo", f"print(open({str(SAMPLES / 'slurm.sinfo.txt')!r}).read())")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    (gpus,), slurm, (memory,) = ask_host(meminfo)
    assert slurm[0].num_nodes == 16
    assert (gpus.gpu, gpus.where) == ("NVIDIA H100 80GB HBM3", "nvidia-smi --query-gpu")
    assert memory.host_memory_mib == 2113634304 / 1024


def test_a_login_node_without_gpus_does_not_give_its_memory(tools: Path, tmp_path: Path) -> None:
    install(tools, "sinfo", f"print(open({str(SAMPLES / 'slurm.sinfo.txt')!r}).read())")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    (slurm,) = ask_host(meminfo)
    assert slurm[0].num_nodes == 16


def test_a_tool_that_fails_is_quoted(tools: Path) -> None:
    message = "NVIDIA-SMI has failed because it couldn't communicate with the driver."
    install(tools, "nvidia-smi", f"sys.exit({message!r})")
    with pytest.raises(InputError, match=r"exit status 1\. NVIDIA-SMI has failed"):
        ask_host()


def test_a_tool_that_hangs_is_given_up(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tools, "sinfo", "import time; time.sleep(60)")
    monkeypatch.setattr(observe, "TIMEOUT_S", 0.2)
    with pytest.raises(InputError, match=r"timed out after 0\.2 seconds"):
        ask_host()


@pytest.mark.parametrize("text", ["", "MemTotal: much kB\n", "MemTotal:\n", "MemTotal: 0 kB\n"])
def test_a_meminfo_that_tells_nothing_is_left_out(text: str, tools: Path, tmp_path: Path) -> None:
    install_nvidia_smi(tools)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(text)
    assert len(ask_host(meminfo)) == 1
    assert len(ask_host(tmp_path / "nothing")) == 1

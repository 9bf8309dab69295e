"""Detection with executables of ours in place of the tools."""

import sys
from pathlib import Path

import pytest

from planner.catalog.detect import host
from planner.catalog.detect.host import detect
from planner.catalog.detect.observation import Observation
from planner.catalog.detect.sinfo import SlurmNodes
from planner.errors import InputError

SAMPLES = Path(__file__).parents[3] / "examples" / "hardware" / "positive"
MEMINFO = "MemFree: 1 kB\nMemTotal:       2113634304 kB\n"


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
    smi, topo = SAMPLES / "dgx-h100.smi.csv", SAMPLES / "dgx-h100.topo.txt"
    code = f"""
file = {str(topo)!r} if sys.argv[1:] == ["topo", "-m"] else {str(smi)!r}
assert file.endswith("txt") or sys.argv[2:] == ["--format=csv"], sys.argv
print(open(file).read())
"""
    install(folder, "nvidia-smi", code)


def test_all_tools_are_asked_and_the_host_memory_read(tools: Path, tmp_path: Path) -> None:
    install_nvidia_smi(tools)
    install(tools, "sinfo", f"print(open({str(SAMPLES / 'slurm.sinfo.txt')!r}).read())")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    smi, topo, slurm, memory = detect(meminfo)
    assert isinstance(smi, Observation)
    assert isinstance(topo, Observation)
    assert isinstance(slurm, SlurmNodes)
    assert isinstance(memory, Observation)
    assert (smi.gpu, smi.where) == ("NVIDIA H100 80GB HBM3", "nvidia-smi --query-gpu")
    assert topo.links is not None
    assert memory.host_memory_mib == 2113634304 / 1024


def test_a_login_node_without_gpus_does_not_give_its_memory(tools: Path, tmp_path: Path) -> None:
    install(tools, "sinfo", f"print(open({str(SAMPLES / 'slurm.sinfo.txt')!r}).read())")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    (slurm,) = detect(meminfo)
    assert isinstance(slurm, SlurmNodes)


def test_without_tools_it_is_said_what_to_do(tools: Path) -> None:
    with pytest.raises(InputError) as error:
        detect()
    text = str(error.value)
    assert "nvidia-smi and sinfo not on PATH" in text
    assert "--from FILE" in text


def test_a_tool_that_fails_is_quoted(tools: Path) -> None:
    message = "NVIDIA-SMI has failed because it couldn't communicate with the driver."
    install(tools, "nvidia-smi", f"sys.exit({message!r})")
    with pytest.raises(InputError, match="failed with exit code 1: NVIDIA-SMI has failed"):
        detect()


def test_a_tool_that_hangs_is_given_up(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tools, "sinfo", "import time; time.sleep(60)")
    monkeypatch.setattr(host, "TIMEOUT_S", 0.2)
    with pytest.raises(InputError, match=r"gave no answer in 0\.2 s"):
        detect()


@pytest.mark.parametrize("text", ["", "MemTotal: much kB\n", "MemTotal:\n", "MemTotal: 0 kB\n"])
def test_a_meminfo_that_tells_nothing_is_left_out(text: str, tools: Path, tmp_path: Path) -> None:
    install_nvidia_smi(tools)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(text)
    assert len(detect(meminfo)) == 2
    assert len(detect(tmp_path / "nothing")) == 2

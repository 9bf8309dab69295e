"""What the tools of this machine tell: they are run, nothing else is looked at."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from planner.catalog.detect import sinfo, smi, topo
from planner.catalog.detect.observation import Observation
from planner.catalog.detect.recognise import COMMANDS, Source, clean, parse
from planner.errors import InputError, Problem

TIMEOUT_S = 60
_MEMINFO = Path("/proc/meminfo")


def detect(meminfo: Path = _MEMINFO) -> list[Source]:
    """Return what nvidia-smi, sinfo and /proc/meminfo tell; raises InputError without any GPU."""
    sources: list[Source] = []
    problems: list[Problem] = []
    for command in (smi.COMMAND.split(), topo.COMMAND.split(), sinfo.ARGUMENTS):
        if shutil.which(command[0]) is None:
            continue
        try:
            sources.append(parse(_run(command), _where(command)))
        except InputError as error:
            problems += error.problems
    if not sources:
        missing = [name for name in ("nvidia-smi", "sinfo") if shutil.which(name) is None]
        absent = f"{' and '.join(missing)} not on PATH; " if missing else ""
        message = (
            f"no accelerator found: {absent}run it on a node with GPUs, or give what was printed "
            f"there by --from FILE: {', '.join(COMMANDS)}"
        )
        problems.append(Problem(where="this machine", key="--detect", message=message))
    if problems:
        raise InputError(problems)
    if any(isinstance(source, Observation) for source in sources):
        sources += _host_memory(meminfo)
    return sources


def _where(command: Sequence[str]) -> str:
    return " ".join(word.split("=")[0] for word in command[:2])


def _run(command: Sequence[str]) -> str:
    """Standard output of a tool; its failure is a problem with the last line it printed."""
    where = _where(command)
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        message = f"gave no answer in {TIMEOUT_S} s; give its output by --from FILE"
        raise InputError.single(where, "--detect", message) from None
    except OSError as error:
        raise InputError.single(where, "--detect", f"cannot be run: {error.strerror}") from None
    if done.returncode:
        said = clean(done.stderr or done.stdout, where).strip().splitlines()
        message = f"failed with exit code {done.returncode}: {said[-1] if said else 'no message'}"
        raise InputError.single(where, "--detect", message)
    return clean(done.stdout, where)


def _host_memory(path: Path) -> list[Observation]:
    """MemTotal in KiB; nothing where the file has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    words = next((line.split() for line in lines if line.startswith("MemTotal:")), [])
    if len(words) < 2 or not words[1].isdecimal() or not int(words[1]):
        return []
    return [Observation(where=str(path), host_memory_mib=int(words[1]) / 1024)]

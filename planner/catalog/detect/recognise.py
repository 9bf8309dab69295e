"""Files to observations: which tool wrote a file is told by its content."""

import re
from pathlib import Path

from planner.catalog.detect import nccl_xml, sinfo, smi, topo
from planner.catalog.detect.observation import Observation
from planner.documents.file import read_bytes
from planner.errors import InputError
from planner.limits import MAX_LOG_BYTES

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\[\d[\d;]*m")
"""Colours; pages that show a terminal's output drop the escape character before them."""
_FAILED = ("NVIDIA-SMI has failed", "No devices were found", "Failed to initialize NVML")
COMMANDS = (
    f"`{smi.COMMAND}`",
    f"`{topo.COMMAND}`",
    f"`{sinfo.COMMAND}`",
    nccl_xml.COMMAND,
)

Source = Observation | sinfo.SlurmNodes


def read_source(path: Path) -> Source:
    """Return what a file tells; raises InputError for a file that no known tool wrote."""
    where = str(path)
    data = read_bytes(path, MAX_LOG_BYTES)
    return parse(clean(data, where), where)


def clean(data: bytes, where: str) -> str:
    """Return the text without byte order mark, colours and foreign line ends."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: {error.reason} at byte {error.start:,}"
        raise InputError.single(where, "file", message) from None
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    odd = next((char for char in text if not char.isprintable() and char not in "\n\t"), "")
    if odd:
        raise InputError.single(where, "file", f"has the control character {odd!r}; is it text?")
    return text


def parse(text: str, where: str) -> Source:
    """Return what a text tells, by the format it is in."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError.single(where, "file", f"is empty; known are {', '.join(COMMANDS)}")
    for line in lines[:3]:
        if line.startswith(_FAILED):
            raise InputError.single(where, "line 1", f"nvidia-smi found no GPU: {line.strip()!r}")
    first = lines[0].lstrip()
    if first.startswith("<"):
        return nccl_xml.parse_nccl_xml(text.strip(), where)
    if any(map(topo.is_topo_header, lines)):
        return topo.parse_topo(text, where)
    if any(map(sinfo.is_sinfo_header, lines)):
        return sinfo.parse_sinfo(text, where)
    if any(map(smi.is_smi_header, lines)):
        return smi.parse_smi(text, where)
    message = f"written by no known tool; known are {', '.join(COMMANDS)} (keep the headers)"
    raise InputError.single(where, "line 1", message)

"""The hostfile of DeepSpeed's launcher: ``host slots=8``, one host to a line.

Source: deepspeed/launcher/runner.py fetch_hostfile. What it refuses is an error here; what it
takes although it means nothing is one too (no slots) or a warning (words behind them).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.formats.finding import Finding, Severity
from planner.formats.format import Beside, SourceText

_ENTRY = re.compile(r"(\S+)\s+slots=([0-9]{1,9})(?![0-9])(.*)")


@dataclass(frozen=True, kw_only=True)
class Hostfile:
    """Hosts in the order of the file, each with its slots, and what is wrong."""

    slots: Mapping[str, int]
    findings: tuple[Finding, ...]

    @property
    def num_gpus(self) -> int:
        """Slots of all hosts."""
        return sum(self.slots.values())


def read_hostfile(source: SourceText) -> Hostfile:
    """Read a hostfile; what cannot be understood is a finding."""
    slots: dict[str, int] = {}
    findings: list[Finding] = []
    for number, line in enumerate(source.text.split("\n"), start=1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            findings += _entry(source, number, entry, slots)
    if not slots and not findings:
        message = "no host; given none, needed is a line such as `worker-0 slots=8`"
        findings.append(_finding(source, "hostfile_empty", 0, message))
    return Hostfile(slots=slots, findings=tuple(findings))


def is_hostfile(source: SourceText) -> bool:
    """Whether the first line that is no comment is a host with slots."""
    lines = (line.strip() for line in source.text.split("\n"))
    entry = next((line for line in lines if line and not line.startswith("#")), "")
    return re.match(r"\S+\s+slots=", entry) is not None


def _read(source: SourceText) -> tuple[int, tuple[Finding, ...]]:
    found = read_hostfile(source)
    return found.num_gpus, found.findings


HOSTFILE = Beside(name="hostfile", recognise=is_hostfile, read=_read)


def write_hostfile(slots: Mapping[str, int]) -> str:
    """The file of these hosts, each with its slots."""
    return "".join(f"{host} slots={count}\n" for host, count in slots.items())


def _entry(source: SourceText, line: int, entry: str, slots: dict[str, int]) -> Iterator[Finding]:
    found = _ENTRY.match(entry)
    if found is None:
        message = f"no entry; given {entry[:60]!r}, needed is `host slots=8`"
        yield _finding(source, "hostfile_entry", line, message)
        return
    host, count, rest = found[1], int(found[2]), found[3].strip()
    if host in slots:
        message = "the host stands there already; allowed is one entry for every host"
        yield _finding(source, "hostfile_duplicate", line, message, host)
    if count == 0:
        yield _finding(
            source, "hostfile_slots", line, "no slots; given 0, needed are 1 or more", host
        )
    if rest and not rest.startswith("#"):
        message = f"ignored by the launcher; given {rest[:60]!r} behind the slots"
        yield _finding(source, "hostfile_rest", line, message, host, "warning")
    slots.setdefault(host, count)


def _finding(
    source: SourceText,
    rule: str,
    line: int,
    message: str,
    key: str = "",
    severity: Severity = "error",
) -> Finding:
    return Finding(
        rule=f"deepspeed.{rule}",
        severity=severity,
        message=message,
        path=source.path,
        key=key,
        line=line,
    )

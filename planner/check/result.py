"""Result of a check of one file."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.errors import InputError, Problem
from planner.formats.format import SEVERITIES, Finding, Severity
from planner.limits import one_line

if TYPE_CHECKING:
    from planner.cost.estimate import Estimate

UNREADABLE = "file.unreadable"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of the model for a legal layout."""

    iter_time_s: float
    tokens_per_s: float
    peak_bytes: float
    usable_bytes: float
    peak_stage: int
    num_stages: int = 1  # Number of pipeline stages

    @classmethod
    def of(cls, estimate: "Estimate") -> "Figures":
        """The figures of an estimate."""
        memory = estimate.memory
        return cls(
            iter_time_s=estimate.iter_time_s,
            tokens_per_s=estimate.tokens_per_s,
            peak_bytes=memory.peak_bytes,
            usable_bytes=memory.usable_bytes,
            peak_stage=memory.stage,
            num_stages=len(memory.stage_peak_bytes),
        )


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """One file: what it is, what is to be said about it, and whether that fails the check."""

    path: str
    format: str = ""  # ``plan``, or the name of a format; empty: not recognised
    framework: str = ""
    model: str = ""
    cluster: str = ""
    num_gpus: int = 0  # 0: not known
    findings: tuple[Finding, ...] = ()  # by line, the worst first on each
    num_ignored: int = 0  # findings left out because their rules are ignored
    assumed: tuple[str, ...] = ()  # what neither file nor job say, in words
    figures: Figures | None = None  # None where the layout is incomplete or illegal
    fail_on: Severity = "error"
    is_recognised: bool = True  # False of a file that is there and that no format takes for its own

    @property
    def is_readable(self) -> bool:
        """The file was understood."""
        return not any(finding.rule == UNREADABLE for finding in self.findings)

    def fails_for(self, finding: Finding) -> bool:
        """Return True if the finding is severe enough to fail the check."""
        return SEVERITIES.index(finding.severity) <= SEVERITIES.index(self.fail_on)

    @property
    def fails(self) -> bool:
        """Some finding is severe enough."""
        return any(map(self.fails_for, self.findings))


def exit_code(results: Sequence[FileResult]) -> int:
    """2 where a file could not be read, 1 where some finding is severe enough, else 0."""
    if not all(result.is_readable for result in results):
        return 2
    return int(any(result.fails for result in results))


def finding_of(problem: Problem, path: str, rule: str = UNREADABLE) -> Finding:
    """An input problem as an error of a file; ``line 3`` in place of a key is its line."""
    at_line = re.fullmatch(r"line (\d{1,12})", problem.key)
    is_own = problem.where == path
    key = "" if at_line or problem.key == "file" or not is_own else problem.key
    message = problem.message if is_own else str(problem)
    line = int(at_line[1]) if at_line and is_own else 0
    return Finding(rule=rule, severity="error", message=message, path=path, key=key, line=line)


def refusal(findings: Iterable[Finding]) -> InputError:
    """The error that says findings, each at its line."""
    return InputError(
        Problem(
            where=f"{one.path}:{one.line}" if one.line else one.path,
            key=one.key or "file",
            message=one.message,
        )
        for one in findings
    )


def is_ignored(finding: Finding, ignore: Sequence[str]) -> bool:
    """Return True if a rule, or the family before its dot, is among those to ignore."""
    family = finding.rule.partition(".")[0]
    return finding.rule != UNREADABLE and (finding.rule in ignore or family in ignore)


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings without repeats, by line, then the worst first; texts made fit to print."""
    made = dict.fromkeys(
        replace(
            finding,
            message=one_line(finding.message),
            path=one_line(finding.path),
            key=one_line(finding.key),
        )
        for finding in findings
    )
    return tuple(sorted(made, key=lambda one: (one.line, SEVERITIES.index(one.severity), one.rule)))

"""How many findings there are, in one line."""

from collections import Counter
from collections.abc import Iterable, Sequence

from planner.check.result import FileResult
from planner.formats.finding import SEVERITIES, Finding


def all_findings(results: Iterable[FileResult]) -> list[Finding]:
    """The findings of every file, file by file."""
    return [finding for result in results for finding in result.findings]


def counts(results: Sequence[FileResult]) -> dict[str, int]:
    """Findings by severity, worst first."""
    found = Counter(finding.severity for finding in all_findings(results))
    return {severity: found[severity] for severity in SEVERITIES}


def summary(results: Sequence[FileResult]) -> str:
    """``3 findings in 2 files: 2 errors, 1 note``."""
    files = plural(len(results), "file")
    found = {severity: number for severity, number in counts(results).items() if number}
    ignored = sum(result.num_ignored for result in results)
    left = f"; {ignored} ignored" if ignored else ""
    if not found:
        return f"nothing found in {files}{left}"
    total = plural(sum(found.values()), "finding")
    parts = ", ".join(plural(number, severity) for severity, number in found.items())
    return f"{total} in {files}: {parts}{left}"


def plural(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

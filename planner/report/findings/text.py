"""Findings for people: one line each under the name of its file, then the figures."""

from collections.abc import Iterator, Sequence
from io import StringIO

from rich.console import Console
from rich.text import Text

from planner.check.result import FileResult
from planner.formats.finding import Finding, Severity
from planner.report.findings.summary import counts, summary
from planner.report.table import Screen
from planner.units import format_bytes, format_seconds, format_stage

STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
INDENT = 4
WIDTH = 100


def print_findings(results: Sequence[FileResult], console: Console) -> None:
    """Print every file's findings, and how many there are in all."""
    for result in results:
        console.print(_title(result).append(": ").append_text(_verdict(result)))
        for finding in result.findings:
            _print_finding(finding, console)
        for line in _figures(result):
            _print_indented(Text(line, style="dim"), 2, console)
    worst = next((severity for severity, number in counts(results).items() if number), None)
    style = "bold green" if worst is None else STYLES[worst]  # type: ignore[index]
    console.print(Text(summary(results), style=style))


def render_text(results: Sequence[FileResult]) -> str:
    """The same without colours, for a file."""
    console = Screen(file=StringIO(), width=WIDTH, highlight=False, emoji=False)
    with console.capture() as captured:
        print_findings(results, console)
    return captured.get().removesuffix("\n")


def _title(result: FileResult) -> Text:
    title = Text(result.path, style="bold")
    parts = [result.format, result.model, result.cluster]
    parts += [f"{result.num_gpus:,} GPUs"] if result.num_gpus else []
    words = ", ".join(part for part in parts if part)
    return title.append(f"  {words}", style="dim") if words else title


def _verdict(result: FileResult) -> Text:
    """How many findings of each severity a file has, and whether it fits."""
    numbers = counts([result])
    parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in numbers.items() if count]
    worst = next((severity for severity, count in numbers.items() if count), None)
    style = "bold green" if worst is None else STYLES[worst]  # type: ignore[index]
    return Text(", ".join(parts) or "nothing found", style=style)


def _print_finding(finding: Finding, console: Console) -> None:
    place = f"{finding.path}:{finding.line}" if finding.line else finding.path
    head = Text(f"  {place} ")
    head.append(finding.severity, style=STYLES[finding.severity])
    head.append(f" {finding.rule}", style="bold")
    if finding.key:
        head.append(f" {finding.key}")
    console.print(head, soft_wrap=True)
    _print_indented(Text(finding.message), INDENT, console)


def _print_indented(text: Text, indent: int, console: Console) -> None:
    """Wrapped to the console's width, without blanks behind a line."""
    for line in text.wrap(console, max(console.width - indent, 1)):
        line.rstrip()
        console.print(Text(" " * indent).append_text(line), soft_wrap=True)


def _figures(result: FileResult) -> Iterator[str]:
    made = result.figures
    if made is None:
        return
    if result.assumed:
        yield f"assumed: {', '.join(result.assumed)}"
    yield (
        f"{format_seconds(made.iter_time_s)} per iteration, {made.tokens_per_s:,.0f} tokens/s, "
        f"{format_bytes(made.peak_bytes)} of {format_bytes(made.usable_bytes)} on "
        f"{format_stage(made.peak_stage, made.num_stages)}"
    )

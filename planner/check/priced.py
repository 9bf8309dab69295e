"""The layout that a file, or what a run printed of its settings, asks for: to be priced as it is.

Unlike a check this judges nothing: a run that was started has kept its framework's rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.check.findings import BATCH, STAGES, legality_findings
from planner.check.plan import check_format_name, is_plan_file, read_plan_layout
from planner.check.result import refusal
from planner.errors import InputError
from planner.formats.format import Finding, Reading
from planner.formats.registry import load_format
from planner.query.from_file import Request, format_of, needed_job, read_for, source_of
from planner.query.layout import Layout, complete


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A whole layout, what was assumed of it, and what plans would not do of it."""

    layout: Layout
    assumed: tuple[str, ...] = ()
    unusual: tuple[str, ...] = ()


def priced_file(path: str, request: Request) -> Priced:
    """The layout of a configuration or plan file.

    Raises InputError where the file cannot be read, or leaves the layout open.
    """
    check_format_name(request.framework)
    source = source_of(path)
    if not is_plan_file(source, request.framework):
        return priced_reading(format_of(source, request.framework).read(source), request)
    layout, findings, _, _ = read_plan_layout(source, request.cluster)
    if layout is None:
        raise _refused(findings)
    return _priced(layout, (), is_plan=True)


def priced_reading(reading: Reading, request: Request, framework: str = "") -> Priced:
    """The layout of settings that were read, under the framework's traits or another's.

    Raises InputError where they leave the layout open, or the model or cluster is not known.
    """
    kind = load_format(reading.format)
    reading = read_for(kind, reading, request)
    completed = complete(
        reading,
        needed_job(request, reading),
        framework or kind.framework_of(reading),
        script_recomputes=kind.script_recomputes,
    )
    if completed.layout is None:
        raise _refused((*reading.findings, *completed.findings))
    return _priced(completed.layout, completed.assumed, is_plan=False)


def _priced(layout: Layout, assumed: tuple[str, ...], *, is_plan: bool) -> Priced:
    """The layout where its numbers agree; rules that the run broke are said, and not asked."""
    found = tuple(legality_findings(layout, is_plan=is_plan))
    if wrong := [one for one in found if one.rule in (BATCH, STAGES)]:
        raise _refused(wrong)
    return Priced(layout=layout, assumed=assumed, unusual=tuple(one.message for one in found))


def _refused(findings: Sequence[Finding]) -> InputError:
    """Why a layout cannot be made out: the errors, or all that was found."""
    return refusal([one for one in findings if one.severity == "error"] or findings)

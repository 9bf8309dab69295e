"""What kind of file it is: a plan, a configuration of a known format, or neither."""

from planner.check.plan import NAME as PLAN
from planner.check.plan import is_plan
from planner.errors import InputError
from planner.formats import registry as formats
from planner.formats.format import SourceText
from planner.query.from_file import AUTO
from planner.spelling import did_you_mean


def check_format_name(name: str) -> None:
    """Raise InputError where there is no format of this name."""
    known = (AUTO, PLAN, *formats.format_names())
    if name not in known:
        text = f"unknown format {name!r}; allowed are {', '.join(known)}. "
        message = (text + did_you_mean(name, known)).strip()
        raise InputError.single("command line", "--framework", message)


def is_plan_file(source: SourceText, framework: str) -> bool:
    """Whether a file is a plan: the framework says so, or the file where that is auto."""
    return framework == PLAN or (framework == AUTO and is_plan(source))

"""What kind of file it is: a plan, a configuration of a known format, or neither."""

from planner.check.job import AUTO
from planner.check.plan import NAME as PLAN
from planner.check.plan import is_plan
from planner.documents.file import is_file
from planner.documents.json_text import parse_json
from planner.documents.yaml_text import compose
from planner.errors import InputError, Problem
from planner.formats import registry as formats
from planner.formats.foreign import program_of
from planner.formats.format import Format, SourceText
from planner.formats.source import read_source
from planner.spelling import did_you_mean

YAML_ENDS = (".yaml", ".yml")


class UnrecognisedError(InputError):
    """A file that no format takes for its own."""


def check_format_name(name: str) -> None:
    """Raise InputError where there is no format of this name."""
    known = (AUTO, PLAN, *formats.format_names())
    if name not in known:
        text = f"unknown format {name!r}; allowed are {', '.join(known)}. "
        message = (text + did_you_mean(name, known)).strip()
        raise InputError.single("command line", "--framework", message)


def source_of(path: str) -> SourceText:
    """The file's text; a file that is there and has none is no format's."""
    try:
        return read_source(path)
    except InputError as error:
        raise UnrecognisedError(error.problems) if is_file(path) else error from None


def is_plan_file(source: SourceText, framework: str) -> bool:
    """Whether a file is a plan: the framework says so, or the file where that is auto."""
    return framework == PLAN or (framework == AUTO and is_plan(source))


def format_of(source: SourceText, name: str) -> Format:
    """The format of a file.

    Raises InputError where it is broken JSON or YAML, or of no format or several.
    """
    if name != AUTO:
        return formats.load_format(name)
    program = program_of(source).lower()
    found = [each for each in formats.recognised(source) if program in ("", each.name)]
    if not found:
        raise UnrecognisedError(_why_unknown(source))
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        message = f"could be of several formats: {names}; --framework says which"
        raise InputError.single(source.path, "file", message)
    return found[0]


def _why_unknown(source: SourceText) -> tuple[Problem, ...]:
    """What is wrong with a file of no format: broken JSON or YAML comes first."""
    if program := program_of(source):
        message = f"is a configuration of {program}, which is not covered"
        return InputError.single(source.path, "file", message).problems
    try:
        if source.text.lstrip().startswith("{"):
            parse_json(source.text, source.path)
        elif source.path.endswith(YAML_ENDS):
            compose(source.path, source.text)
    except InputError as error:
        return error.problems
    known = "; ".join(
        f"{name}: {formats.load_format(name).title}" for name in formats.format_names()
    )
    message = f"is of no known format; those are plan: a file written by --save; {known}"
    return InputError.single(source.path, "file", message.removesuffix("; ")).problems

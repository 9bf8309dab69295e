"""Configuration files as questions: their format, and what they state of a job."""

from dataclasses import replace

from planner.catalog.models import catalog_name, load_model
from planner.documents.file import is_file
from planner.documents.json_nodes import parse_json
from planner.documents.yaml_nodes import compose
from planner.errors import InputError, Problem
from planner.formats import registry as formats
from planner.formats.format import Format, OwnModel, Reading, SourceText, read_source
from planner.formats.registry import program_of

AUTO = "auto"  # the format that a file shows itself to be of
YAML_ENDS = (".yaml", ".yml")


class UnrecognisedError(InputError):
    """A file that no format takes for its own."""


def source_of(path: str) -> SourceText:
    """The file's text; a file that is there and has none is no format's."""
    try:
        return read_source(path)
    except InputError as error:
        raise UnrecognisedError(error.problems) if is_file(path) else error from None


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
            parse_json(source.path, source.text)
        elif source.path.endswith(YAML_ENDS):
            compose(source.path, source.text)
    except InputError as error:
        return error.problems
    known = "; ".join(
        f"{name}: {formats.load_format(name).title}" for name in formats.format_names()
    )
    message = f"is of no known format; those are plan: a file written by --save; {known}"
    return InputError.single(source.path, "file", message.removesuffix("; ")).problems


def with_model(reading: Reading) -> Reading:
    """The reading with the model of the catalog that the file names, if it names one."""
    place = reading.named_model
    if place is None or not isinstance(place.value, str):
        return reading
    name = catalog_name(place.value)
    if name is None:
        return reading
    return replace(reading, own_model=OwnModel(spec=load_model(name), places={"": place}))

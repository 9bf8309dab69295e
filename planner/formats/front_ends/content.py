"""What a file hands to a front end: keys with values and places, from YAML, JSON or a command."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from planner.documents.tree import Entry, Tree, parsed_object, parsed_yaml
from planner.errors import InputError
from planner.formats.format import Finding, Severity, SourceText, Value
from planner.formats.front_ends.named import source_named
from planner.formats.front_ends.tools import Tool
from planner.formats.settings import finding_at
from planner.formats.shell.launched import launcher_settings, processes
from planner.formats.shell.word import Word
from planner.formats.shell.words import Lines, line_numbers, read_script

FILES = (".yaml", ".yml", ".json")
VISIBLE, PER_NODE, NODES = "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES"
"""Variables that say how many processes a program's own launcher starts."""
ACCELERATE = "--config_file"


@dataclass(frozen=True, kw_only=True)
class Content:
    """The words of a front end."""

    values: Mapping[str, Any]
    """Of keys at the top."""
    places: Mapping[str, Value]
    """Every value by its path, joined by dots."""
    findings: tuple[Finding, ...] = ()
    num_gpus: Value | None = None
    accelerate: Value | None = None
    """The file of Accelerate's that the launcher names."""
    open_keys: Mapping[str, Value] = field(default_factory=dict)
    """Options whose values the shell decides."""
    is_command: bool = False


def is_json(source: SourceText) -> bool:
    """Whether a text is an object of JSON."""
    return source.text.lstrip().startswith("{")


def is_script(source: SourceText, tool: Tool) -> bool:
    """Whether a text may hold a command of the program."""
    lines = (line for line in source.text.splitlines() if not line.lstrip().startswith("#"))
    heads = [words[-1] for words in tool.commands]
    return any(head in line.split() or f"/{head}" in line for line in lines for head in heads)


def content_of(source: SourceText, tool: Tool) -> Content:
    """Read a file; InputError where it holds no such keys."""
    if is_json(source):
        return _of_json(source, tool)
    if not source.path.lower().endswith(FILES) and is_script(source, tool):
        return _of_command(source, tool)
    return _of_yaml(source, tool)


def _of_json(source: SourceText, tool: Tool) -> Content:
    tree = parsed_object(source.path, source.text)
    return _of_entries(source, tool, tree, tree.members)


def _of_yaml(source: SourceText, tool: Tool) -> Content:
    tree = parsed_yaml(source.path, source.text)
    if not isinstance(tree.value, dict):
        raise InputError.single(source.path, "line 1", "keys with values are needed")
    return _of_entries(source, tool, tree, tree.entries)


def _of_entries(
    source: SourceText, tool: Tool, tree: Tree, entries: Mapping[Any, Entry]
) -> Content:
    names = {".".join(map(str, path)): entry for path, entry in entries.items()}
    places = {
        name: Value(value=entry.value, key=name, line=entry.line) for name, entry in names.items()
    }
    twice = ((each.path, each.line) for each in tree.duplicates)
    return Content(values=tree.value, places=places, findings=tuple(_doubles(source, tool, twice)))


def _doubles(
    source: SourceText, tool: Tool, found: Iterator[tuple[Sequence[str | int], int]]
) -> Iterator[Finding]:
    for path, line in found:
        place = Value(value=None, key=".".join(map(str, path)), line=line)
        is_refused = tool.refuses_doubles and not is_json(source)
        message = (
            "given twice, which is refused" if is_refused else "given twice; the last one counts"
        )
        severity: Severity = "error" if is_refused else "warning"
        yield finding_at(f"{tool.name}.duplicate_key", source.path, place, message, severity)


def _of_command(source: SourceText, tool: Tool) -> Content:
    """The first command that starts training; a file that it names lies under its options."""
    lines = line_numbers(source.text)
    script = read_script(source)
    found = ((each, _start(each.words, tool)) for each in script.commands)
    command, start = next(((each, at) for each, at in found if at), (None, 0))
    if command is None:
        message = f"no command starts training with {tool.program}"
        raise InputError.single(source.path, "file", message)
    given, file = _options(command.words[start:], lines)
    under = _under(source, tool, file) if file else None
    values = {name: each.value for name, each in given.items() if each.value is not None}
    environment = {**script.environment, **command.environment}
    launcher = (*command.outer, *command.words[:start])
    return Content(
        values={**(under.values if under else {}), **values},
        places={**_hidden(under, given), **{name: given[name] for name in values}},
        findings=under.findings if under else (),
        num_gpus=_processes(launcher, environment, lines),
        accelerate=_after(launcher, ACCELERATE, lines),
        open_keys={name: each for name, each in given.items() if each.value is None},
        is_command=True,
    )


def _start(words: Sequence[Word], tool: Tool) -> int:
    """Where the options of training begin; 0: nowhere."""
    texts = [word.text for word in words]
    for wanted in tool.commands:
        for at in range(len(texts) - len(wanted) + 1):
            there = texts[at : at + len(wanted)]
            if all(_is_program(a, b) for a, b in zip(there, wanted, strict=True)):
                return at + len(wanted)
    return 0


def _is_program(text: str, wanted: str) -> bool:
    return text == wanted or text.endswith(f"/{wanted}")


def _options(words: Sequence[Word], lines: Lines) -> tuple[dict[str, Value], Value | None]:
    """Values by option, None of one that is not known, and the file that the words name."""
    found: dict[str, Value] = {}
    file: Value | None = None
    at = 0
    while at < len(words):
        word, line = words[at], lines.at(words[at].start)
        at += 1
        if not word.text.startswith("--"):
            if file is None and word.text.endswith(FILES):
                file = Value(value=word.text, key=word.text, line=line)
            continue
        option, sign, joined = word.text.partition("=")
        taken = [] if sign else _values(words, at)
        at += len(taken)
        is_known = not word.unknown and not any(each.unknown for each in taken)
        texts = [joined] if sign else [each.text for each in taken]
        name = option[2:].replace("-", "_")
        value = _typed(texts) if is_known else None
        found[name] = Value(value=value, key=option, line=line)
    named = found.pop("config", None)
    return found, file or named


def _values(words: Sequence[Word], at: int) -> list[Word]:
    end = at
    while end < len(words) and not words[end].text.startswith("--"):
        end += 1
    return list(words[at:end])


def _typed(texts: Sequence[str]) -> Any:  # noqa: ANN401 - what YAML makes of the words
    """A word as YAML has it, several as a list; an option without a value is true."""
    values = [_scalar(text) for text in texts]
    return True if not values else values[0] if len(values) == 1 else values


def _scalar(text: str) -> Any:  # noqa: ANN401
    if text.lstrip()[:1] in ("", "&", "*", "!", "|", ">", "'", '"', "%", "@", "`", "#"):
        return text
    try:
        value = parsed_yaml("word", text).value
    except InputError:
        return text
    return text if value is None else value


def _under(source: SourceText, tool: Tool, file: Value) -> Content:
    named = source_named(source.path, file)
    content = content_of(named, tool) if named.path != source.path else None
    if content is None or content.is_command:
        message = f"{file.value} is no YAML or JSON; a loop, or a file of another kind"
        raise InputError.single(source.path, f"line {file.line}", message)
    at = {name: replace(each, line=file.line) for name, each in content.places.items()}
    return replace(content, places=at)


def _hidden(under: Content | None, given: Mapping[str, Value]) -> dict[str, Value]:
    """What a file says, but for what options say again."""
    places = under.places if under else {}
    return {name: each for name, each in places.items() if name.partition(".")[0] not in given}


def _after(words: Sequence[Word], option: str, lines: Lines) -> Value | None:
    for left, right in pairwise(words):
        if left.text == option and not right.unknown:
            return Value(value=right.text, key=option, line=lines.at(left.start))
    return None


def _processes(
    launcher: Sequence[Word], environment: Mapping[str, Word], lines: Lines
) -> Value | None:
    """Those that torchrun or Slurm starts, or that the variables of the program's launcher say."""
    stated = processes(launcher_settings(launcher, lines))
    if stated is not None:
        return stated
    per_node, nodes = _count(environment, PER_NODE), _count(environment, NODES)
    word = environment.get(PER_NODE)
    if word is not None and per_node and (nodes or NODES not in environment):
        return Value(value=per_node * (nodes or 1), key=PER_NODE, line=lines.at(word.start))
    visible = environment.get(VISIBLE)
    if word is None and visible is not None and not visible.unknown:
        devices = [each for each in visible.text.split(",") if each.strip()]
        if len(devices) == 1:
            return Value(value=1, key=VISIBLE, line=lines.at(visible.start))
    return None


def _count(environment: Mapping[str, Word], name: str) -> int | None:
    text = environment[name].text if name in environment else ""
    return int(text) if text.isascii() and text.isdigit() and int(text[:6]) > 0 else None

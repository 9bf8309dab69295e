"""Contents of a file for Trainer: keys with values and places, from YAML, JSON or a command.

Files that it names stand beside it or where it is run from, never outside; none is fetched.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.documents.edit import JsonEditor, YamlEditor
from planner.documents.file import is_file
from planner.documents.tree import keys_at_top, parsed_json, parsed_object, parsed_yaml
from planner.errors import InputError
from planner.formats.format import Finding, Located, Severity, SourceText, read_source
from planner.formats.settings import Settings, as_whole, finding_at, repeated_keys
from planner.formats.shell.launch import grouped, launcher_settings, number_of, processes, strays
from planner.formats.shell.script import read_script
from planner.formats.shell.word import Lines, Word
from planner.formats.trainer.keys import FrontEnd, is_of

FILES = (".yaml", ".yml", ".json")
# Variables that say how many processes a program's own launcher starts.
VISIBLE, PER_NODE, NODES = "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES"


class OutsideError(InputError):
    """A file that lies outside, or may: where the job is started from is not known."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """The words of a program, or of TrainingArguments."""

    places: Settings  # every value by its path, joined by dots
    findings: tuple[Finding, ...] = ()
    num_gpus: Located | None = None
    accelerate: Located | None = None  # the file of Accelerate's that the launcher names
    open_keys: Settings = field(default_factory=dict)  # Whose values the shell decides
    is_command: bool = False

    @property
    def names(self) -> set[str]:
        """Keys at the top."""
        return {key.partition(".")[0] for key in self.places}


def is_json(source: SourceText) -> bool:
    """Return True if a text is a JSON object."""
    return source.text.lstrip().startswith("{")


def with_values(source: SourceText, values: Mapping[tuple[str, ...], Any]) -> str:
    """The text of JSON or YAML with values by their paths."""
    editor = JsonEditor if is_json(source) else YamlEditor
    return editor(source.path, source.text).changed(values)


def names_in(source: SourceText) -> set[str]:
    """Keys at the top of JSON or YAML; none where it cannot be read."""
    return keys_at_top(
        source.path,
        source.text,
        parsed_json if is_json(source) else parsed_yaml,
    )


def yaml_number(value: object) -> object:
    """The value; as a number what YAML 1.1 takes for text, ``1e-4``, as HfArgumentParser does."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}e[+-]?\d{1,3}", value):
        return float(value)
    return value


def is_script(source: SourceText, tool: FrontEnd) -> bool:
    """Return True if a text, by its name no YAML or JSON, may have a command of the program."""
    if is_json(source) or source.path.lower().endswith(FILES):
        return False
    if not tool.commands:
        options = re.findall(r"--([A-Za-z][\w-]+)", source.text)
        return is_of(tool, {option.replace("-", "_") for option in options})
    heads = "|".join(re.escape(words[-1]) for words in tool.commands)
    likely = rf"(?m)^(?![ \t]*#).*?(/({heads})|(?<!\S)({heads})(?!\S))"
    return re.search(likely, source.text) is not None


def content_of(source: SourceText, tool: FrontEnd) -> Content:
    """Read a file; InputError where it holds no such keys."""
    if is_script(source, tool):
        return _of_command(source, tool)
    if is_json(source):
        tree = parsed_object(source.path, source.text)
    else:
        tree = parsed_yaml(source.path, source.text)
        if not isinstance(tree.value, dict):
            raise InputError.single(source.path, "line 1", "keys with values are needed")
    places = {
        (key := ".".join(path)): Located(
            value=entry.value if is_json(source) else yaml_number(entry.value),
            key=key,
            line=entry.line,
        )
        for path, entry in tree.members.items()
    }
    severity: Severity = "error" if tool.refuses_doubles and not is_json(source) else "warning"
    refused, last = "given twice, which is refused", "the last one counts"
    says = refused if severity == "error" else f"given twice; {last}"
    if tool.is_own:
        severity, says = "error", f"given twice, first in line {{first}}; {last}"
    twice = repeated_keys(f"{tool.name}.duplicate_key", source.path, tree.duplicates, says)
    findings = [replace(each, severity=severity) for each in twice]
    if tool.is_own and is_json(source):
        try:
            json.loads(source.text)
        except json.JSONDecodeError as error:
            # HfArgumentParser reads no more.
            reason = f"no plain JSON, which parse_json_file reads: {error.msg}; no comments allowed"
            place = Located(key="", line=error.lineno)
            findings.append(finding_at("trainer.bad_value", source.path, place, reason))
    return Content(places=places, findings=tuple(findings))


def _of_command(source: SourceText, tool: FrontEnd) -> Content:
    """The first command that starts training; a file that it names lies under its options."""
    lines = Lines(source.text)
    script = read_script(source)
    for command in script.commands:
        start = start_of(command.words, tool)
        given, file = _options(command.words[start:], lines)
        deepspeed = given.get("deepspeed")
        # Without a value it is an argument of DeepSpeed's own, not of Trainer's.
        is_engines = deepspeed is not None and deepspeed.value is True
        if start and (tool.commands or (is_of(tool, given.keys()) and not is_engines)):
            break
    else:
        raise InputError.single(
            source.path, "file", f"no command starts training with {tool.program}"
        )
    under = _under(source, tool, file) if file and not tool.is_own else Content(places={})
    # What options say holds over what the file says.
    places = {
        name: place for name, place in under.places.items() if name.partition(".")[0] not in given
    }
    open_keys = {name: place for name, place in given.items() if place.value is None}
    places |= {name: place for name, place in given.items() if place.value is not None}
    launcher = (*command.launcher, *command.words[:start])
    own, _ = _options(launcher, lines, most=1)
    named = own.get("config_file")
    environment = {**script.environment, **command.environment}
    return Content(
        places=places,
        findings=under.findings,
        num_gpus=_processes(launcher, own, environment, lines),
        accelerate=named if named and named.value is not None else None,
        open_keys=open_keys,
        is_command=True,
    )


def start_of(words: Sequence[Word], tool: FrontEnd) -> int:
    """Return the index of the first option of training; 0: none."""
    texts = [f"/{word.text}" for word in words]
    if not tool.commands:
        # The script, or the module, that a launcher starts.
        for at, (before, text) in enumerate(pairwise(["", *texts])):
            is_module = before == "/-m" and not text.startswith("/torch.distributed.")
            if (text.endswith(".py") and "no_trainer" not in text) or is_module:
                return at + 1
        return 0
    for wanted in tool.commands:
        for end in range(len(wanted), len(texts) + 1):
            found = zip(texts[end - len(wanted) : end], wanted, strict=True)
            if all(text.endswith(f"/{word}") for text, word in found):
                return end
    return 0


def _options(
    words: Sequence[Word], lines: Lines, most: int | None = None
) -> tuple[dict[str, Located], Located | None]:
    """Values by option (of ``most`` words; None: up to the next), None of unknown, and the file."""
    found: dict[str, Located] = {}
    entries = grouped(words, lambda text: text.startswith("--"), lambda _: most)
    for each in entries:
        # A word as YAML has it, several as a list; an option without a value is true.
        values = [_scalar(text) for text in each.texts] or [True]
        value = values[0] if len(values) == 1 else values
        is_known = not (each.unknown or each.word.unknown)
        found[each.name[2:].replace("-", "_")] = Located(
            value=value if is_known else None, key=each.name, line=lines.at(each.word.start)
        )
    named = found.pop("config", None)
    for word in strays(words, entries):
        if word.text.endswith(FILES):
            return found, Located(value=word.text, key=word.text, line=lines.at(word.start))
    return found, named


def _scalar(text: str) -> Any:  # noqa: ANN401 - what YAML makes of it
    """Return what YAML makes of a word; words that only YAML treats specially stay as they are."""
    is_plain = text.lstrip()[:1] not in ("", *"&*!|>'\"%@`#")
    is_word = text.lower() in ("yes", "no", "on", "off")
    try:
        value = parsed_yaml("word", text).value if is_plain and not is_word else None
    except InputError:
        return text
    return text if value is None else yaml_number(value)


def _under(source: SourceText, tool: FrontEnd, file: Located) -> Content:
    named = source_named(source, file)
    content = content_of(named, tool) if named.path != source.path else None
    if content is None or content.is_command:
        message = f"{file.value} is no YAML or JSON; a loop, or a file of another kind"
        raise InputError.single(source.path, f"line {file.line}", message)
    places = {name: replace(each, line=file.line) for name, each in content.places.items()}
    return replace(content, places=places)


def _processes(
    launcher: Sequence[Word],
    own: Settings,
    environment: Mapping[str, Word],
    lines: Lines,
) -> Located | None:
    """Return the processes that a launcher's words state, or its variables give."""
    stated = processes(launcher_settings(launcher, lines))
    if stated is not None:
        return stated
    # Of accelerate and of deepspeed, whose number is that of each node.
    total, per_node = own.get("num_processes"), own.get("num_gpus")
    nodes = own.get("num_nodes", Located(value=1, key="num_nodes")).value
    if total and as_whole(total.value):
        return total
    if per_node and as_whole(per_node.value) and as_whole(nodes):
        return replace(per_node, value=per_node.value * nodes)
    counts = {name: number_of(word.text) or 0 for name, word in environment.items()}
    name, number = PER_NODE, counts.get(PER_NODE, 0) * counts.get(NODES, 1)
    visible = environment.get(VISIBLE)
    if visible and not visible.unknown and PER_NODE not in environment:
        devices = [each for each in visible.text.split(",") if each.strip()]
        name, number = VISIBLE, int(len(devices) == 1)
    place = environment.get(name)
    return Located(value=number, key=name, line=lines.at(place.start)) if place and number else None


def source_named(source: SourceText, name: Located) -> SourceText:
    """The file that a value names; InputError with its line where there is none.

    OutsideError where the name leads out of the folders that belong to the file.
    """
    path = source.path
    where, text = f"line {name.line}" if name.line else name.key, str(name.value)
    if len(text) > 1000 or "\0" in text or "\n" in text:
        raise InputError.single(path, where, "a name of a file is needed")
    folders, is_absolute = _folders_of(path), Path(text).is_absolute()
    found = next((folder / text for folder in folders if is_file(folder / text)), None)
    if found and not is_absolute and found.resolve().is_relative_to(folders[-1].resolve()):
        if found.resolve() == Path(path).resolve():
            raise InputError.single(path, where, f"{name.key} names the file itself")
        shown = _shown(found)
        changed = source.beside.get(shown)
        return read_source(shown) if changed is None else SourceText(path=shown, text=changed)
    if is_absolute or ".." in Path(text).parts:
        message = f"{name.key} names {text[:80]}, which lies outside {folders[-1].name or '/'}"
        raise OutsideError.single(path, where, f"{message} and is not read")
    looked = f"looked in {_shown(folders[0])}" + " and above" * (len(folders) > 1)
    message = f"{name.key} names {text[:80]}, which is not there; {looked}"
    # Of a file that lies alone the project's own folder is not known.
    kind = InputError if len(folders) > 1 else OutsideError
    raise kind.single(path, where, message)


def _folders_of(path: str) -> list[Path]:
    """Return folders for names in a file: its own and above, up to the project's or present."""
    own, here = Path(path).absolute().parent, Path.cwd()
    # From further above no program is started.
    above = [own, *own.parents][:6]
    marks = (".git", "pyproject.toml", "setup.py")
    for number, folder in enumerate(above, 1):
        if folder == here or any((folder / mark).exists() for mark in marks):
            return above[:number]
    return above[:1]


def _shown(path: Path) -> str:
    """Return the path from the present folder if it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)

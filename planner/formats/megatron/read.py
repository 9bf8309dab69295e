"""Reads launch scripts, args files and YAML files of Megatron-LM."""

from collections.abc import Callable

from planner.errors import InputError
from planner.formats.format import Reading, SourceText, Value
from planner.formats.megatron.arguments import find_arguments, is_args_file, num_known
from planner.formats.megatron.entries import FORMAT, Entries, entries_of, settings_of
from planner.formats.megatron.interpret import decisions_of, left_open
from planner.formats.megatron.options import load_options
from planner.formats.megatron.unknown import unknown_findings
from planner.formats.megatron.yaml_config import is_yaml_config, read_yaml
from planner.formats.shell.edit import Arguments
from planner.formats.shell.launched import launcher_settings, processes
from planner.formats.shell.torchrun import torchrun_findings
from planner.formats.shell.words import branch_places, line_numbers

SCRIPT = "script"
"""Key of the training script among the settings of a launch script."""
ENOUGH = 2
"""Options that make a file one of Megatron."""
LEAST_SHARE = 0.25
"""Of its options that are Megatron's; scripts of other trainers have names such as --seed too."""


def recognise(source: SourceText) -> bool:
    """Whether a file is a script or args file that runs Megatron, or its YAML."""
    text = source.text
    if is_yaml_config(text):
        return True
    if "--" not in text or "\x00" in text:
        return False
    try:
        words = [word.text for word in find_arguments(source).words]
    except InputError:
        words = text.split() if ".py" in text or is_args_file(text) else []
    num_options = sum(word.startswith("--") for word in words)
    return num_known(words) >= max(ENOUGH, LEAST_SHARE * num_options)


def entries_in(source: SourceText) -> tuple[Arguments, Entries]:
    """The file's options; raises InputError."""
    arguments = find_arguments(source)
    lines = line_numbers(source.text)
    return arguments, entries_of(arguments.words, lines.at)


def read(source: SourceText) -> Reading:
    """Understand a file; raises InputError where it runs no training script."""
    if not is_args_file(source.text) and is_yaml_config(source.text):
        settings, findings = read_yaml(source)
        num_gpus = None
    else:
        lines = line_numbers(source.text)
        arguments, entries = entries_in(source)
        settings, findings = settings_of(entries, source.path, branch_places(source.text))
        known = load_options()
        foreign = [e for e in entries.options if e.name not in known and not e.word.unknown]
        script = arguments.program.text if arguments.program else ""
        findings += unknown_findings(source.path, foreign, script)
        launched = launcher_settings(arguments.launcher, lines)
        num_gpus = processes(launched)
        findings += torchrun_findings(arguments.launcher, lines, source.path, FORMAT)
        settings |= launched | _environment(arguments, lines.at)
    return Reading(
        format=FORMAT,
        path=source.path,
        settings=settings,
        decisions=decisions_of(settings, num_gpus),
        findings=tuple(findings),
        left_open=left_open(settings),
    )


def _environment(arguments: Arguments, line_at: Callable[[int], int]) -> dict[str, Value]:
    """Variables of a launch script by their own names, and the training script."""
    values = {name: word for name, word in arguments.environment.items() if not word.unknown}
    found = {
        name: Value(value=word.text, key=name, line=line_at(word.start))
        for name, word in values.items()
    }
    script = arguments.program
    if script is None:
        return found
    return found | {SCRIPT: Value(value=script.text, key=SCRIPT, line=line_at(script.start))}

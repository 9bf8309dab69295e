"""Reads launch scripts, args files and YAML files of Megatron-LM."""

from collections.abc import Callable, Sequence
from itertools import groupby

from planner.errors import InputError
from planner.formats.format import Reading, SourceText, Value
from planner.formats.megatron.arguments import find_arguments, grouped, is_args_file, num_known
from planner.formats.megatron.decisions import OWNED, decisions_of, left_open
from planner.formats.megatron.described import described
from planner.formats.megatron.options import is_own_script, load_options, typed
from planner.formats.megatron.unknown import made_for, report_unknown
from planner.formats.megatron.yaml_config import is_yaml_config, read_yaml
from planner.formats.settings import word
from planner.formats.shell.edit import Arguments, Entry, Launch, among
from planner.formats.shell.launched import open_processes, processes
from planner.formats.shell.reading import WordsReader
from planner.formats.shell.syntax import branch_places
from planner.formats.shell.words import line_numbers

FORMAT = "megatron"
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
        words = [word.text for word in find_arguments(source)[0].words]
    except InputError:
        words = text.split() if ".py" in text or is_args_file(text) else []
    num_options = sum(word.startswith("--") for word in words)
    return num_known(words) >= max(ENOUGH, LEAST_SHARE * num_options)


def options_in(source: SourceText) -> Launch:
    """What a file hands to Megatron, and its options; raises InputError."""
    (chosen, found), lines = find_arguments(source), line_numbers(source.text)

    def launch(each: Arguments) -> Launch:
        return each, grouped(each.words, lines.at)[0]

    return among(launch(chosen), map(launch, found), OWNED, lines)


def read(source: SourceText) -> Reading:
    """Understand a file; raises InputError where it runs no training script."""
    reader, num_gpus = WordsReader(format=FORMAT, path=source.path), None
    if not is_args_file(source.text) and is_yaml_config(source.text):
        reader.settings, reader.findings = read_yaml(source)
    else:
        lines = line_numbers(source.text)
        arguments, _ = find_arguments(source)
        options, strays = grouped(arguments.words, lines.at)
        _take(reader, options, strays, branch_places(source.text))
        script = arguments.program.text if arguments.program else ""
        foreign = [each for each in options if not _is_known(each)]
        report_unknown(reader, foreign, script)
        if fork := made_for(foreign):
            return _of_fork(reader, fork)
        launched = reader.take_launcher(arguments, lines)
        num_gpus = processes(launched)
        reader.settings |= launched | _environment(arguments, lines.at)
    run_by = word(reader.settings, SCRIPT, "")
    is_own = is_own_script(run_by)
    return Reading(
        format=FORMAT,
        path=source.path,
        settings=reader.settings,
        decisions=decisions_of(reader.settings, num_gpus),
        findings=tuple(reader.findings),
        left_open=left_open(reader.settings) | open_processes(reader.settings),
        run_by="" if is_own else run_by.rpartition("/")[2],
        own_model=described(reader.settings) if is_own else None,
    )


def _of_fork(reader: WordsReader, program: str) -> Reading:
    """A file for another Megatron, of which nothing is said but that."""
    said = tuple(one for one in reader.findings if one.kind == "made_for")
    return Reading(
        format=FORMAT, path=reader.path, settings={}, decisions={}, findings=said, made_for=program
    )


def _is_known(entry: Entry) -> bool:
    """Whether it is an option of Megatron, or nobody knows."""
    return entry.name in load_options() or bool(entry.word.unknown)


def _take(
    reader: WordsReader, options: Sequence[Entry], strays: Sequence[Entry], branches: Sequence[int]
) -> None:
    """Settings of the options, and what is wrong with them and with words of none."""
    known = load_options()
    own = [each for each in options if each.name in known]
    reader.take(own, lambda each: typed(known[each.name], each.texts), branches)
    words = (each for each in strays if not each.word.unknown)
    for _, found in groupby(words, key=lambda each: each.line):
        first, *more = found
        shown = " ".join(each.name for each in (first, *more))[:80]
        text = f"words that belong to no option: {shown}" if more else ""
        reader.report(first, "unknown_key", text or "a word that belongs to no option")
    hidden = [each for each in (*options, *strays) if each.word.unknown and each.name not in known]
    reader.note_open([each for each in own if each.unknown and each.name in OWNED] + hidden)


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

"""The format ``megatron``: Megatron-LM's argument list and launch scripts.

Writes a plan as ``megatron.args``, one option per line, or into a script or args file; reads these.

``elsewhere.csv`` lists options that 0.19.2 does not have: those of other releases (core 0.4 to the
main branch of August 2026, megatron/training/arguments.py and megatron/post_training/arguments.py)
and of Megatron-DeepSpeed, DeepSpeed's and BigScience's, each with what says the same in 0.19.2
where something does; those of ModelOpt, which Megatron-LM's scripts take where it is installed; and
what no other program has of the options that MindSpeed with MindSpeed-LLM (features_manager/ of
both) and Swiss AI (megatron/training/arguments.py of swiss-ai/Megatron-LM) add.
"""

import csv
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import groupby

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.documents.tree import load_own
from planner.errors import InputError, alike, did_you_mean
from planner.formats.decision import explained, lines_of, reasons, refuse
from planner.formats.format import (
    Emitted,
    Format,
    Located,
    OutputFile,
    ParsedConfig,
    SourceText,
    first_line,
    listed,
)
from planner.formats.megatron.mapping import (
    FILE,
    OWNED,
    SCHEDULE,
    TABLE,
    decisions_of,
    edits,
    left_open,
    problems,
    with_layers,
)
from planner.formats.megatron.model import FULL_NORMS, described
from planner.formats.megatron.options import (
    HIDDEN,
    MICRO,
    PATTERN,
    VERSION,
    Option,
    SettingValue,
    is_option,
    is_own_script,
    load_options,
    of_pattern,
    options_by_dest,
    typed,
    words_of,
)
from planner.formats.megatron.rules import rule
from planner.formats.megatron.states import environment, traits_of
from planner.formats.settings import Settings, as_whole, which
from planner.formats.shell.edit import edited
from planner.formats.shell.launch import (
    Entry,
    Launches,
    WordsReader,
    grouped,
    launches_in,
    open_processes,
    processes,
    strays,
    variables,
)
from planner.formats.shell.word import Command, Word, branch_places, split_words
from planner.frameworks.registry import CURRENT
from planner.spec.strategy import Strategy
from planner.units import ceil_div

NAME = "megatron"
TITLE = "Megatron-LM"


def emit(context: Context, strategy: Strategy) -> Emitted:
    """The args file of a plan; raises ExpressError with every reason."""
    refuse(TITLE, reasons(FILE, context, strategy))
    lines = lines_of(FILE, context, strategy)
    text = "".join(f"{shlex.join(words_of(line.key, line.value))}\n" for line in lines)
    said = {line.key: line.value for line in lines}
    script = "pretrain_hybrid.py" if PATTERN in said else "pretrain_gpt.py"
    if said.get("--spec") == FULL_NORMS:
        script += ", where Megatron-Bridge can be imported too: its layers are built"
    variables = {
        "TRAIN_SCRIPT": f"Megatron-LM's training script, such as {script}",
        "DATA_PATH": "prefix of the indexed data set",
        "TOKENIZER_MODEL": "Hugging Face tokenizer: a folder or a name",
        "LEARNING_RATE": "peak learning rate",
    }
    tokens = context.job.total_tokens
    if tokens:
        iterations = str(ceil_div(tokens, context.job.tokens_per_iteration))
    else:
        iterations, variables["TRAIN_ITERS"] = "${TRAIN_ITERS}", "iterations to train"
    run = (
        f"--train-iters {iterations} --lr ${{LEARNING_RATE}} --data-path ${{DATA_PATH}} "
        "--tokenizer-type HuggingFaceTokenizer --tokenizer-model ${TOKENIZER_MODEL}"
    )
    mock = "--train-iters 10 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer"
    model = context.model
    is_rotary_open = model.position == "rope" and not model.rotary_base
    if is_rotary_open:
        # Megatron would take 10000 without a word.
        run += " --rotary-base ${ROTARY_BASE}"
        variables["ROTARY_BASE"] = "base of rotary positions, rope_theta of its config.json"
    # What of the model only the user knows, and the options that say it.
    is_open = {
        "weights": True,
        "norms": not model.norm_eps,
        "rotary": is_rotary_open,
        "experts": model.moe,
        "further tokens": context.job.mtp_layers,
        "no further tokens": model.num_mtp_layers and not context.job.mtp_layers,
    }
    left_open = dict[str, str]()
    for part in which(is_open):
        left_open |= load_own("planner.formats", "left_open.yaml")["megatron.model"][part]
    return Emitted(
        files=(OutputFile(name="megatron.args", text=text),),
        command=("${TRAIN_SCRIPT}",),
        arguments="megatron.args",
        run=tuple(run.split()),
        mock=tuple(mock.split()),
        environment=environment(context, strategy),
        variables=variables,
        decided=explained(lines, lambda value: " ".join(words_of("", value)[1:]) or "on"),
        left_open=left_open,
    )


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """A script or args file with the decisions that change; raises ExpressError, InputError."""
    refuse(TITLE, reasons(TABLE, context, strategy))
    settings = read(source).settings
    found = edits(TABLE, settings, lines_of(TABLE, context, strategy))
    if MICRO not in settings:
        found[MICRO] = strategy.micro_batch  # Megatron has no default for it
    wanted = {key: [] if value is REMOVED else words_of(key, value) for key, value in found.items()}
    return edited(source, options_in, wanted, strategy.num_gpus, OWNED)


# Key of the training script among the settings of a launch script.
SCRIPT = "script"
RELEASE, ADDED = "release", "ModelOpt"
# What adds to Megatron-LM, whose options hold beside its own, and the profile of its figures.
ADDING = {"MindSpeed": "mindspeed", "Swiss AI's Megatron-LM": CURRENT}


def recognise(source: SourceText) -> bool:
    """Return True if a file is a script or args file that runs Megatron."""
    text = source.text
    if "--" not in text or "\x00" in text:
        return False
    try:
        (command, _), _ = options_in(source)
        words = [word.text for word in command.words]
    except InputError:
        words = text.split() if ".py" in text or first_line(text).startswith("--") else []
    num_options = sum(word.startswith("--") for word in words)
    # Scripts of other trainers have a few such names too, as --seed.
    return _num_known(words) >= max(2, 0.25 * num_options)


def options_in(source: SourceText) -> Launches:
    """Return the launches of Megatron in a file, with their options; raises InputError."""
    return launches_in(
        source,
        _starts,
        _options,
        lambda launch: _num_known(entry.name for entry in launch[1]),
        is_list=first_line(source.text).startswith("--"),
        lacking="no command runs a training script with Megatron options",
    )


def _num_known(words: Iterable[str]) -> int:
    return sum(word.partition("=")[0] in load_options() for word in words)


def _starts(commands: Iterable[Command]) -> Iterator[Command]:
    ends = (".py", "}/pretrain_gpt", "TRAIN_SCRIPT}")
    for command in commands:
        for at, each in enumerate(command.words):
            if each.text.endswith(ends) and len(split_words(each)) == 1:
                found = command.behind(at)
                if _num_known(behind.text for behind in found.words):
                    yield found
                break


def _options(words: Sequence[Word]) -> list[Entry]:
    def most(name: str) -> int | None:
        option = load_options().get(name)
        if option is None or option.nargs:
            return None
        return int(option.takes_values)

    return grouped(words, is_option, most)


def read(source: SourceText) -> ParsedConfig:
    """Understand a file; raises InputError where it runs no training script."""
    reader = WordsReader(format=NAME, source=source)
    lines = reader.lines
    (arguments, options), _ = options_in(source)
    strange = [Entry(word=word, name=word.text) for word in strays(arguments.words, options)]
    known = load_options()
    own = [each for each in options if each.name in known]
    branches = () if arguments.is_list else branch_places(source.text)
    reader.take(
        own,
        lambda each: typed(known[each.name], each.texts),
        branches,
    )
    known_words = (each for each in strange if not each.word.unknown)
    for _, found in groupby(known_words, key=lambda each: lines.at(each.word.start)):
        first, *more = found
        shown = " ".join(each.name for each in (first, *more))[:80]
        many = f"words that belong to no option: {shown}"
        reader.report(first, "unknown_key", many if more else "a word that belongs to no option")
    others = [each for each in (*options, *strange) if each.name not in known]
    hidden = [each for each in others if each.word.unknown]
    reader.note_open([each for each in own if each.unknown and each.name in OWNED] + hidden)
    if hidden:
        reader.settings[HIDDEN] = reader.placed(hidden[0])
    script = arguments.program.text if arguments.program else ""
    foreign = [each for each in options if each.name not in known and not each.word.unknown]
    fork = _report_unknown(reader, foreign, script)
    if fork and fork not in ADDING:
        # Of a file for another Megatron nothing is said but that.
        return ParsedConfig(
            format=NAME,
            path=source.path,
            settings={},
            decisions={},
            findings=tuple(one for one in reader.findings if one.kind == "made_for"),
            made_for=fork,
        )
    reader.settings |= of_pattern(reader.settings)
    launched = reader.take_launcher(arguments)
    # Variables of a launch script by their own names, and the training script.
    reader.settings |= launched | variables(arguments.environment, lines)
    if arguments.program is not None:
        reader.settings[SCRIPT] = reader.placed(Entry(name=SCRIPT, word=arguments.program), script)
    is_own = is_own_script(script) and ADDING.get(fork, CURRENT) == CURRENT
    decisions = decisions_of(reader.settings, processes(launched))
    if fork and ADDING[fork] != CURRENT:
        decisions["profile"] = Located(value=ADDING[fork], key=SCRIPT)
    return ParsedConfig(
        format=NAME,
        path=source.path,
        settings=reader.settings,
        decisions=decisions,
        findings=tuple(reader.findings),
        left_open=left_open(reader.settings) | open_processes(reader.settings),
        run_by=fork or ("" if is_own else script.rpartition("/")[2]),
        own_model=described(reader.settings) if is_own else None,
        traits=tuple(traits_of(reader.settings)),
    )


@cache
def _elsewhere() -> dict[str, tuple[str, str]]:
    """Whose an option is, and what stands for it in this release, by option."""
    path = resources.files(__package__).joinpath("elsewhere.csv")
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {row["option"]: (row["of"], row["instead"]) for row in rows}


def _report_unknown(reader: WordsReader, entries: Sequence[Entry], script: str) -> str:
    """Report unknown options: an error in Megatron-LM's own script, else one note for all.

    Return the Megatron whose options a file has where this release has none such; empty: this one.
    """
    elsewhere, known = _elsewhere(), load_options()
    first: dict[str, Entry] = {}
    for entry in entries:
        if elsewhere.get(entry.name, ("", ""))[0] != ADDED:
            first.setdefault(entry.name, entry)
    others = list(first.values())
    shown = listed([name[:60] for name in first])
    there = [name for name in first if name in elsewhere]
    if there:
        forks = {elsewhere[name][0] for name in there} - {RELEASE}
        adding = [each for each in ADDING if each in forks]
        fork = min(adding or forks, default=f"another release of Megatron-LM than {VERSION}")
        instead = [f"{name} is {elsewhere[name][1]} today" for name in there if elsewhere[name][1]]
        hint = f" ({listed(instead)})" if instead else ""
        message = f"is for {fork}: {shown}{hint}; not judged by the rules of {VERSION}"
        if adding:
            message = f"is for {fork}, read as Megatron-LM's; not looked into: {shown}"
        reader.report(first[there[0]], "made_for", message, "note")
        return fork
    if others and not is_own_script(script):
        name = script.rpartition("/")[2][-60:]
        message = f"{shown}: not in Megatron-LM {VERSION}; {name} may add them"
        reader.report(others[0], "unknown_key", message, "note")
        return ""
    # Names are compared with all options: of a file full of strange ones, the first 100.
    near = [entry for entry in others[:100] if alike(entry.name, known, 0.9)]
    far = [entry for entry in others if entry not in near]
    if len(far) > 5:
        # More than a few are one finding.
        names = listed([entry.name[:60] for entry in far])
        message = f"{len(far)} options that Megatron-LM {VERSION} does not have: {names}"
        reader.report(far[0], "unknown_key", message)
        far = []
    for entry in (*near, *far):
        hint = did_you_mean(entry.name[:100], known)
        message = f"unknown option{f'; {hint}' if hint else f' of Megatron-LM {VERSION}'}"
        reader.report(entry, "unknown_key", message)
    return ""


def read_dumped(path: str, given: Settings) -> tuple[ParsedConfig, str] | None:
    """The reading of a dump, and whose framework ran it; None where it is of an older form."""
    degrees = {"tensor_model_parallel_size", "pipeline_model_parallel_size", "world_size"}
    if not given.keys() >= degrees | {"num_layers"}:
        return None
    words = {name: each for name, each in given.items() if each.value not in ("None", "")}
    if _is_on(words, "checkpoint_activations"):
        meant = {"granularity": "full", "method": "uniform", "num_layers": "1"}
        place = words["checkpoint_activations"]
        words |= {f"recompute_{name}": replace(place, value=text) for name, text in meant.items()}
    settings = settings_of(words)
    if "--group-query-attention" not in settings:
        # Groups are printed where nothing is grouped, too.
        settings.pop("--num-query-groups", None)
    decisions = decisions_of(settings, _whole(words["world_size"]))
    is_fork = _is_on(words, "deepspeed")
    if is_fork:
        stage = words.get("zero_stage")
        decisions |= {"zero_stage": _whole(stage)} if stage else {}
        shards_more = stage is not None and as_whole(stage.value) in (2, 3)
        profile = "megatron" if _is_on(words, "fp16") or shards_more else "megatron-bf16"
        decisions["profile"] = replace(words["deepspeed"], value=profile)
    elif "transformer_impl" not in words:
        # Releases before Transformer Engine.
        decisions["profile"] = replace(words["world_size"], value="classic")
    reading = ParsedConfig(
        format=NAME,
        path=path,
        settings=settings,
        decisions=decisions,
        findings=(),
        own_model=described(settings),
        traits=tuple(traits_of(settings)),
    )
    return reading, "deepspeed" if is_fork else NAME


def settings_of(
    words: Settings, wrong: Callable[[Located, str], object] = lambda *_: None
) -> dict[str, Located]:
    """Return values by option, of attributes that this release knows and whose texts are valid.

    ``wrong`` is told the others' places, and what is wrong there.
    """
    found = {}
    for name, each in words.items():
        if option := options_by_dest().get(name):
            try:
                if (value := _value(option, each)) is not None:
                    found[option.name] = replace(each, value=value)
            except ValueError as error:
                wrong(each, str(error))
    return found | of_pattern(found)


def _is_on(words: Settings, name: str) -> bool:
    return name in words and words[name].value == "True"


def _whole(place: Located) -> Located:
    number = as_whole(place.value)
    return place if number is None else replace(place, value=number)


def _value(option: Option, place: Located) -> SettingValue | None:
    """The value of an option; None where the attribute changes nothing; raises ValueError."""
    text = str(place.value)
    if not option.takes_values:
        return True if (text == "True") == (option.kind != "off") else None
    found = re.fullmatch(r"[\[(](.*)[\])]", text)
    words = [each.strip(" '\"") for each in found[1].split(",")] if found else text.split()
    return typed(option, words if option.nargs else [text])


RULES = tuple(rule)
FORMAT = Format(
    name=NAME,
    title=TITLE,
    framework="megatron",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    problems=problems,
    of_model=lambda reading, model: with_layers(reading, reading.settings, model),
    support={"megatron": {"schedules": (SCHEDULE,)}},
)

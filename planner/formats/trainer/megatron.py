"""The format ``megatron-swift``: Megatron-LM's arguments as Megatron-SWIFT spells them.

They are its attributes by name, with ``true`` and ``false`` in place of flags; what is called
otherwise, or has another default, stands in ``megatron-swift.yaml``.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.formats.bridge.format import told_in
from planner.formats.decision import reasons, refuse
from planner.formats.format import Format, FormatRule, Located, ParsedConfig, SourceText
from planner.formats.megatron.format import settings_of
from planner.formats.megatron.mapping import (
    OWNED,
    TABLE,
    decisions_of,
    edits,
    left_open,
    lines_by_option,
    problems,
    with_layers,
)
from planner.formats.megatron.options import ETP, load_options, options_by_dest, words_of
from planner.formats.megatron.states import traits_of
from planner.formats.settings import Settings, finding_at, given
from planner.formats.shell.edit import edited
from planner.formats.shell.launch import Entry, Launches, grouped, launches_in
from planner.formats.shell.word import Command, Word
from planner.formats.trainer.content import content_of, is_script, start_of, with_values
from planner.formats.trainer.format import not_written, recognise
from planner.formats.trainer.keys import load_tool
from planner.formats.trainer.read import read_content
from planner.formats.trainer.rules import stated_rules
from planner.spec.strategy import Strategy

NAME = "megatron-swift"
TOOL = load_tool(NAME)


def spelled(text: str) -> str:
    """A text about Megatron-LM's options in the program's names."""
    names = {attribute: name for name, attribute in TOOL.arguments.items()}

    def own(found: re.Match[str]) -> str:
        option = load_options().get(found[0])
        attribute = option.dest if option else found[0][2:].replace("-", "_")
        return names.get(attribute, attribute)

    return re.sub(r"--[a-z0-9-]+(?![\w-])", own, text)


def read(source: SourceText) -> ParsedConfig:
    """Understand a file; InputError where it holds no keys."""
    content = content_of(source, TOOL)
    reading = read_content(source, content, TOOL)
    findings, own = [*reading.findings], dict(reading.settings)
    if given(own, "optimizer") == "muon":
        # _check_muon: only dist_muon shares it out.
        own["use_distributed_optimizer"] = replace(own["optimizer"], value=False)
    said = {name: each for name, each in own.items() if each.value not in (None, "")}

    def wrong(place: Located, message: str) -> None:
        findings.append(finding_at(f"{NAME}.bad_value", source.path, place, message))

    options = settings_of(said, wrong)
    for name, place in content.open_keys.items():
        if option := options_by_dest().get(TOOL.arguments.get(name, name)):
            options[option.name] = place
    taken = {name: each for name, each in reading.decisions.items() if name == "seq_len"}
    if reading.training and reading.training.is_frozen:
        taken["profile"] = Located(value="bridge", key=TOOL.training["key"])
    model = reading.named_model
    if model:
        # Weights in Megatron's form have the name of the model they were made of.
        model = replace(model, value=str(model.value).removesuffix("-mcore"))
    return replace(
        reading,
        settings=own | options,
        decisions=decisions_of(options, reading.decisions.get("num_gpus")) | taken,
        findings=tuple(findings),
        left_open=left_open(options),
        traits=tuple(traits_of(options)),
        assumes=(),
        named_model=model,
    )


def options_in(settings: Settings) -> dict[str, Located]:
    """The settings of a file by Megatron-LM's options."""
    return {key: each for key, each in settings.items() if key.startswith("--")}


def launches(source: SourceText) -> Launches:
    """The commands of a script that start the program, with their arguments."""

    def starts(commands: Iterable[Command]) -> Iterator[Command]:
        for command in commands:
            if start := start_of(command.words, TOOL):
                yield command.behind(start - 1)

    def arguments(words: Sequence[Word]) -> list[Entry]:
        return grouped(words, lambda text: text.startswith("--"), lambda _: None)

    return launches_in(
        source,
        starts,
        arguments,
        lambda each: len(each[1]),
        is_list=False,
    )


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the decisions that change; raises ExpressError, InputError."""
    refuse(TOOL.program, reasons(TABLE, context, strategy))
    lines = lines_by_option(TABLE, context, strategy)
    found = edits(TABLE, options_in(read(source).settings), lines.values())
    known = {*TOOL.keys.split()}
    # It stops at the CUDA_DEVICE_MAX_CONNECTIONS that the program itself sets.
    known.remove("use_megatron_fsdp")
    # Left out they would be the program's defaults; of experts that is nothing without any.
    instead = {
        "--recompute-granularity": "none",
        "--use-distributed-optimizer": False,
        ETP: strategy.etp,
    }
    # What it has no argument for is not written, and missed where the text is read again.
    values: dict[str, Any] = {
        spelled(option): instead.get(option, REMOVED) if value is REMOVED else value
        for option, value in found.items()
        if spelled(option) in known and (context.model.moe or option != ETP)
    }
    if is_script(source, TOOL):
        texts = {False: "false", True: "true"}
        wanted = {
            (option := f"--{name}"): []
            if value is REMOVED
            else words_of(option, texts[value] if type(value) is bool else value)
            for name, value in values.items()
        }
        owned = {f"--{spelled(option)}" for option in OWNED}
        return edited(source, launches, wanted, strategy.num_gpus, owned)
    lists = {name: [*value] for name, value in values.items() if type(value) is tuple}
    return with_values(source, {(name,): value for name, value in (values | lists).items()})


def _held() -> Iterator[FormatRule]:
    """Rules of Megatron-Core, and of Megatron-LM's arguments.py those that the program keeps."""
    # Its optimizer goes to the host without these states, its samples are padded for cp.
    others = ("optimizer_offload_setup", "cp_divides_sequence")
    return (rule for rule in told_in(options_in, spelled) if rule.name not in others)


FORMAT = Format(
    name=NAME,
    title=TOOL.title,
    framework="megatron",
    versions=TOOL.versions,
    emit=partial(not_written, TOOL.program, "megatron writes Megatron-LM's own"),
    recognise=partial(recognise, tool=TOOL),
    read=read,
    rules=tuple(stated_rules(TOOL)),
    borrowed={"megatron": tuple(_held())},
    is_written=False,
    write_into=write_into,
    problems=problems,
    of_model=lambda reading, model: with_layers(reading, options_in(reading.settings), model),
    trains=("full", "lora"),
)

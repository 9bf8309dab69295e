"""The format ``torchtitan``: command-line words of release 0.3; older TOML files are read."""

import shlex
from collections.abc import Iterator

from planner.cost.context import Context
from planner.documents.file import REMOVED
from planner.errors import ExpressError
from planner.formats.decision import KeyValue, changes, lines_of, reasons, refuse
from planner.formats.format import Emitted, ExplainedKey, Format, OutputFile, SourceText
from planner.formats.shell.edit import edited
from planner.formats.torchtitan.keys import NAME, POLICY, SELECTORS, filled, policies, words_of
from planner.formats.torchtitan.mapping import DECIDING, TABLE, unlike_modules, unlike_software
from planner.formats.torchtitan.model import Chosen, chosen_config, unlike_configs
from planner.formats.torchtitan.old import OLD, is_old
from planner.formats.torchtitan.read import (
    PROCESSES,
    SCRIPT_VARIABLES,
    entries_in,
    misplaced,
    read,
    recognise,
    refuse_processes,
)
from planner.formats.torchtitan.rules import RULES
from planner.spec.strategy import Strategy

# As torchtitan's run_train.sh sets it.
ENVIRONMENT = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
VARIABLES = {
    "HF_ASSETS_PATH": "folder with the tokenizer's files, as scripts/download_hf_assets.py of "
    "torchtitan makes it",
    "DATASET": "a data set that torchtitan knows, such as c4",
    "STEPS": "optimizer steps to run",
}


def emit(context: Context, strategy: Strategy) -> Emitted:
    """Return a plan as words; raises ExpressError with every reason where it is impossible."""
    chosen = chosen_config(context)
    found = reasons(TABLE, context, strategy)
    refuse(NAME, found if chosen else [*found, *unlike_configs(context)])
    assert chosen is not None
    lines = [*_head(chosen), *lines_of(TABLE, context, strategy)]
    text = "".join(f"{_text_of(line)}\n" for line in lines)
    files = [OutputFile(name="torchtitan.args", text=text)]
    if chosen.text:
        files.append(OutputFile(name=f"{chosen.module}.py", text=chosen.text))
    words = [words_of(line.key, line.value) for line in lines]
    return Emitted(
        files=tuple(files),
        command=("-m", "torchtitan.train", *(word for own in words for word in own)),
        environment=ENVIRONMENT,
        variables={**VARIABLES, **chosen.variables},
        decided=tuple(
            ExplainedKey(key=own[0], value=" ".join(own[1:]) or "set", why=line.why)
            for line, own in zip(lines, words, strict=True)
            if line.why
        ),
        left_open=chosen.left_open,
    )


def problems(context: Context) -> Iterator[str]:
    """What no words can say whatever the layout: profile, optimizer, modules, the model."""
    yield from unlike_software(context)
    if chosen_config(context) is None:
        yield from unlike_configs(context)
    yield from unlike_modules(context)


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """Return the file with the strategy's decisions where it decides otherwise.

    Raises ExpressError where the strategy cannot be expressed or no edit is safe, InputError where
    the file cannot be read.
    """
    refuse(NAME, reasons(TABLE, context, strategy))
    if is_old(source.text):
        raise ExpressError(f"{source.path} {OLD}")
    refuse_processes(source, strategy.num_gpus)
    settings, ((_, entries), _) = filled(read(source).settings), entries_in(source)
    lines = {each.key: each for each in lines_of(TABLE, context, strategy)}
    others = [
        KeyValue(key=key, value=each.value, is_assumed=True)
        for key, each in settings.items()
        if key not in DECIDING or key in SELECTORS
    ]
    found = changes(TABLE, settings, [*lines.values(), *others])
    if POLICY in found:
        own = policies()[found[POLICY]]
        every = {name for names in policies().values() for name in names}
        found |= dict.fromkeys(every - set(own), REMOVED)
    found |= {
        each.name: lines[each.name].value for each in misplaced(entries) if each.name in lines
    }
    there = {each.name for each in entries}
    wanted = {
        key: () if value is REMOVED else words_of(key, value)
        for key, value in sorted(found.items(), key=lambda change: change[0] == POLICY)
        if value is not REMOVED or key in there
    }
    deciding = DECIDING | SCRIPT_VARIABLES.keys() | {PROCESSES}
    return edited(source, entries_in, wanted, strategy.num_gpus, deciding, last=POLICY)


def _text_of(line: KeyValue) -> str:
    """The words of a line as a file holds them; variables stay open."""
    words = words_of(line.key, line.value)
    return " ".join(word if word.startswith("${") else shlex.quote(word) for word in words)


def _head(chosen: Chosen) -> tuple[KeyValue, ...]:
    where = "its own" if not chosen.text else "written for this plan, found in the working folder"
    return (
        KeyValue(key="module", value=chosen.module),
        KeyValue(key="config", value=chosen.config, why=f"config with the model's sizes, {where}"),
        KeyValue(key="hf_assets_path", value="${HF_ASSETS_PATH}"),
        KeyValue(key="dataloader.dataset", value="${DATASET}"),
        KeyValue(key="training.steps", value="${STEPS}"),
    )


FORMAT = Format(
    name=NAME,
    title="torchtitan 0.3 command-line words",
    framework="torchtitan",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    problems=problems,
)

"""Puts a plan's decisions into an existing script or args file, everything else as it was."""

from collections.abc import Sequence

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.megatron.emit import TITLE
from planner.formats.megatron.model_args import is_model_args
from planner.formats.megatron.options import load_options
from planner.formats.megatron.owned import is_owned
from planner.formats.megatron.read import entries_in
from planner.formats.megatron.reasons import layout_reasons, refuse
from planner.formats.megatron.table import decision_choices
from planner.formats.megatron.yaml_config import is_yaml_config
from planner.formats.shell.edit import Arguments, Entry, edited
from planner.spec.strategy import Strategy


def write_into(source: SourceText, context: Context, strategy: Strategy) -> str:
    """The file with the strategy's decisions in it.

    Raises ExpressError where the strategy cannot be expressed or where a decision is computed in
    a way that cannot be edited, InputError where the file cannot be read.
    """
    refuse(TITLE, layout_reasons(context, strategy))
    if is_yaml_config(source.text) or is_model_args(source.text):
        raise ExpressError(f"{source.path}: {TITLE}'s YAML files are read, not written")
    _, entries = _options(source)
    there = {entry.name for entry in entries}
    wanted: dict[str, tuple[str, ...]] = {
        entry.name: ()
        for entry in entries
        if is_owned(entry.name, entry.texts) and not _is_default(entry.name, entry.texts)
    }
    for choice in decision_choices(context, strategy):
        if choice.option in there or not _is_default(choice.option, list(choice.words)):
            wanted[choice.option] = (choice.option, *choice.words)
    return edited(source, _options, wanted, strategy.num_gpus)


def _options(source: SourceText) -> tuple[Arguments, Sequence[Entry]]:
    arguments, entries = entries_in(source)
    return arguments, entries.options


def _is_default(name: str, words: list[str]) -> bool:
    """Whether Megatron does the same without the option."""
    option = load_options().get(name)
    return option is not None and option.takes_values and words == [option.default]

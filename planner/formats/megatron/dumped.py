"""Settings of a run as Megatron-LM prints them at its start: every attribute, defaults too.

Source: megatron/training/arguments.py _print_args: ``attribute ...... value`` between two rules.
Releases before 2023 say recomputation by other attributes; what this release does not know is
left out, as it decides nothing here.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from planner.formats.format import Reading, Value
from planner.formats.megatron.decisions import decisions_of
from planner.formats.megatron.described import described
from planner.formats.megatron.options import (
    Option,
    SettingValue,
    options_by_dest,
    typed,
)
from planner.formats.megatron.runtime import traits_of

FORMAT = "megatron"
NEEDED = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "world_size", "num_layers")
_LIST = re.compile(r"[\[(](.*)[\])]")
_FULL = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": "1",
}
"""What ``checkpoint_activations`` meant."""
CLASSIC, FORK = "classic", ("megatron-bf16", "megatron")
"""Profiles of releases before ``transformer_impl``; of Megatron-DeepSpeed in bf16 and fp16."""


def read_dumped(path: str, given: Mapping[str, Value]) -> tuple[Reading, str] | None:
    """The reading of a dump, and whose framework ran it; None where it is of an older form."""
    if any(name not in given for name in NEEDED):
        return None
    words = {name: each for name, each in given.items() if each.value not in ("None", "")}
    if _is_on(words, "checkpoint_activations"):
        place = words["checkpoint_activations"]
        words |= {name: replace(place, value=text) for name, text in _FULL.items()}
    settings = settings_of(words)
    _group_queries(settings)
    decisions = decisions_of(settings, _whole(words["world_size"]))
    is_fork = _is_on(words, "deepspeed")
    if is_fork:
        decisions["profile"] = replace(words["deepspeed"], value=FORK[_is_on(words, "fp16")])
        stage = words.get("zero_stage")
        decisions |= {"zero_stage": _whole(stage)} if stage else {}
    elif "transformer_impl" not in words:
        decisions["profile"] = replace(words["world_size"], value=CLASSIC)
    reading = Reading(
        format=FORMAT,
        path=path,
        settings=settings,
        decisions=decisions,
        findings=(),
        own_model=described(settings),
        traits=tuple(traits_of(settings)),
    )
    return reading, "deepspeed" if is_fork else FORMAT


def settings_of(words: Mapping[str, Value]) -> dict[str, Value]:
    """By option, what attributes set that this release knows and their texts can be."""
    return {
        option.name: replace(each, value=value)
        for name, each in words.items()
        if (option := options_by_dest().get(name)) and (value := _value(option, each)) is not None
    }


def _is_on(words: Mapping[str, Value], name: str) -> bool:
    return name in words and words[name].value == "True"


def _whole(place: Value) -> Value:
    text = str(place.value)
    return replace(place, value=int(text) if text.isdecimal() and len(text) < 12 else text)


def _value(option: Option, place: Value) -> SettingValue | None:
    """The value of an option; None where the attribute changes nothing, or is of another kind."""
    text = str(place.value)
    if not option.takes_values:
        return True if (text == "True") == (option.kind != "off") else None
    found = _LIST.fullmatch(text)
    words = [each.strip(" '\"") for each in found[1].split(",")] if found else text.split()
    if not option.nargs:
        words = [text]
    try:
        return typed(option, words)
    except ValueError:
        return None


def _group_queries(settings: dict[str, Value]) -> None:
    """Groups are printed where nothing is grouped, too."""
    if "--group-query-attention" not in settings:
        settings.pop("--num-query-groups", None)

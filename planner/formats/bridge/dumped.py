"""The configuration of a run as Megatron-Bridge prints it at its start: what is not the default.

Source: training/config.py ConfigContainer.log_non_default_values. Of the model only fields of
Megatron-Core are printed: no vocabulary, no kind of positions, no activation.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from planner.formats.bridge.format import FORMAT
from planner.formats.bridge.keys import LAYOUT, VIRTUAL, option_of
from planner.formats.format import Reading, Value
from planner.formats.megatron.decisions import decisions_of
from planner.formats.megatron.dumped import settings_of
from planner.formats.megatron.options import options_by_dest
from planner.formats.megatron.runtime import BF16_GRADIENTS, FP32_GRADIENTS

GROUPS = ("model", "train", "optimizer", "ddp")
"""Groups whose fields have the names of Megatron's arguments."""
GROUPED, HEADS = "model.num_query_groups", "model.num_attention_heads"
NEEDED = ("model.num_layers", HEADS, "train.micro_batch_size")
REDUCED = "ddp.grad_reduce_in_fp32"
_OTHERS = {"dataset.seq_length": "--seq-length"}
_DTYPE = re.compile(r"torch\.(float32|bfloat16|float16|uint8)")
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}


def read_dumped(path: str, given: Mapping[str, Value]) -> Reading | None:
    """The reading of what is printed, by ``group.field``; None where it is not whole."""
    if any(key not in given for key in NEEDED):
        return None
    words: dict[str, Value] = {}
    dests = {option.name: dest for dest, option in options_by_dest().items()}
    for key, place in given.items():
        group, _, _ = key.partition(".")
        option = _OTHERS.get(key) or (option_of(key) if group in GROUPS else "")
        if option in dests and not (key == VIRTUAL and LAYOUT in given):
            text = _DTYPE.sub(lambda found: _DTYPES[found[1]], str(place.value)).strip("'")
            words[dests[option]] = Value(value=text, key=key, line=place.line)
    settings = settings_of(words)
    groups = given.get(GROUPED)
    if groups and groups.value != given[HEADS].value:
        settings["--group-query-attention"] = replace(groups, value=True)
    held = given.get(REDUCED)
    reduced = FP32_GRADIENTS if held and held.value == "True" else BF16_GRADIENTS
    settings[reduced] = Value(value=True, key=REDUCED, line=held.line if held else 0)
    return Reading(
        format=FORMAT.name,
        path=path,
        settings={place.key: place for place in settings.values()},
        decisions=decisions_of(settings),
    )

"""Settings that runs print at their start, read as their frameworks' files are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.compare.forms import Dump, dump_in

BEGIN, END = f"{'-' * 24} arguments {'-' * 24}", f"{'-' * 20} end of arguments {'-' * 21}"
MEGATRON = {
    "bf16": "True",
    "global_batch_size": "256",
    "hidden_size": "4096",
    "micro_batch_size": "1",
    "num_attention_heads": "32",
    "num_layers": "32",
    "pipeline_model_parallel_size": "2",
    "seq_length": "4096",
    "tensor_model_parallel_size": "4",
    "transformer_impl": "transformer_engine",
    "use_distributed_optimizer": "True",
    "world_size": "64",
}


def dumped(**more: str) -> list[str]:
    rows = sorted({**MEGATRON, **more}.items())
    return [BEGIN, *(f"  {name} {'.' * (40 - len(name))} {value}" for name, value in rows), END]


def read(lines: list[str]) -> Dump:
    found, notes = dump_in("run.log", lines)
    assert found is not None, notes
    return found


BRIDGE = Path(__file__).with_name("bridge_settings.txt").read_text("utf-8").splitlines()


PRINTED: dict[str, Callable[..., list[str]]] = {
    "megatron": dumped,
    "deepspeed": lambda **given: ["x", f"[c.py:9:print_user_config]   json = {json.dumps(given)}"],
    "torchtitan": lambda **given: [f"[titan] - INFO - Running with args: {json.dumps(given)}"],
    "bridge": lambda: BRIDGE,
}
CASES = yaml.safe_load(Path(__file__).with_name("dumps.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("source", "changes", "framework", "decided"), CASES)
def test_settings_are_read_as_those_of_their_framework(
    source: str, changes: dict[str, Any], framework: str, decided: dict[str, object]
) -> None:
    dump = read(PRINTED[source](**changes))
    assert (dump.framework, dump.reading.format == "bridge") == (framework, source == "bridge")
    for name, value in decided.items():
        found = getattr(dump.reading.decisions.get(name), "value", None)
        assert (list(found) if isinstance(found, tuple) else found) == value, name


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (["first", *dumped()], "tensor_model_parallel_size"),
        (BRIDGE, "tensor_model_parallel_size:"),
    ],
)
def test_a_value_has_the_line_that_prints_it(lines: list[str], first: str) -> None:
    place = read(lines).reading.decisions["tp"]
    assert lines[place.line - 1].split()[0] == first


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        (dumped()[:-1], "line 1: the arguments have no end: they are truncated, and not used"),
        (BRIDGE[:24], "line 3: the configuration is truncated, and not used"),
        (
            ["", "    ***** Experiment configuration *****", "trainer:"],
            "line 2: NeMo 1.x's YAML is not covered: --config says the layout",
        ),
        (["json = {", '"train_batch_size": 3'], None),
    ],
)
def test_settings_that_are_cut_off_or_of_others_are_not_used(
    lines: list[str], note: str | None
) -> None:
    found, notes = dump_in("run.log", lines)
    assert found is None
    assert notes == (note,) or note is None

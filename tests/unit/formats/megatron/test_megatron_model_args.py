"""YAML with Megatron's options by name under MODEL_ARGS."""

import pytest

from planner.errors import InputError
from planner.formats.format import Reading, SourceText
from planner.formats.registry import load_format, recognised

MEGATRON = load_format("megatron")
HEAD = "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n  # a comment\n"
TEXT = f"""{HEAD}
  --num-layers: 12 # another
  --pipeline-model-parallel-size: 4
  --tensor-model-parallel-size: ${{TP}}
  --recompute-granularity: selective
  --recompute-modules: [core_attn moe_act]
  --rampup-batch-size: "[16 16 100]"
  --hierarchical-context-parallel-sizes: 2 2
  --swiglu: false
  --bf16: true
"""


def source(text: str) -> SourceText:
    return SourceText(path="model_config.yaml", text=text)


def rules(reading: Reading) -> list[tuple[str, int]]:
    return [(finding.rule, finding.line) for finding in reading.findings]


def read(text: str) -> Reading:
    return MEGATRON.read(source(text))


def test_options_under_model_args_are_read_with_their_lines() -> None:
    assert recognised(source(TEXT)) == [MEGATRON]
    reading = read(TEXT)
    assert rules(reading) == [("megatron.unresolved", 8)]
    assert (reading.decisions["pp"].value, reading.decisions["pp"].line) == (4, 7)
    assert reading.decisions["precision"].value == "bf16"
    assert reading.settings["--recompute-modules"].value == ("core_attn", "moe_act")
    assert reading.settings["--rampup-batch-size"].value == (16, 16, 100)
    assert reading.settings["--hierarchical-context-parallel-sizes"].value == (2, 2)
    assert "--swiglu" not in reading.settings
    assert reading.settings["CUDA_DEVICE_MAX_CONNECTIONS"].value == "1"
    assert list(reading.left_open) == ["tp"]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("--num-layer: 3", "unknown_key"),
        ("--seq-length: long", "bad_value"),
        ("--num-layers: 3", "duplicate_key"),
    ],
)
def test_a_wrong_line_under_model_args_is_a_finding(line: str, rule: str) -> None:
    reading = read(f"{HEAD}  --num-layers: 2\n  --bf16: true\n  {line}\n")
    assert rules(reading) == [(f"megatron.{rule}", 7)]


def test_a_file_without_options_under_model_args_is_not_recognised() -> None:
    assert recognised(source("MODEL_ARGS:\n  trainer.num_nodes: 2\n  --bf16: true\n")) == []


def test_broken_yaml_under_model_args_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match="line"):
        read(f"{HEAD}  --num-layers: 2\n  --bf16: [\n")

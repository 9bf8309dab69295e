"""Settings that runs print at their start, read as their frameworks' files are."""

import json
from pathlib import Path

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


def decided(dump: Dump, *names: str) -> list[object]:
    return [dump.reading.decisions[name].value for name in names]


def test_arguments_of_megatron_are_its_options() -> None:
    dump = read(dumped())
    assert decided(dump, "tp", "pp", "dp", "zero_stage", "num_gpus") == [4, 2, 8, 1, 64]
    assert decided(dump, "micro_batch", "global_batch", "seq_len") == [1, 256, 4096]
    assert dump.framework == "megatron"
    assert "profile" not in dump.reading.decisions


def test_a_value_has_the_line_that_prints_it() -> None:
    lines = ["first", *dumped()]
    place = read(lines).reading.decisions["tp"]
    assert lines[place.line - 1].split()[0] == "tensor_model_parallel_size"


def test_what_old_releases_call_checkpointing_is_full_recomputation() -> None:
    old = read(dumped(checkpoint_activations="True", transformer_impl="None"))
    assert decided(old, "recompute_layers_per_stage", "profile") == [(16, 16), "classic"]


def test_megatron_deepspeed_has_the_traits_of_deepspeed() -> None:
    fork = read(dumped(deepspeed="True", zero_stage="1", bf16="False", fp16="True"))
    assert fork.framework == "deepspeed"
    assert decided(fork, "profile", "zero_stage") == ["megatron", 1]
    assert decided(read(dumped(deepspeed="True")), "profile") == ["megatron-bf16"]


def test_arguments_without_an_end_are_not_used() -> None:
    found, notes = dump_in("run.log", dumped()[:-1])
    assert found is None
    assert notes == ("line 1: the arguments have no end: they are truncated, and not used",)


def test_settings_of_deepspeed_keep_their_lines() -> None:
    given = {"train_batch_size": 32, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    lines = ["x", *f"[config.py:989:print_user_config]   json = {json.dumps(given)}".split("\n")]
    dump = read(lines)
    assert decided(dump, "zero_stage", "global_batch", "precision") == [2, 32, "bf16"]
    assert dump_in("run.log", ["json = {", '"train_batch_size": 3'])[0] is None


def test_settings_of_torchtitan_are_those_of_its_old_file() -> None:
    given = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": 2, "seq_len": 8192, "steps": 10},
        "parallelism": {"data_parallel_shard_degree": 8, "tensor_parallel_degree": 2},
        "activation_checkpoint": {"mode": "full"},
    }
    dump = read([f"[titan] - root - INFO - Running with args: {json.dumps(given)}"])
    assert decided(dump, "tp", "micro_batch", "seq_len") == [2, 2, 8192]
    assert dump.framework == "torchtitan"


BRIDGE = Path(__file__).with_name("bridge_settings.txt").read_text("utf-8").splitlines()


def test_what_bridge_prints_is_its_configuration() -> None:
    dump = read(BRIDGE)
    assert (dump.reading.format, dump.framework) == ("bridge", "megatron")
    assert decided(dump, "tp", "pp", "zero_stage", "sequence_parallel") == [4, 4, 1, True]
    assert decided(dump, "micro_batch", "global_batch", "seq_len") == [1, 128, 8192]
    assert decided(dump, "recompute_modules", "gradient_bytes") == [("core_attn", "mlp"), 4]
    assert decided(dump, "model.num_kv_heads", "precision") == [8, "bf16"]
    place = dump.reading.decisions["tp"]
    assert BRIDGE[place.line - 1].strip().startswith("tensor_model_parallel_size: 4")


def test_a_configuration_of_bridge_that_is_cut_off_is_not_used() -> None:
    found, notes = dump_in("run.log", BRIDGE[:24])
    assert found is None
    assert notes == ("line 3: the configuration is truncated, and not used",)


def test_a_configuration_of_nemo_is_named_and_not_used() -> None:
    found, notes = dump_in("run.log", ["", "    ***** Experiment configuration *****", "trainer:"])
    assert found is None
    assert notes == ("line 2: NeMo 1.x's YAML is not covered: --config says the layout",)

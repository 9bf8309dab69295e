"""Mistakes of published files that README names: what is wrong in them alone is still found."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.commands import run

DEEPSPEED = {"train_batch_size": 8, "bf16": {"enabled": True}}
FSDP = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_machines": 1}
ACCELERATE = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_machines": 1}


@pytest.mark.parametrize(
    ("name", "settings", "rule", "key"),
    [
        (
            "ds_config.json",
            {**DEEPSPEED, "compile": {"backend": "inductor"}},
            "deepspeed.unknown_key",
            "compile.backend",
        ),
        (
            "ds_config.json",
            {**DEEPSPEED, "compression_training": {"layer_reduction": {"enabled": False}}},
            "deepspeed.key_not_removed",
            "compression_training",
        ),
        (
            "ds_config.json",
            {**DEEPSPEED, "sparse_attention": {"mode": "fixed"}},
            "deepspeed.key_not_removed",
            "sparse_attention",
        ),
        (
            "accelerate.yaml",
            {**ACCELERATE, "deepspeed_config": {"seq_parallel_communication_data_type": "bf16"}},
            "accelerate.unknown_key",
            "deepspeed_config.seq_parallel_communication_data_type",
        ),
        (
            "accelerate.yaml",
            {**FSDP, "fsdp_config": {"fsdp_transformer_cls_names_to_wrap": "Qwen3DecoderLayer"}},
            "accelerate.unknown_key",
            "fsdp_config.fsdp_transformer_cls_names_to_wrap",
        ),
    ],
)
def test_the_mistake_is_found(
    name: str,
    settings: dict[str, Any],
    rule: str,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(json.dumps(settings))
    code, output = run(f"planner check {name} --no-advice --format json")
    # Accelerate ignores keys that it does not know below the top.
    is_ignored = rule == "accelerate.unknown_key"
    assert code == (0 if is_ignored else 1)
    severity = "warning" if is_ignored else "error"
    (file,) = json.loads(output)["files"]
    found = {(one["rule"], one["key"]) for one in file["findings"] if one["severity"] == severity}
    assert (rule, key) in found

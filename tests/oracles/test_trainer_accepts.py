"""The format ``trainer`` against TrainingArguments, on a CPU.

``use_cpu`` is added to every file: without it bf16 is refused where there is no GPU.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate_plans import Case, cases
from rule_examples import judged
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from planner.errors import ExpressError
from planner.formats.trainer.format import FORMAT
from planner.formats.trainer.keys import WHOLE, replaced

EXAMPLES = Path(__file__).parents[1] / "examples" / "formats" / "trainer"
NUM_PLANS = 80


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    warnings.simplefilter("ignore")
    with mock.patch.dict(os.environ):
        yield


def arguments(text: str, folder: Path) -> Any:
    """TrainingArguments of a file, and what Trainer does with DeepSpeed's part of it."""
    path = folder / "training_arguments.json"
    path.write_text(json.dumps(json.loads(text) | {"use_cpu": True}), encoding="utf-8")
    (found,) = HfArgumentParser(TrainingArguments).parse_json_file(str(path))
    if found.deepspeed:
        model = SimpleNamespace(config=SimpleNamespace(hidden_size=64))
        found.hf_deepspeed_config.trainer_config_finalize(found, model, 10)
    return found


def assert_as_planned(found: Any, case: Case, environment: dict[str, str]) -> str:
    context, strategy = case
    assert found.per_device_train_batch_size == strategy.micro_batch
    assert found.gradient_accumulation_steps == strategy.num_micro_batches
    assert (found.bf16, found.fp16) == tuple(context.job.precision == n for n in ("bf16", "fp16"))
    recomputes = strategy.recompute == "full"
    kind = "replicas"
    if found.fsdp:
        kind = "fsdp"
        plugin = FullyShardedDataParallelPlugin(**found.fsdp_plugin_args)
        assert plugin.fsdp_version == 2
        assert plugin.reshard_after_forward is (strategy.zero_stage == 3)
        assert plugin.activation_checkpointing is recomputes
        assert ("CPU" in type(plugin.cpu_offload).__name__) is (strategy.offload != "none")
    else:
        assert found.activation_checkpointing is recomputes
    if found.deepspeed:
        kind = "deepspeed"
        zero = found.hf_deepspeed_config.config["zero_optimization"]
        assert zero["stage"] == strategy.zero_stage
        assert (zero["offload_optimizer"]["device"] == "cpu") is ("optimizer" in strategy.offload)
        assert (zero["offload_param"]["device"] == "cpu") is ("param" in strategy.offload)
    if environment:
        with mock.patch.dict(os.environ, environment):
            sizes = ParallelismConfig()._sizes
        shard = strategy.dp // strategy.dp_replicate
        planned = (strategy.dp_replicate, shard, strategy.tp, strategy.cp)
        assert tuple(sizes[n] for n in ("dp_replicate", "dp_shard", "tp", "cp")) == planned
        kind += " on a mesh"
    return kind


def test_training_arguments_take_every_plan(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    kinds: dict[str, int] = {}
    for case in islice(cases(13), 2000):
        with suppress(ExpressError):
            emitted = FORMAT.emit(*case)
            found = arguments(emitted.files[0].text, tmp_path)
            kind = assert_as_planned(found, case, dict(emitted.environment))
            kinds[kind] = kinds.get(kind, 0) + 1
        if sum(kinds.values()) == NUM_PLANS:
            break
    record_property("plans accepted", kinds)
    assert sum(kinds.values()) == NUM_PLANS
    assert {*kinds} == {"fsdp", "fsdp on a mesh", "deepspeed", "replicas"}


@pytest.mark.parametrize(("rule", "kind", "is_refused"), judged(FORMAT))
def test_transformers_judges_the_examples_as_the_rules_say(
    rule: str, kind: str, is_refused: bool, tmp_path: Path
) -> None:
    text = (EXAMPLES / rule / f"{kind}.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"\w") if is_refused else nullcontext():
        arguments(text, tmp_path)


@pytest.mark.parametrize("key", sorted(replaced()))
def test_transformers_refuses_keys_of_older_releases(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not used by the HfArgumentParser"):
        arguments(json.dumps({"output_dir": "out", "use_cpu": True, key: None}), tmp_path)


@pytest.mark.parametrize("key", WHOLE)
def test_a_whole_number_with_a_point_ends_a_training(key: str, tmp_path: Path) -> None:
    quick = {"output_dir": str(tmp_path), "max_steps": 1, "save_strategy": "no", "report_to": []}
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        train({**quick, key: 1.0}, tmp_path)
    train({**quick, "num_train_epochs": 1.0}, tmp_path)


def train(settings: dict[str, Any], folder: Path) -> None:
    row = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
    trainer = Trainer(
        model=model, args=arguments(json.dumps(settings), folder), train_dataset=[row] * 8
    )
    trainer.train()

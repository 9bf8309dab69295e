"""DeepSpeed files against DeepSpeed itself: its config, its engine's assertions, its launcher."""

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed.runtime.config as runtime
import hjson
import pytest
import torch
from deepspeed.launcher.runner import fetch_hostfile
from deepspeed.module_inject.tp_shard import AutoTPMeta, get_shard_size_list
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.utils import groups
from drawn_deepspeed import expressible, spaces
from rule_examples import judged, load_example

from planner.formats.deepspeed.format import read, read_hostfile
from planner.formats.format import Format, SourceText
from planner.formats.registry import load_format

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "tests" / "examples" / "formats" / "deepspeed"
FORMAT: Format = load_format("deepspeed")
NUM_PLANS = 140
REFUSES = (AssertionError, ValueError, runtime.DeepSpeedConfigError)
REFUSED_HOSTFILES = tuple(f"deepspeed.hostfile_{name}" for name in ("entry", "duplicate", "empty"))
"""Findings about a hostfile that the launcher refuses too; the others it passes."""
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""DeepSpeed leaves a file open that it refuses."""
DEVICES = {"": ("none", "none"), "host": ("cpu", "cpu"), "nvme": ("nvme", "nvme")}


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many ranks DeepSpeed believes in; 8 at first."""

    def pretend(number: int) -> None:
        monkeypatch.setattr(runtime.dist, "get_rank", lambda *_, **__: 0)
        monkeypatch.setattr(runtime.dist, "get_world_size", lambda *_, **__: number)

    pretend(8)
    return pretend


def mpu_of(text: str, num_gpus: int) -> SimpleNamespace | None:
    """The groups that a start of this file hands to the config; none for AutoTP and plain data.

    A pipeline's module brings its grid, Ulysses a mesh; AutoTP makes its groups afterwards.
    """
    content = hjson.loads(text)
    stages = content.get("pipeline", {}).get("stages", 1)
    split = content.get("training_script", {}).get("tensor_parallel_size", 1)
    sequence = content.get("sequence_parallel_size", 1)
    inner = stages * split * sequence
    if inner == 1:
        return None
    return SimpleNamespace(get_data_parallel_world_size=lambda: num_gpus // inner)


def config_of(path: Path, num_gpus: int) -> Any:
    """The real DeepSpeedConfig of a file; raises what it raises."""
    return runtime.DeepSpeedConfig(str(path), mpu=mpu_of(path.read_text(), num_gpus))


def test_every_emitted_plan_is_accepted_with_its_degrees(
    tmp_path: Path,
    ranks: Callable[[int], None],
) -> None:
    accepted: dict[str, int] = {}
    for number, (context, strategy) in enumerate(itertools.islice(expressible(1), NUM_PLANS)):
        path = tmp_path / f"{number}.json"
        path.write_text(FORMAT.emit(context, strategy).files[0].text)
        ranks(strategy.num_gpus)
        config = config_of(path, strategy.num_gpus)
        zero, counted = config.zero_config, strategy.dp
        if strategy.tp > 1 and strategy.pp == 1:
            counted = strategy.num_gpus
        assert config.train_micro_batch_size_per_gpu == strategy.micro_batch
        assert config.gradient_accumulation_steps == strategy.num_micro_batches
        assert config.train_batch_size == (
            strategy.micro_batch * strategy.num_micro_batches * counted
        )
        assert zero.stage == strategy.zero_stage
        states, _, place = strategy.offload.partition(":")
        assert device(zero.offload_optimizer) == DEVICES[place][0]
        assert device(zero.offload_param) == ("none", DEVICES[place][1])["parameters" in states]
        if place:
            assert zero.offload_optimizer.ratio == strategy.offload_percent / 100
        assert config.bfloat16_config.enabled == (context.job.precision == "bf16")
        assert config.float16_config.enabled == (context.job.precision == "fp16")
        expected_tp = strategy.tp if strategy.pp == 1 and strategy.tp > 1 else 0
        assert config.tensor_parallel_config.autotp_size == expected_tp
        assert config.pipeline["stages"] == (strategy.pp if strategy.pp > 1 else "auto")
        engine = engine_of(config)
        assert engine._is_supported_optimizer(config.optimizer_name)
        accepted[context.model.name] = accepted.get(context.model.name, 0) + 1
    sys.stdout.write(f"plans accepted by DeepSpeedConfig: {accepted}\n")
    assert sum(accepted.values()) == NUM_PLANS
    assert len(accepted) == len({context.model.name for context, _ in spaces()})


def device(section: Any) -> str:
    """Where a section of offload puts things."""
    return "none" if section is None else str(getattr(section.device, "value", section.device))


@pytest.mark.parametrize(("rule", "kind", "is_refused"), judged(FORMAT))
def test_deepspeed_judges_the_examples_as_the_rules_say(
    rule: str, kind: str, is_refused: bool, ranks: Callable[[int], None]
) -> None:
    example = load_example(FORMAT, rule, kind)
    ranks(example.world.num_gpus)
    with pytest.raises(REFUSES) if is_refused else nullcontext():
        config_of(example.path, example.world.num_gpus)


@pytest.mark.parametrize(
    ("text", "rule", "is_refused"),
    [
        ('"zero_optimization": {"stage": 4}', "bad_value", True),
        ('"zero_optimization": {"stages": 2}', "unknown_key", True),
        ('"zero_optimization": {"offload_optimizer": {"device": "gpu"}}', "bad_value", True),
        ('"zero_optimization": {"reduce_bucket_size": 0}', "bad_value", True),
        ('"bf16": {"enable": true}', "unknown_key", True),
        ('"bf16": true', "bad_value", True),
        ('"tensor_parallel": {"autotp_size": "four"}', "bad_value", True),
        ('"fp16": {"enabled": true, "loss_scale": "high"}', "bad_value", True),
        ('"train_batch_size": 8, "train_batch_size": 8', "duplicate_key", True),
        ('"zero_optimisation": {"stage": 2}', "unknown_key", False),
        ('"activation_checkpointing": {"partition_activation": true}', "unknown_key", False),
        ('"pipeline": {"stage": 2}', "unknown_key", False),
        ('"optimizer": {"typ": "AdamW"}', "unknown_key", False),
        ('"zero_optimization": {"stage": "auto"}', "bad_value", False),
    ],
)
def test_findings_of_the_reader_are_refused_by_deepspeed_or_missed(
    text: str, rule: str, is_refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(f'{{"train_micro_batch_size_per_gpu": 1, {text}}}')
    found = {each.rule for each in read(SourceText(path="f", text=path.read_text())).findings}
    assert found == {f"deepspeed.{rule}"}
    with pytest.raises((*REFUSES, TypeError)) if is_refused else nullcontext():
        config_of(path, 8)


def test_autotp_counts_all_ranks_without_an_mpu(
    tmp_path: Path, ranks: Callable[[int], None]
) -> None:
    """Why emitted files leave train_batch_size out under AutoTP."""
    path = tmp_path / "ds.json"
    content = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
    content |= {"tensor_parallel": {"autotp_size": 4}, "train_batch_size": 4}  # type: ignore[dict-item]
    path.write_text(json.dumps(content))
    ranks(8)
    with pytest.raises(AssertionError, match="train_batch_size is not equal"):
        config_of(path, 8)


def engine_of(config: Any, kind: type[Any] = DeepSpeedEngine) -> Any:
    """An engine of the real class that was never started."""
    engine = kind.__new__(kind)
    for name, value in {"_config": config, "client_optimizer": None, "global_rank": 0}.items():
        object.__setattr__(engine, name, value)
    object.__setattr__(engine, "pipeline_parallelism", kind is PipelineEngine)
    return engine


def example_config(rule: str, kind: str) -> Any:
    return config_of(EXAMPLES / rule / f"{kind}.json", 8)


def test_the_pipeline_engine_refuses_stage_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeepSpeedEngine, "__init__", lambda *_, **__: None)
    for name, message in (("refused", "incompatible with pipeline"), ("accepted", None)):
        config = example_config("pipeline_below_stage_2", name)
        engine = engine_of(config, PipelineEngine)
        object.__setattr__(engine, "module", PipelineModule.__new__(PipelineModule))
        with pytest.raises((AssertionError, AttributeError)) as error:
            engine.__init__()
        assert isinstance(error.value, AssertionError) == (message is not None)
        assert message is None or message in str(error.value)


@pytest.mark.parametrize(("name", "fits"), [("refused", False), ("accepted", True)])
def test_secondary_groups_must_divide_the_ranks(
    name: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = example_config("secondary_copy_divides_ranks", name)
    monkeypatch.setattr(groups, "_ZERO_PARAM_INTRA_PARALLEL_GROUP", None)
    monkeypatch.setattr(groups.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(groups.dist, "new_group", lambda ranks: ranks)
    size = config.zero_config.zero_hpz_partition_size
    if fits:
        groups._create_zero_param_parallel_group(size)
    else:
        with pytest.raises(AssertionError, match="not divisible"):
            groups._create_zero_param_parallel_group(size)


def test_the_engine_refuses_clipping_as_an_optimizer_parameter() -> None:
    engine = engine_of(example_config("clipping_is_no_optimizer_parameter", "refused"))
    with pytest.raises(ValueError, match="max_grad_norm"):
        engine._configure_basic_optimizer([])


def test_the_engine_refuses_untested_optimizers() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1))]
    engine = engine_of(example_config("untested_optimizer_is_allowed", "refused"))
    with pytest.raises(AssertionError, match="zero_allow_untested_optimizer"):
        engine._do_optimizer_sanity_check(torch.optim.SGD(weights, lr=0.1))
    engine = engine_of(example_config("untested_optimizer_is_allowed", "accepted"))
    engine._do_optimizer_sanity_check(torch.optim.SGD(weights, lr=0.1))


def test_the_engine_makes_no_optimizer_of_an_unknown_type() -> None:
    engine = engine_of(example_config("optimizer_is_known", "refused"))
    with pytest.raises(AttributeError, match="OneBitAdam"):
        engine._configure_basic_optimizer([])
    for name, is_known in (("refused", False), ("accepted", True)):
        config = example_config("optimizer_is_known", name)
        assert engine._is_supported_optimizer(config.optimizer_name) is is_known


def test_the_engine_makes_no_schedule_of_an_unknown_type() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(AssertionError, match="does not recognize LR scheduler WarmupCosine"):
        engine_of(example_config("scheduler_is_known", "refused"))._scheduler_from_config(optimizer)
    for name in ("WarmupLR", "LinearLR"):
        config = example_config("scheduler_is_known", "accepted")
        config.scheduler_name, config.scheduler_params = name, {}
        assert engine_of(config)._scheduler_from_config(optimizer) is not None


@pytest.mark.parametrize(
    ("heads", "size", "is_equal"), [(10, 4, False), (10, 2, True), (4, 8, False)]
)
def test_autotp_deals_key_value_heads_out(heads: int, size: int, is_equal: bool) -> None:
    sizes = get_shard_size_list(heads * 64, size, AutoTPMeta(num_kv_heads=heads), "k_proj")
    assert (len(set(sizes)) == 1) is is_equal
    assert (min(sizes) == 0) is (size > heads)


@pytest.mark.parametrize(("size", "divides"), [(3, False), (4, True)])
def test_sequence_groups_must_divide_the_ranks(
    size: int, divides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_state_sp.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(parallel_state_sp.dist, "new_group", lambda ranks: ranks)
    if not divides:
        with pytest.raises(RuntimeError, match="not divisible by sequence_parallel_size"):
            parallel_state_sp.initialize_sequence_parallel(size)
        return
    for name in [n for n in vars(parallel_state_sp) if n.startswith("_SEQUENCE")]:
        monkeypatch.setattr(parallel_state_sp, name, None)
    parallel_state_sp.initialize_sequence_parallel(size)
    assert len(parallel_state_sp._SEQUENCE_PARALLEL_GROUP) == size


def hostfiles() -> Iterator[str]:
    pick = random.Random(3)
    parts = ["worker-1", "worker-2", " slots=8", " slots=", " slots=x", "\tslots=4", "\n", "#", " "]
    for _ in range(300):
        yield "".join(pick.choice(parts) for _ in range(pick.randrange(1, 9)))


def test_hostfiles_are_refused_where_the_launcher_refuses_them(tmp_path: Path) -> None:
    path, outcomes = tmp_path / "hostfile", set()
    for text in hostfiles():
        path.write_text(text)
        mine, findings = read_hostfile(SourceText(path="hostfile", text=text))
        is_refused = any(f.rule in REFUSED_HOSTFILES for f in findings)
        try:
            theirs = fetch_hostfile(str(path))
        except ValueError:
            assert is_refused, text
        else:
            assert not is_refused, text
            assert dict(theirs) == mine
        outcomes.add(is_refused)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("worker-0 slots=8\nworker-1 slots=4\n", {"worker-0": 8, "worker-1": 4}),
        ("worker-0 slots=0\n", None),
        ("worker-0 slots=8 max=9\n", None),
    ],
)
def test_the_launcher_reads_hosts_and_misses_what_is_wrong_of_slots(
    text: str, slots: dict[str, int] | None, tmp_path: Path
) -> None:
    path = tmp_path / "hostfile"
    path.write_text(text)
    found = dict(fetch_hostfile(str(path)))
    assert found == (slots or found)
    assert found
    assert bool(read_hostfile(SourceText(path="hostfile", text=text))[1]) == (slots is None)


def test_the_class_of_the_documentation_cuts_stages_as_planned() -> None:
    page = (ROOT / "docs" / "formats" / "deepspeed.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    kind = names["PlannedPipeline"]

    def named(name: str) -> Callable[[], None]:
        def layer() -> None:
            return None

        layer.__name__ = name
        return layer

    layers = [named(name) for name in ("embed", *["Block"] * 32, "norm", "head")]
    bounds = []
    for stage in range(4):
        module = kind.__new__(kind)
        topology = SimpleNamespace(get_coord=lambda rank, stage=stage: SimpleNamespace(pipe=stage))
        parts = {"_layer_specs": layers, "_topo": topology, "global_rank": stage}
        for name, value in {**parts, "planned": ("Block", [7, 9, 9, 7])}.items():
            object.__setattr__(module, name, value)
        module._partition_layers()
        bounds.append((module._local_start, module._local_stop))
    assert bounds == [(0, 8), (8, 17), (17, 26), (26, 35)]

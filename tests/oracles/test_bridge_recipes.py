"""Megatron-Bridge's own recipes under what is written for Bridge: accepted, trained as planned."""

import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bridge_start import BRIDGE as BRIDGE_PACKAGE
from bridge_start import RecipeStart
from starts import Starts, running

from planner.answers.plan import answer
from planner.compare.forms import dump_in
from planner.cost.context import Context
from planner.formats.bridge.mapping import NAMES, PRECISIONS, recipes
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.spec.job import Precision
from planner.spec.strategy import Strategy

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests" / "examples" / "positive" / "models"
BRIDGE = load_format("bridge")
CASES = {
    "llama3-8b": "1xdgx-h100",
    "qwen2.5-0.5b": "1xdgx-h100",
    "qwen3-8b": "1xdgx-h100",
    "qwen3-30b-a3b": "2xdgx-h100",
    "deepseek-v2-lite": "1xdgx-h100",
    "deepseek-v3": "32xdgx-h100",
    "glm-4.5-air": "4xdgx-h100",
    "gpt-oss-20b": "1xdgx-h100",
    "gemma2-2b": "1xdgx-h100",
    "gemma3-1b": "1xdgx-h100",
    "gpt3-175b": "8xdgx-h100",
    "nemotron-h-8b": "1xdgx-h100",
    "nemotron-3-nano-4b": "1xdgx-h100",
    "nemotron-3-nano-30b-a3b": "2xdgx-h100",
    "qwen3-next-80b-a3b": "4xdgx-h100",
}
"""Of every family that Bridge has a recipe and the catalogue a model of: the cluster."""
SAME = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "sequence_parallel", "micro_batch")
SAME += ("zero_stage", "dp_replicate")
LEARNING_RATE = "2.5e-05"
CHECKPOINT = "${PRETRAINED_CHECKPOINT}"
EXPORTS = [
    path
    for place in ("*/__init__.py", "gpt/h100/__init__.py")
    for path in (BRIDGE_PACKAGE / "megatron" / "bridge" / "recipes").glob(place)
]
Row = tuple[Context, Strategy]


@pytest.fixture(scope="module")
def bridge(megatron_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    with running("bridge_start.py", tmp_path_factory.mktemp("bridge"), megatron_path) as starts:
        yield starts


ADAPTED = ("llama3-8b", "qwen2.5-0.5b", "qwen3-8b")
"""Those with a recipe of adapters that asks the hub for nothing but config.json."""


def first_plan(model: str, **training: str | int) -> Row:
    """What ``planner plan MODEL CLUSTER --emit bridge`` lists first."""
    words = {"framework": "megatron", "profile": "bridge", "precision": "bf16", **training}
    query = Query.of(model, CASES[model], global_batch=128, seq_len=4096, **words)
    plan = answer(resolve(query, fmt=BRIDGE).contexts, top=1).plans[0]
    return plan.context, plan.strategy


@pytest.fixture(scope="module")
def plans(bridge: Starts) -> Mapping[str, Row]:
    """All plans at once, while the process of Bridge imports its code."""
    return {model: first_plan(model) for model in CASES}


def recomputed(strategy: Strategy) -> Iterator[Strategy]:
    """The same with no layer recomputed, all selectively, all in full."""
    layers, none = strategy.layers_per_stage, (0,) * strategy.pp
    for selective, full in ((none, none), (layers, none), (none, layers)):
        yield replace(
            strategy,
            selective_layers_per_stage=selective,
            recompute_layers_per_stage=full,
            offloaded_layers_per_stage=(),
        )


def start_of(model: str, folder: Path, context: Context, strategy: Strategy) -> RecipeStart:
    """The emitted command, its variables filled in."""
    emitted = BRIDGE.emit(context, strategy)
    words = emitted.words
    assert words[:2] == ("${TRAIN_SCRIPT}", "--recipe")
    config = CONFIGS / f"{model}.json"
    if config.is_file():
        shutil.copy(config, folder / "config.json")
    return RecipeStart(
        recipe=words[2],
        overrides=[
            word.replace("${LEARNING_RATE}", LEARNING_RATE).replace(CHECKPOINT, str(folder))
            for word in words[3:]
        ],
        config=str(folder),
        num_gpus=strategy.num_gpus,
        environment=dict(emitted.environment),
    )


def assert_as_planned(report: dict[str, Any], context: Context, strategy: Strategy) -> None:
    assert "error" not in report, (strategy, report)
    assert {name: report[name] for name in SAME} == {name: getattr(strategy, name) for name in SAME}
    assert report["global_batch"] == context.job.global_batch
    assert report["seq_len"] == context.job.seq_len
    assert report["mtp_layers"] == context.job.mtp_layers
    assert report["learning_rate"] == float(LEARNING_RATE)
    assert report["gradient_bytes"] == context.traits.states.gradient_bytes
    if report["layers"]:
        chunks = iter(report["layers"])
        stages = zip(*[chunks] * strategy.vpp, strict=True)
        assert tuple(map(sum, stages)) == strategy.layers_per_stage
    is_full = any(strategy.recompute_layers_per_stage)
    is_selective = any(strategy.selective_layers_per_stage)
    assert report["recompute"] == ("full" if is_full else "selective" if is_selective else None)


@pytest.mark.parametrize("model", CASES)
def test_the_recipe_of_a_model_takes_its_first_plan(
    bridge: Starts, plans: Mapping[str, Row], tmp_path: Path, model: str
) -> None:
    context, planned = plans[model]
    for strategy in (planned, *recomputed(planned)):
        report = bridge.start(start_of(model, tmp_path, context, strategy))
        assert_as_planned(report, context, strategy)


def of_adapters(strategy: Strategy) -> Iterator[Strategy]:
    """The same, with one and two sequences in a micro-batch, and with sequences cut in two."""
    yield from recomputed(strategy)
    num = strategy.micro_batch * strategy.num_micro_batches
    yield replace(strategy, micro_batch=1, num_micro_batches=num)
    yield replace(strategy, micro_batch=2, num_micro_batches=num // 2)
    yield replace(strategy, micro_batch=1, cp=2, dp=strategy.dp // 2, num_micro_batches=2 * num)


@pytest.mark.parametrize("targets", ["q,k,v", "all-linear"])
@pytest.mark.parametrize("model", ADAPTED)
def test_the_recipe_of_adapters_takes_their_first_plan(
    bridge: Starts, tmp_path: Path, model: str, targets: str
) -> None:
    context, planned = first_plan(model, train="lora", lora_rank=16, lora_targets=targets)
    trained = {*context.traits.training.targets}
    for strategy in of_adapters(planned):
        report = bridge.start(start_of(model, tmp_path, context, strategy))
        assert_as_planned(report, context, strategy)
        is_packed = strategy.micro_batch == 1
        assert report["adapters"] == {
            "dim": 16,
            "target_modules": [name for name, own in NAMES.items() if trained & {*own}],
            "dropout": 0.0,
            "packed": context.job.seq_len if is_packed else None,
            "padded": (2 * strategy.cp if strategy.cp > 1 else 1) if is_packed else None,
            "checkpoint": str(tmp_path),
        }


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b"])
def test_a_precision_with_other_gradients_is_otherwise_the_named_one(
    bridge: Starts, plans: Mapping[str, Row], tmp_path: Path, model: str, precision: Precision
) -> None:
    context, strategy = plans[model]
    found = {}
    for held in (2, 4):
        states = replace(context.traits.states, gradient_bytes=held, gradient_reduce_bytes=held)
        changed = replace(
            context,
            job=replace(context.job, precision=precision),
            traits=replace(context.traits, states=states),
        )
        report = bridge.start(start_of(model, tmp_path, changed, strategy))
        assert_as_planned(report, changed, strategy)
        found[held] = report["precision"]
    assert found[2] == found[4]


@pytest.mark.parametrize("model", ["deepseek-v3", "glm-4.5-air"])
def test_a_recipe_trains_as_many_further_tokens_as_planned(
    bridge: Starts, plans: Mapping[str, Row], tmp_path: Path, model: str
) -> None:
    context, strategy = plans[model]
    assert context.job.mtp_layers == 1
    for number in (0, 2):
        changed = replace(context, job=replace(context.job, mtp_layers=number))
        report = bridge.start(start_of(model, tmp_path, changed, strategy))
        assert_as_planned(report, changed, strategy)


@pytest.mark.parametrize(
    ("model", "contradiction", "words"),
    [
        ("llama3-8b", ("model.tensor_model_parallel_size", "3"), "not divisible"),
        ("deepseek-v3", ("model.num_layers_in_last_pipeline_stage", "4"), "layout"),
        ("deepseek-v3", ("model.mtp_num_layers", "2"), "mtp"),
        ("llama3-8b", ("model.no_such_key", "1"), "no_such_key"),
    ],
)
def test_a_contradiction_is_refused(
    bridge: Starts,
    plans: Mapping[str, Row],
    tmp_path: Path,
    model: str,
    contradiction: tuple[str, str],
    words: str,
) -> None:
    start = start_of(model, tmp_path, *plans[model])
    key, value = contradiction
    others = [word for word in start.overrides if not word.startswith(f"{key}=")]
    report = bridge.start(replace(start, overrides=[*others, f"{key}={value}"]))
    assert words in report["error"], report


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v3", "gpt-oss-20b", "gpt3-175b"])
def test_what_a_training_prints_says_its_plan(
    bridge: Starts, plans: Mapping[str, Row], tmp_path: Path, model: str
) -> None:
    context, strategy = plans[model]
    report = bridge.start(start_of(model, tmp_path, context, strategy))
    dump, notes = dump_in("run.log", report["summary"].splitlines())
    assert dump is not None, notes
    said = {name: place.value for name, place in dump.reading.decisions.items()}
    neutral = dict.fromkeys(SAME[1:7], 1) | {"sequence_parallel": False, "zero_stage": 0}
    names = (*neutral, "micro_batch", "global_batch", "seq_len", "gradient_bytes")
    assert {name: (neutral | said)[name] for name in names} == {n: report[n] for n in names}
    assert said["layers_per_stage"] == strategy.layers_per_stage
    assert said["precision"] == "bf16"
    assert said["model.num_kv_heads"] == report["sizes"]["num_kv_heads"]


def test_every_recipe_that_may_be_named_is_exported(bridge: Starts) -> None:
    exported = "".join(path.read_text(encoding="utf-8") for path in EXPORTS)
    named = [row[key] for row in recipes() for key in ("recipe", "adapters") if row[key]]
    assert not [name for name in named if f'"{name}"' not in exported]


@pytest.mark.parametrize(
    ("model", "kind"),
    [*((each, "pretrain") for each in CASES), *((each, "sft") for each in ADAPTED)],
)
def test_a_recipe_has_the_sizes_and_settings_of_its_row(
    bridge: Starts, plans: Mapping[str, Row], tmp_path: Path, model: str, kind: str
) -> None:
    start = start_of(model, tmp_path, *plans[model])
    start = replace(start, recipe=start.recipe.replace("pretrain", kind))
    text = f"run_recipe.py --recipe {start.recipe} optimizer.lr=1e-5 train.train_iters=100"
    reading = BRIDGE.read(SourceText(path="a", text=text))
    said = dict.fromkeys(SAME[1:7], 1) | {"sequence_parallel": False}
    said |= {name: each.value for name, each in reading.decisions.items()}
    said["etp"] = said["etp"] if "etp" in reading.decisions else said["tp"]
    experts = said["ep"] * said["etp"] * said["pp"]
    num_gpus = math.lcm(said["tp"] * said["pp"] * said["cp"], experts)
    report = bridge.start(replace(start, overrides=["optimizer.lr=1e-5"], num_gpus=num_gpus))
    names = (*SAME[1:9], "zero_stage", "global_batch", "seq_len", "gradient_bytes")
    assert {name: said[name] for name in names} == {name: report[name] for name in names}
    sizes = {name: getattr(plans[model][0].model, name) for name in report["sizes"]}
    assert report["sizes"] == sizes

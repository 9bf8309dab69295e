"""torchtitan's own trainer on what the format writes and on the examples of its rules.

The trainer runs in one process of its own, on a fake process group of the plan's size, up to
where it would allocate the model: see torchtitan_start.py.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import contexts
import pytest
from contexts import context_of
from enumerated import enumerate_space
from rule_examples import judged, load_example
from starts import running

from planner.catalog import list_models
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Emitted
from planner.formats.torchtitan.format import FORMAT
from planner.layers.parameters import count_parameters
from planner.search.space.interleaving import default_layers
from planner.spec.strategy import (
    V_SHAPED,
    Strategy,
    split_values,
    with_policy_on_all_layers,
)

HERE = Path(__file__).resolve().parent
POLICIES = ("none", "selective", "full")
CLASSES = {"none": "NoneType", "selective": "SelectiveAC", "full": "FullAC"}
TORCH_SCHEDULES = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "zb-interleaved": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
PLANS_PER_CASE = 11
CASES = (
    # model, layers (0: all), cluster, profile, global batch, tokens
    ("llama3-8b", 8, "2xdgx-h100", "current", 64, 8192),
    ("llama3-8b", 8, "1xdgx-h100", "eager", 32, 32768),
    ("mistral-7b-v0.3", 7, "4xdgx-h100", "eager", 96, 4096),
    ("qwen3-30b-a3b", 6, "2xdgx-h100", "current", 128, 4096),
    ("mixtral-8x7b", 8, "4xdgx-h100", "current", 64, 4096),
    ("qwen3-8b", 9, "4xdgx-h100", "eager", 64, 4096),
)
PLAIN = contexts.strategy_of(dp=8, zero_stage=3, layers_per_stage=(1,))
FILLED = {
    "HF_ASSETS_PATH": "./assets",
    "DATASET": "c4",
    "STEPS": "10",
    "ROPE_THETA": "1e6",
    "ROPE_SCALING_FACTOR": "8",
    "NORM_EPS": "1e-6",
    "LEARNING_RATE": "3e-4",
}
"""What the user says."""
RELEASED = ("--parallelism.spmd_backend", "partial_dtensor")
"""Without it the torch that the profiles name starts no several processes."""
Start = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Asks the trainer's process."""
    with running("torchtitan_start.py", tmp_path_factory.mktemp("torchtitan")) as trainer:
        yield lambda words, world, path="": trainer.start(
            {"words": words, "world": world, "path": path, "environment": FILLED}
        )


@cache
def plans(case: int) -> tuple[Context, tuple[tuple[Strategy, Emitted], ...]]:
    """Expressible plans of a real space, as different from each other as their order allows."""
    name, num_layers, cluster, profile, batch, seq_len = CASES[case]
    model = replace(load_model(name), num_layers=num_layers)
    context = context_of(
        model=model,
        cluster=cluster,
        framework="torchtitan",
        profile=profile,
        global_batch=batch,
        seq_len=seq_len,
    )
    names = context.traits.support.schedules
    context = replace(context, schedules=names)
    found = list(expressible(context))
    groups: dict[tuple[Any, ...], tuple[Strategy, Emitted]] = {}
    for strategy, emitted in found:
        kind = (strategy.schedule, strategy.zero_stage, strategy.tp > 1, strategy.cp > 1)
        kind += (
            strategy.vpp > 1,
            strategy.ep > 1,
            strategy.dp_replicate > 1,
            len(set(strategy.layers_per_stage)),
        )
        groups.setdefault(kind, (strategy, emitted))
    schedules = {kind[:2]: each for kind, each in groups.items()}
    rest = [*groups.values(), *found]
    number = PLANS_PER_CASE - len(schedules)
    last = max(len(groups), PLANS_PER_CASE) - 1
    spread = [rest[index * last // (number - 1)] for index in range(number)]
    return context, (*schedules.values(), *spread)


def expressible(context: Context) -> Iterator[tuple[Strategy, Emitted]]:
    columns = enumerate_space(context).strategy
    for row in range(0, len(columns), max(1, len(columns) // 1500)):
        strategy = strategy_at(context, columns, row)
        try:
            yield strategy, FORMAT.emit(context, strategy)
        except ExpressError:
            continue


def strategy_at(context: Context, columns: Any, row: int) -> Strategy:
    pp, vpp = int(columns.pp[row]), int(columns.vpp[row])
    layers = default_layers(context.model.num_blocks, pp, vpp)
    if vpp == 1 and pp > 1 and layers[-1] > 1 and row % 2:
        layers = (layers[0] + 1, *layers[1:-1], layers[-1] - 1)
    policy = POLICIES[row % 3]
    strategy = Strategy(**columns.values(row), **split_values(layers, {}))
    return strategy if policy == "none" else with_policy_on_all_layers(strategy, policy)


def filled(emitted: Emitted) -> list[str]:
    """torchtitan's words with the user's variables filled in."""
    assert set(emitted.variables) <= set(FILLED)
    assert emitted.command[:2] == ("-m", "torchtitan.train")
    values = {f"${{{name}}}": value for name, value in FILLED.items()}
    return [values.get(word, word) for word in emitted.words[2:]]


def written(emitted: Emitted, folder: Path) -> str:
    for file in emitted.files:
        (folder / file.name).write_text(file.text)
    return str(folder)


def assert_planned(strategy: Strategy, reply: Mapping[str, Any]) -> None:
    assert "error" not in reply, reply["error"]
    shards = strategy.dp // strategy.dp_replicate
    wanted = {name: getattr(strategy, name) for name in ("dp_replicate", "cp", "tp", "pp", "ep")}
    assert reply["degrees"] == {**wanted, "dp_shard": shards}
    assert sum(reply["layers"]) == strategy.layers_per_stage[0]
    assert len(reply["layers"]) == strategy.vpp
    assert reply["micro_batches"] * reply["accumulation"] == strategy.num_micro_batches
    assert reply["policy"] == CLASSES[strategy.recompute]
    if strategy.pp > 1:
        is_interleaved = strategy.schedule == "1f1b" and strategy.vpp > 1
        name = "ScheduleInterleaved1F1B" if is_interleaved else TORCH_SCHEDULES[strategy.schedule]
        assert reply["schedule"] == name


def test_the_plans_drawn_are_many_and_of_every_kind() -> None:
    drawn = [strategy for case in range(len(CASES)) for strategy, _ in plans(case)[1]]
    assert len(drawn) >= 60
    schedules = {each.schedule for each in drawn}
    assert schedules >= {"1f1b", "zb-interleaved", *V_SHAPED}
    for name in ("tp", "cp", "pp", "ep", "vpp", "dp_replicate"):
        assert max(getattr(each, name) for each in drawn) > 1, name
    assert {each.zero_stage for each in drawn} == {2, 3}
    assert any(len(set(each.layers_per_stage)) > 1 for each in drawn)
    assert {each.recompute for each in drawn} == set(POLICIES)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_trainer_starts_every_plan_with_the_degrees_planned(
    start: Start, tmp_path: Path, case: int
) -> None:
    for number, (strategy, emitted) in enumerate(plans(case)[1]):
        folder = tmp_path / str(number)
        folder.mkdir()
        reply = start(filled(emitted), strategy.num_gpus, written(emitted, folder))
        assert_planned(strategy, reply)


def test_the_default_backend_does_not_start_on_the_torch_of_the_profiles(
    start: Start, tmp_path: Path
) -> None:
    found = chosen("llama3-8b")
    assert found
    emitted, words = found[1], filled(found[1])
    at = words.index(RELEASED[0])
    assert words[at + 1] == RELEASED[1]
    reply = start([*words[:at], *words[at + 2 :]], PLAIN.num_gpus, written(emitted, tmp_path))
    assert "DTensors on the full SPMD mesh" in reply["error"]


def chosen(name: str) -> tuple[Context, Emitted] | None:
    """A model of the catalogue with what is written for it; None where it is refused."""
    model = load_model(name)
    context = context_of(
        model=model,
        cluster="1xdgx-h100",
        framework="torchtitan",
        global_batch=8,
        seq_len=min(model.max_seq_len, 8192),
    )
    if list(FORMAT.problems(context)):
        return None
    layers = (model.num_blocks,)
    return context, FORMAT.emit(context, replace(PLAIN, layers_per_stage=layers))


def test_every_model_of_the_catalogue_that_is_written_is_built_as_it_is(
    start: Start, tmp_path: Path
) -> None:
    found = {name: each for name in list_models() if (each := chosen(name))}
    assert len(found) >= 30
    for name, (context, emitted) in found.items():
        folder = tmp_path / name
        folder.mkdir()
        reply, model = start(filled(emitted), 0, written(emitted, folder)), context.model
        assert count_parameters(model) - reply["parameters"] in (0, reply["balancing"]), name
        assert reply["is_tied"] == model.tied_embeddings, name
        assert reply["max_seq_len"] >= context.job.seq_len, name
        if len(emitted.files) > 1:
            # The model's own where the catalog has it, else what the user says.
            said = (model.rotary_base or 1e6, model.norm_eps or 1e-6)
            factor = model.rotary_factor if model.rotary_base else 8.0
            assert (reply["theta"], reply["eps"]) == said, name
            assert factor == 1 or reply["scaling"] == ["llama", factor], name


@pytest.mark.parametrize(("rule", "kind", "is_refused"), judged(FORMAT))
def test_the_trainer_judges_the_examples_as_the_rules_say(
    start: Start, rule: str, kind: str, is_refused: bool
) -> None:
    example = load_example(FORMAT, rule, kind)
    words = [*RELEASED, *shlex.split(example.path.read_text(encoding="utf-8"))]
    assert ("error" in start(words, example.world.num_gpus)) == is_refused

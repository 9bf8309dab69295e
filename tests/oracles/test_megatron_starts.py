"""What Megatron's format writes, into scripts too, and says, against Megatron-LM's own start."""

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contexts import context_of, strategy_of
from megatron_plans import CASES, SHARDED_CASES, Row, draw, draw_sharded
from megatron_start import Start
from rule_examples import judged, load_example
from script_forms import BY_HAND, ENVIRONMENTS, KINDS, SCRIPTS
from script_forms import started as run_script
from starts import Starts

from planner.cost.topology import groups_of
from planner.errors import ExpressError
from planner.formats.format import Emitted, SourceText
from planner.formats.registry import load_format
from planner.frameworks.registry import load_traits
from planner.schedules.closed_form import chunk_layers
from planner.spec.strategy import Strategy

MEGATRON = load_format("megatron")
SEEDS = range(8)
LEAST_ACCEPTED = 60
FILLED = {
    "${TRAIN_ITERS}": "100",
    "${LEARNING_RATE}": "1e-4",
    "${DATA_PATH}": "/data/text",
    "${ROTARY_BASE}": "500000",
}
SAME = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "sequence_parallel", "micro_batch")
SAME += ("num_micro_batches", "zero_stage", "dp_replicate")


SCRIPT_PLAN = KINDS["megatron"].plans[-1]
FORMS = [path for path in SCRIPTS if path.parent.name == "megatron"]
WRITTEN = [path for path in FORMS if BY_HAND not in path.read_text()]
LEFT = "--lr 1e-4 --train-iters 10 --tokenizer-type NullTokenizer --vocab-size 32000"
LEFT += " --save-interval 10"
"""What the forms leave out, and no plan says."""
FILES = {"--te-precision-config-file", "config.yaml"}  # Words about a file that a form makes up


def assert_started(report: dict[str, Any], strategy: Strategy, names: Sequence[str] = SAME) -> None:
    assert "error" not in report, (strategy, report)
    planned = {name: getattr(strategy, name) for name in names}
    assert {name: report[name] for name in names} == planned


def expressible(case: int) -> Iterator[tuple[Row, Emitted]]:
    for seed in SEEDS:
        row = draw(seed, case)
        try:
            yield row, MEGATRON.emit(*row)
        except ExpressError:
            continue


def started(megatron: Starts, emitted: Emitted, num_gpus: int) -> dict[str, Any]:
    words = [FILLED.get(word, word) for word in emitted.words[1:]]
    environment = dict(emitted.environment)
    return megatron.start(Start(words=words, num_gpus=num_gpus, environment=environment))


accepted: list[str] = []


@pytest.mark.parametrize("case", range(len(CASES)), ids=["-".join(map(str, c)) for c in CASES])
def test_megatron_starts_every_emitted_plan_as_planned(megatron: Starts, case: int) -> None:
    for (context, strategy), emitted in expressible(case):
        report = started(megatron, emitted, strategy.num_gpus)
        assert_started(report, strategy)
        assert report["global_batch"] == context.job.global_batch
        assert report["seq_len"] == context.job.seq_len
        if report["layers"]:
            chunks = chunk_layers(strategy.layers_per_stage, strategy.vpp)
            stages = range(strategy.pp)
            assert report["layers"] == [n for i in stages for n in chunks[i :: strategy.pp]]
        accepted.append(emitted.files[0].text)


@pytest.mark.parametrize("case", SHARDED_CASES)
def test_megatron_starts_fully_sharded_plans_with_their_mesh(megatron: Starts, case: int) -> None:
    stages = set()
    for seed in range(5):
        context, strategy = draw_sharded(seed, case)
        try:
            emitted = MEGATRON.emit(context, strategy)
        except ExpressError:
            continue
        report = started(megatron, emitted, strategy.num_gpus)
        assert_started(report, strategy)
        stages.add(strategy.zero_stage)
    assert stages


@pytest.mark.parametrize(
    ("case", "shape", "cut", "experts"),
    [
        (0, {"tp": 2, "dp": 4}, 4, 1),
        (0, {"tp": 2, "cp": 2, "dp": 2}, 2, 1),
        (3, {"tp": 2, "dp": 32, "ep": 8, "etp": 1}, 8, 4),
    ],
)
def test_weights_are_cut_over_the_nearest_ranks(
    megatron: Starts, case: int, shape: dict[str, int], cut: int, experts: int
) -> None:
    settings = ("states.weight_shards", cut), ("states.expert_weight_shards", experts)
    context = replace(draw(0, case)[0], traits=load_traits("megatron", "current", settings))
    layers, batch = (context.model.num_layers,), context.job.global_batch // shape["dp"]
    plan = strategy_of(
        **shape, num_micro_batches=batch, sequence_parallel=True, layers_per_stage=layers
    )
    report = started(megatron, MEGATRON.emit(context, plan), plan.num_gpus)
    assert_started(report, plan)
    assert report["cut"] == list(groups_of("dp_shard_cp", plan, 0)[0][:cut])
    assert report["experts_cut"] == list(groups_of("expert_dp_shard_cp", plan, 0)[0][:experts])


def test_enough_different_plans_were_accepted() -> None:
    assert len(set(accepted)) >= LEAST_ACCEPTED, len(set(accepted))


def test_the_args_file_holds_the_words_of_the_command() -> None:
    for _, emitted in expressible(0):
        words = shlex.split(emitted.files[0].text)
        assert list(emitted.words[-len(words) :]) == words
        piped = subprocess.run(
            ["xargs", "printf", "%s\\n"],
            input=emitted.files[0].text,
            capture_output=True,
            text=True,
            check=True,
        )
        assert piped.stdout.splitlines() == words


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_megatron_starts_what_a_script_hands_on(
    megatron: Starts, path: Path, tmp_path: Path
) -> None:
    source = SourceText(path="train.sh", text=path.read_bytes().decode())
    strategy, environment = strategy_of(**SCRIPT_PLAN), {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    text = MEGATRON.write_into(source, context_of(), strategy)
    launches = [words for each in ENVIRONMENTS for words in run_script(text, tmp_path, each)]
    for launch in {tuple(words) for words in launches}:
        at = next(at for at, word in enumerate(launch) if word.endswith(".py"))
        if launch[at].startswith("tools/"):
            continue
        words = [*(word for word in launch[at + 1 :] if word not in FILES), *LEFT.split()]
        start = Start(words=words, num_gpus=strategy.num_gpus, environment=environment)
        assert_started(megatron.start(start), strategy, ("dp", "tp", "pp", "num_micro_batches"))


def example_start(name: str, kind: str) -> Start:
    example = load_example(MEGATRON, name, kind)
    text = example.path.read_text(encoding="utf-8")
    if example.path.suffix == ".sh":
        text = text.partition("(\n")[2].partition("\n)")[0]
    settings = example.reading.settings
    names = ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1")
    own = {each: str(settings[each].value) for each in names if each in settings}
    environment = {**example.world.environment, **own}
    return Start(words=shlex.split(text), num_gpus=example.world.num_gpus, environment=environment)


@pytest.mark.parametrize(("rule", "kind", "is_refused"), judged(MEGATRON))
def test_megatron_judges_the_examples_as_the_rules_say(
    megatron: Starts, rule: str, kind: str, is_refused: bool
) -> None:
    report = megatron.start(example_start(rule, kind))
    assert ("error" in report) == is_refused, report


def test_blackwell_starts_without_the_variable_hopper_needs(megatron: Starts) -> None:
    case = example_start("connections_keep_order", "refused")
    free = Start(words=case.words, num_gpus=case.num_gpus, generation="blackwell")
    assert "error" not in megatron.start(free)

"""Megatron-Bridge's overrides, translated to Megatron's options, against Megatron's own start."""

from collections.abc import Mapping

import pytest
from megatron_plans import CASES, context_of, draw
from megatron_start import Start
from rule_examples import judged, load_example
from starts import Starts

from planner.errors import ExpressError
from planner.formats.bridge.mapping import as_options
from planner.formats.format import Located, SourceText
from planner.formats.megatron.model import shape_choices, shape_reasons
from planner.formats.megatron.options import words_of
from planner.formats.registry import load_format

BRIDGE = load_format("bridge")
BUILDABLE = [case for case in range(len(CASES)) if not list(shape_reasons(context_of(case)))]
SAME = ("dp", "tp", "pp", "cp", "ep", "etp", "vpp", "sequence_parallel", "micro_batch")
SAME += ("zero_stage",)
LEAST_STARTED = 15
started: list[str] = []
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
SHAPE = ["--max-position-embeddings", "4096", "--swiglu", "--disable-bias-linear"]
SHAPE += ["--position-embedding-type", "rope"]


def megatron_words(settings: Mapping[str, Located]) -> list[str]:
    words: list[str] = []
    for option, value in as_options(settings).items():
        given = value.value
        if given is None:
            continue
        values = given if isinstance(given, tuple) else () if given is True else (given,)
        words += [option, *map(str, values)]
    return words


def queues(words: list[str]) -> dict[str, str]:
    """Megatron-FSDP refuses what tensor parallelism before Blackwell needs."""
    return {} if "--use-megatron-fsdp" in words else ONE_QUEUE


@pytest.mark.parametrize("case", BUILDABLE, ids=lambda case: CASES[case][0])
def test_megatron_starts_every_emitted_plan_as_planned(megatron: Starts, case: int) -> None:
    for seed in range(3):
        context, strategy = draw(seed, case)
        try:
            text = BRIDGE.emit(context, strategy).files[0].text
        except ExpressError:
            continue
        settings = BRIDGE.read(SourceText(path="file", text=text)).settings
        shape = [w for line in shape_choices(context) for w in words_of(line.key, line.value)]
        words = shape + megatron_words(settings)
        if context.model.moe:
            words += ["--moe-token-dispatcher-type", "alltoall"]
        start = Start(words=words, num_gpus=strategy.num_gpus, environment=queues(words))
        report = megatron.start(start)
        assert "error" not in report, (strategy, report)
        assert {name: report[name] for name in SAME} == {
            name: getattr(strategy, name) for name in SAME
        }
        started.append(text)


def test_enough_different_plans_were_started() -> None:
    assert len(set(started)) >= LEAST_STARTED, len(set(started))


def example_start(name: str, kind: str) -> Start:
    example = load_example(BRIDGE, name, kind)
    words = [*SHAPE, *megatron_words(example.reading.settings)]
    if example.world.decisions.get("model.num_experts"):
        words += ["--moe-token-dispatcher-type", "alltoall"]
    return Start(words=words, num_gpus=example.world.num_gpus, environment=queues(words))


@pytest.mark.parametrize(("rule", "kind", "is_refused"), judged(BRIDGE))
def test_megatron_judges_the_examples_as_the_rules_say(
    megatron: Starts, rule: str, kind: str, is_refused: bool
) -> None:
    report = megatron.start(example_start(rule, kind))
    assert ("error" in report) == is_refused, report

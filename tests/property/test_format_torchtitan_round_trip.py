"""torchtitan's words: read gives back what emit wrote; the user's words stay."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
from contexts import context_of
from depth import of_all
from enumerated import enumerate_space
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.torchtitan.format import FORMAT
from planner.search.space.interleaving import default_layers
from planner.spec.strategy import (
    FIELD_DEFAULTS,
    Strategy,
    StrategyColumns,
    split_values,
    with_policy_on_all_layers,
)

NAMES = ("model", "cluster", "profile", "global_batch", "seq_len")
CASES = (
    ("llama3-8b", "2xdgx-h100", "current", 64, 8192),
    ("llama3-8b", "1xdgx-h100", "eager", 32, 32768),
    ("qwen3-30b-a3b", "2xdgx-h100", "current", 128, 4096),
    ("qwen3-8b", "4xdgx-h100", "current", 64, 4096),
    ("mixtral-8x7b", "2xdgx-h100", "eager", 64, 4096),
    ("deepseek-v3", "16xdgx-h100", "current", 256, 4096),
)
SCHEDULES_SEARCHED = ("1f1b", "gpipe", "zb-interleaved", "zb-v", "dualpipe-v")
DECIDED = (
    *("tp", "pp", "vpp", "cp", "ep", "dp", "dp_replicate", "zero_stage", "micro_batch"),
    *("num_gpus", "num_micro_batches", "sequence_parallel", "schedule", "layers_per_stage"),
    *("selective_layers_per_stage", "recompute_layers_per_stage", "offload"),
)


@cache
def expressible(case: int) -> tuple[Context, tuple[Strategy, ...]]:
    context = context_of(framework="torchtitan", **dict(zip(NAMES, CASES[case], strict=True)))
    context = replace(context, schedules=SCHEDULES_SEARCHED)
    return context, tuple(islice(_strategies(context), of_all(400)))


def _strategies(context: Context) -> Iterator[Strategy]:
    columns = enumerate_space(context).strategy
    step = max(1, len(columns) // of_all(900))
    for row in range(0, len(columns), step):
        strategy = _strategy(context, columns, row)
        with suppress(ExpressError):
            FORMAT.emit(context, strategy)
            yield strategy


def _strategy(context: Context, columns: StrategyColumns, row: int) -> Strategy:
    pp, vpp = int(columns.pp[row]), int(columns.vpp[row])
    layers = default_layers(context.model.num_blocks, pp, vpp)
    if vpp == 1 and pp > 1 and layers[-1] > 1 and row % 2:
        layers = (layers[0] + 1, *layers[1:-1], layers[-1] - 1)
    policy = ("none", "selective", "full")[row % 3]
    strategy = Strategy(**columns.values(row), **split_values(layers, {}))
    return with_policy_on_all_layers(strategy, policy) if row % 3 else strategy


def source(text: str) -> SourceText:
    return SourceText(path="torchtitan.args", text=text)


def assert_decides(text: str, context: Context, strategy: Strategy) -> None:
    found = FORMAT.read(source(text)).decisions
    for name in DECIDED:
        value = found[name].value if name in found else FIELD_DEFAULTS[name]
        assert value == getattr(strategy, name), name
    etp = found["etp"].value if "etp" in found else strategy.tp
    assert etp == strategy.etp
    for name in ("global_batch", "seq_len", "precision"):
        assert found[name].value == getattr(context.job, name), name
    assert found["optimizer"].value == context.traits.optimizer.name


@pytest.mark.parametrize("case", range(len(CASES)))
def test_read_gives_back_every_strategy_that_emit_writes(case: int) -> None:
    context, strategies = expressible(case)
    assert len(strategies) >= 20
    for strategy in strategies:
        emitted = FORMAT.emit(context, strategy)
        assert not FORMAT.read(source(emitted.files[0].text)).findings
        assert_decides(emitted.files[0].text, context, strategy)


FOREIGN = (
    "--metrics.log_freq 3",
    "--checkpoint.folder 'my runs'",
    "--dataloader.num_workers=2",
    "--profiler.no-enable_profiling",
    "--debug.seed ${SEED:-7}",
)
OURS = (
    "--parallelism.tensor-parallel-degree 4",
    "--parallelism.pipeline_parallel_degree=${PP:-2}",
    "--training.local_batch_size 3",
    "--parallelism.module_fqns_per_model_part a,b c,d",
    "--parallelism.pipeline_parallel_layers_per_stage 3",
    "--compile.enable",
)


@st.composite
def files(draw: st.DrawFn) -> str:
    lines = draw(st.permutations((*FOREIGN, *draw(st.lists(st.sampled_from(OURS), unique=True)))))
    policy = draw(st.sampled_from(("", "activation-checkpoint:full", "activation_checkpoint:none")))
    words = ["--module llama3 --config llama3_8b", *lines, *([policy] if policy else [])]
    form = draw(st.sampled_from(("args", "script", "line")))
    if form == "script":
        launch = "torchrun --nnodes 2 --nproc_per_node 1 -m torchtitan.train"
        body = " \\\n  ".join((launch, *words))
        return f"#!/bin/bash\nset -e # it's mine\nexport A=1\n{body}\necho done\n"
    return ("# mine\n" + "\n".join(words) + "\n") if form == "args" else " ".join(words)


@settings(max_examples=60)
@given(text=files(), index=st.integers(0, 10_000))
def test_write_into_decides_the_strategy_and_keeps_foreign_words(text: str, index: int) -> None:
    context, strategies = expressible(0)
    strategy = strategies[index % len(strategies)]
    written = FORMAT.write_into(source(text), context, strategy)
    assert_decides(written, context, strategy)
    places = [written.index(line) for line in FOREIGN]
    before = [text.index(line) for line in FOREIGN]
    assert sorted(range(5), key=places.__getitem__) == sorted(range(5), key=before.__getitem__)
    for comment in ("# mine", "# it's mine", "echo done", "export A=1"):
        assert (comment in written) == (comment in text)
    assert FORMAT.write_into(source(written), context, strategy) == written

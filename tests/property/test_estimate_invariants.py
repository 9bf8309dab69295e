"""What must hold for every strategy of every space: sums, monotony, bounds, columns = rows."""

from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from contexts import context_of, small_model
from depth import of_all
from enumerated import enumerate_space
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.even import even_estimate
from planner.answers.layout import fill_in, requested
from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.flops import model_flops_per_iteration
from planner.cost.kernels import sustained_flops_per_s
from planner.cost.layer import layer_shape
from planner.cost.ledger import stage_ledger
from planner.cost.stage import FULL, OFFLOADED, SELECTIVE, PolicyCosts, StageModel
from planner.cost.stage_model import price, stage_model
from planner.cost.states import shard_degree, state_bytes
from planner.layers.block import layer_groups
from planner.layers.parameters import count_parameters, layer_kind
from planner.spec.model import (
    IndexerSpec,
    MixerKind,
    MixerSpec,
    MlaSpec,
    ModelSpec,
    MoeSpec,
    SecondAttentionSpec,
)
from planner.spec.strategy import POLICIES, Strategy, StrategyColumns, split_values

OLD = {"cluster": "2xdgx-1-v100", "seq_len": 512}
SITUATIONS: tuple[dict[str, object], ...] = (
    {"model": "llama3-8b", "framework": "torchtitan", "seq_len": 8192, "global_batch": 32},
    {"model": "mixtral-8x7b", "cluster": "4xdgx-h100", "seq_len": 4096, "global_batch": 64},
    {"model": "deepseek-v2-lite", "cluster": "2xdgx-h100", "seq_len": 32768},
    {"model": "gpt2-xl", "framework": "deepspeed", "cluster": "2xdgx-a100-640"},
    {"model": "korthikanti-22b", "profile": "classic", "cluster": "1xdgx-a100-640"},
    {"model": "bert-large", "framework": "accelerate", "precision": "fp16"} | OLD,
    {"model": "t5-11b", "framework": "deepspeed", "profile": "megatron", "seq_len": 512},
    {"model": "gpt3-13b", "profile": "bridge", "cluster": "4xdgx-h100", "seq_len": 2048},
)
EXAMPLES = settings(max_examples=of_all(40), derandomize=True)


@dataclass(frozen=True)
class Pick:
    """One situation, one of its legal strategies, one split of its layers; by seed."""

    situation: int
    seed: int

    def context(self) -> Context:
        return context_of(**SITUATIONS[self.situation])


PICKS = st.builds(
    Pick, situation=st.sampled_from(range(len(SITUATIONS))), seed=st.integers(0, 2**32 - 1)
)


@cache
def _space(situation: int) -> StrategyColumns:
    return enumerate_space(context_of(**SITUATIONS[situation])).strategy


def strategy_for(pick: Pick) -> Strategy:
    random = np.random.default_rng(pick.seed)
    columns = _space(pick.situation)
    row = int(random.integers(len(columns)))
    num_layers = pick.context().model.num_blocks
    num_stages = int(columns.pp[row])
    if columns.vpp[row] > 1:
        layers = np.full(num_stages, num_layers // num_stages)
    else:
        cuts = np.sort(random.choice(np.arange(1, num_layers), num_stages - 1, replace=False))
        layers = np.diff([0, *cuts, num_layers])
    full = np.array([random.integers(n + 1) for n in layers]) * random.integers(2)
    selective = np.array([random.integers(n + 1) for n in layers - full]) * random.integers(2)
    under = dict(zip(POLICIES, [selective, full, np.zeros_like(full)], strict=True))
    return Strategy(**columns.values(row) | split_values(layers, under))


RECOMPUTED = ("selective_layers_per_stage", "recompute_layers_per_stage")
TAIL = ("data_parallel", "offload.gradients", "gradient_passes", "optimizer_step")
"""Items of the stage with the longest tail, which need not be the slowest."""


def time_and_peak(context: Context, strategy: Strategy) -> tuple[float, np.ndarray]:
    subject = price(context, strategy)
    seconds = float(subject.model.iteration_s(*subject.split)[0])
    return seconds, subject.model.peak_bytes(*subject.split)[0]


@EXAMPLES
@given(pick=PICKS)
def test_items_of_the_estimate_add_up(pick: Pick) -> None:
    strategy = strategy_for(pick)
    result: Estimate = estimate(pick.context(), strategy)
    exposed = sum(item.exposed_s for item in result.time.values())
    assert exposed == pytest.approx(result.iter_time_s, rel=1e-9)
    for name, item in result.time.items():
        assert item.exposed_s >= -1e-12 * result.iter_time_s, name
        if name not in {"pipeline.bubble", "synchronisation", "offload.parameters"}:
            assert item.exposed_s <= item.busy_s * (1 + 1e-9) + 1e-12 * result.iter_time_s, name
    memory = result.memory
    assert sum(memory.items.values()) == pytest.approx(memory.peak_bytes, rel=1e-9)
    assert all(value > 0 for value in memory.items.values())
    assert memory.peak_bytes == max(memory.stage_peak_bytes)
    assert len(memory.stage_peak_bytes) == strategy.pp
    assert memory.fits or memory.peak_bytes > memory.usable_bytes or memory.host_bytes > 0
    # Items of the whole pipeline too.
    whole = result.pipeline_time
    assert sum(item.exposed_s for item in whole.values()) == pytest.approx(result.iter_time_s)
    stages = [result.stage_time(stage) for stage in range(strategy.pp)]
    for name in {name for stage in stages for name in stage}:
        mean = sum(stage[name].exposed_s for stage in stages if name in stage) / strategy.pp
        least = 1e-9 * result.iter_time_s
        found = whole[name].exposed_s if name in whole else 0.0
        assert found == pytest.approx(mean, rel=1e-9, abs=least), name
    own = ("pipeline.bubble", "synchronisation", "tied_embedding", "step_overhead")
    for name, item in stages[result.slowest_stage].items():
        if name in result.time and name not in (*own, *TAIL):
            assert result.time[name].exposed_s == pytest.approx(item.exposed_s), name


@EXAMPLES
@given(pick=PICKS)
def test_the_estimate_lies_between_all_and_no_overlap_and_beats_no_roofline(pick: Pick) -> None:
    context, strategy = pick.context(), strategy_for(pick)
    result = estimate(context, strategy)
    assert result.iter_time_s_overlapped <= result.iter_time_s * (1 + 1e-12)
    assert result.iter_time_s <= result.iter_time_s_serial * (1 + 1e-12)
    # Model FLOPs count what a causal kernel has to compute, and no more.
    rate = sustained_flops_per_s(context.cluster.accelerator, context.job.precision)
    assert result.iter_time_s >= result.model_flops / (rate * strategy.num_gpus)


@EXAMPLES
@given(pick=PICKS, stage=st.floats(0, 1, exclude_max=True), policy=st.sampled_from(RECOMPUTED))
def test_more_recomputation_never_saves_time_and_never_takes_memory(
    pick: Pick, stage: float, policy: str
) -> None:
    """One layer that kept everything recomputes instead.

    Not where a model has layers of several kinds: the workspace is that of the largest layer, even
    where a smaller one is the first to recompute, which then may cost more than it saves.
    """
    context, strategy = pick.context(), strategy_for(pick)
    moe = context.model.moe
    has_dense_layers = moe and (moe.num_leading_dense_layers or moe.moe_layer_step > 1)
    if context.model.num_decoder_layers or has_dense_layers:
        return
    index = int(stage * strategy.pp)
    counts = {name: list(getattr(strategy, name)) for name in RECOMPUTED}
    if sum(each[index] for each in counts.values()) == strategy.layers_per_stage[index]:
        return
    counts[policy][index] += 1
    more = replace(strategy, **{name: tuple(each) for name, each in counts.items()})
    (before_s, before), (after_s, after) = (time_and_peak(context, s) for s in (strategy, more))
    assert after_s >= before_s * (1 - 1e-12)
    assert (after <= before * (1 + 1e-12)).all()


@EXAMPLES
@given(pick=PICKS, dp=st.integers(1, 512))
def test_more_shards_and_higher_stages_never_add_bytes(pick: Pick, dp: int) -> None:
    traits = pick.context().traits
    offered = sorted(traits.support.zero_stages)
    strategy = strategy_for(pick)

    def device(stage: int, num_shards: int) -> float:
        num_ranks = num_shards * strategy.dp_replicate
        columns = replace(strategy, zero_stage=stage, dp=num_ranks, pp=1).columns()
        states = state_bytes(columns, traits.states, shard_degree(columns))
        return float((states.device + states.host)[0])

    for stage in offered:
        assert device(stage, dp + 1) <= device(stage, dp)
    for lower, higher in pairwise(offered):
        # A framework may keep one more sharded copy (DeepSpeed, 4 bytes): it pays from 2 ranks on
        # once the shards of what was whole outweigh it.
        extra = traits.states.sharded_gradient_bytes / dp if lower == 0 else 0.0
        assert device(higher, dp) <= device(lower, dp) + extra


@EXAMPLES
@given(pick=PICKS)
def test_columns_are_evaluated_exactly_as_single_rows(pick: Pick) -> None:
    context = pick.context()
    columns = _space(pick.situation)
    rows = np.random.default_rng(pick.seed).integers(len(columns), size=6)
    together = stage_model(context, columns.take(rows))
    for position, row in enumerate(rows):
        alone = stage_model(context, columns.take(np.array([row])))
        one = together.take(np.array([position]))
        for left, right in ((one, alone), (one.policies, alone.policies)):
            for field in fields(left):
                values = getattr(left, field.name), getattr(right, field.name)
                if not isinstance(values[0], PolicyCosts | StrategyColumns):
                    assert np.array_equal(*values), field.name


@EXAMPLES
@given(pick=PICKS)
def test_the_even_estimate_equals_the_full_stage_matrices(pick: Pick) -> None:
    """Layers divided evenly, the remainder on the last stages, nothing recomputed."""
    context = pick.context()
    num_layers = context.model.num_blocks
    columns = _space(pick.situation)
    rows = np.random.default_rng(pick.seed).integers(len(columns), size=6)
    model = stage_model(context, columns.take(rows))
    even = even_estimate(model, num_layers)
    for position, row in enumerate(rows):
        fewest, larger = divmod(num_layers, int(columns.pp[row]))
        smaller = int(columns.pp[row]) - larger
        layers = np.array([[float(fewest)] * smaller + [fewest + 1.0] * larger])
        one = model.take(np.array([position]))
        expected_s = one.iteration_s(layers)[0]
        assert even.iteration_s[position] == pytest.approx(expected_s, rel=1e-12)
        peak = one.peak_bytes(layers).max()
        assert even.peak_bytes[position] == pytest.approx(peak, rel=1e-12)
        if abs(peak / one.usable_bytes - 1) > 1e-9:
            assert even.fits[position] == one.fits(layers)[0]


@EXAMPLES
@given(pick=PICKS)
def test_every_coefficient_is_a_number_and_no_layer_is_free(pick: Pick) -> None:
    columns = strategy_for(pick).columns()
    model = stage_model(pick.context(), columns)
    for field in fields(StageModel):
        value = getattr(model, field.name)
        if isinstance(value, np.ndarray):
            assert value.shape[-1] == 1, field.name
            assert not np.isnan(value).any(), field.name
            if not field.name.startswith(("tail", "lead", "first_static", "first_host")):
                assert (value >= 0).all(), field.name
    assert model.layer_s > 0
    policies = model.policies
    for value in (getattr(policies, field.name) for field in fields(policies)):
        assert value.shape == (len(POLICIES), 1)
        assert not np.isnan(value).any()
    assert policies.added_s[FULL] > 0
    assert (policies.added_s >= 0).all()
    assert model.saved_bytes >= policies.saved_bytes[SELECTIVE] > policies.saved_bytes[FULL] > 0
    assert policies.saved_bytes[OFFLOADED] in (0, model.saved_bytes[0])


INDEXER = IndexerSpec(num_heads=4, head_dim=32, top_k=256)
MIXTURE = MoeSpec(num_experts=8, top_k=2, expert_ffn_size=512, num_zero_experts=4)
POOLED = MlaSpec(
    q_lora_rank=256,
    kv_lora_rank=64,
    v_head_dim=64,
    indexer=INDEXER,
    qk_nope_head_dim=64,
    qk_rope_head_dim=0,
    chosen_ratio=4,
    pooled_ratio=16,
    output_groups=4,
    output_rank=64,
)


@st.composite
def patterned(draw: st.DrawFn) -> ModelSpec:
    """A small model of any kinds of layers, in any order."""
    is_pooled, kind = draw(st.booleans()), draw(st.sampled_from(get_args(MixerKind)))
    pattern = draw(st.text("WCH" if is_pooled else "FSLPMED*-", min_size=1, max_size=9))
    sizes = {"num_heads": 16, "head_dim": 64, "num_key_heads": 4, "key_dim": 16}
    return small_model(
        num_layers=len(pattern),
        layer_pattern=pattern,
        sliding_window=128,
        moe=replace(MIXTURE, moe_layer_step=draw(st.integers(1, 2))),
        mla=POOLED if is_pooled else None,
        mixer=MixerSpec(kind=kind, time_rank=8 * (kind == "mamba1"), **sizes),
        second_attention=SecondAttentionSpec(
            num_kv_heads=4, indexer=draw(st.sampled_from([None, INDEXER]))
        ),
        num_streams=draw(st.sampled_from([1, 4])),
    )


@EXAMPLES
@given(model=patterned())
def test_totals_of_any_pattern_are_those_of_a_plain_loop(model: ModelSpec) -> None:
    subject = price(*fill_in(context_of(model=model), requested()))
    ledger = stage_ledger(subject, 0)
    (peak,) = subject.model.peak_bytes(*subject.split)[0]
    assert sum(item.num_bytes for item in ledger.items) == pytest.approx(peak)
    job, traits = subject.context.job, subject.context.traits
    shape = layer_shape(subject.columns, job)
    groups = {group.name: group.ops for group in layer_groups(model, shape, traits)}
    ops = [op for n in range(model.num_layers) for op in groups[layer_kind(model, n)]]
    ends = 2 * (model.vocab_size + 1) * model.hidden_size  # a norm has gain and shift
    assert sum(op.params.item() for op in ops) + ends == count_parameters(model)
    kept = [
        item.num_bytes
        for item in ledger.items
        if item.name.startswith("activations.") and "embedding" not in item.name
    ]
    assert sum(kept) == pytest.approx(sum(op.saved_bytes.item() for op in ops))
    products = sum(gemm.flops.item() for op in ops for gemm in op.gemms if gemm.has_weight)
    scans = [op.attention for op in ops if op.name == "mixer"]
    products += sum(scan.flops.item() for scan in scans if scan)
    products += 2 * model.vocab_size * model.hidden_size * job.seq_len
    flops = model_flops_per_iteration(model, job, traits).products
    assert flops == pytest.approx(3 * products * job.global_batch)

"""The stage model and the estimate built on it, on small models and hand-worked relations."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of, context_of, small_model, strategy_of

from planner.cost.buffers import communicator_bytes
from planner.cost.data_parallel import data_parallel_costs
from planner.cost.estimate import estimate
from planner.cost.flops import model_flops_per_iteration
from planner.cost.stage import FULL, SELECTIVE
from planner.cost.stage_model import stage_model
from planner.cost.stage_parts import stage_parameters
from planner.cost.states import offloads
from planner.cost.topology import group_of
from planner.spec.strategy import OFFLOAD_CODES


def rows(*values: float) -> np.ndarray:
    return np.array([values], dtype=float)


def counts_of(*full: float) -> np.ndarray:
    """Layers of stages under every policy, of which only full recomputation has any."""
    return np.stack([0.0 * rows(*full), rows(*full), 0.0 * rows(*full)])


def test_full_recomputation_costs_one_more_forward_selective_a_few_percent() -> None:
    # Forward : backward is about 1 : 2, so full recomputation adds about a third of a layer.
    context = context_of(model="gpt3-175b", cluster="16xdgx-h100", seq_len=2048)
    model = stage_model(context, columns_of(pp=16, num_micro_batches=16))
    assert 0.29 < float(model.policies.added_s[FULL, 0] / model.layer_s[0]) < 0.37
    # arXiv 2205.05198, table 4: 22B model, selective recomputation adds 4-7 % (7 % of forward).
    names = {"model": "korthikanti-22b", "profile": "classic", "cluster": "1xdgx-a100-640"}
    columns = columns_of(num_micro_batches=16, tp=8, micro_batch=4, sequence_parallel=1)
    model = stage_model(context_of(**names, seq_len=2048), columns)
    share = model.policies.added_s[:, 0] / model.layer_s[0]
    assert 0.01 < float(share[SELECTIVE]) < 0.12
    assert 0.25 < float(share[FULL]) < 0.45


def test_stage_memory_by_hand() -> None:
    # tp 1, pp 1, no dp, 4 layers of h 1024, s 1024, ffn 4096, flash, no dropout:
    # params per layer 12h² + 13h (biases 3h + h + 4h + h, two norms of 2h); 18 bytes each.
    # Embedding and head (untied) V·h each, padded 32000 -> 32000; final norm 2h.
    # Saved per token and layer: 32h + 4·16 heads (log-sum-exp); one micro-batch in flight.
    # Last: logits 2·V, final norm 4h and its output's gradient 2h per token, beside a layer's
    # backward: the larger.
    context = context_of()
    model = stage_model(context, columns_of(num_micro_batches=16))
    h, tokens, vocab = 1024, 1024, 32000
    # Transformer Engine keeps one bf16 gradient per distinct weight: 12h² of a layer, the head.
    static = 18 * (4 * (12 * h**2 + 13 * h) + 2 * vocab * h + 2 * h)
    static += 2 * (12 * h**2 + vocab * h)
    saved = 4 * tokens * (32 * h + 4 * 16)
    transient = tokens * (2 * vocab + 6 * h)
    allocated = model.held_bytes(rows(4), counts_of(0))
    assert float(allocated[0, 0]) == pytest.approx(static + saved + transient + 6.7e7, rel=1e-12)
    # Megatron: 5 % fragmentation, 1e9 context, no communicator.
    peak = float(model.peak_bytes(rows(4), counts_of(0))[0, 0])
    assert peak == pytest.approx(1.05 * float(allocated[0, 0]) + 1e9)
    # It fits up to the last byte.
    for usable_bytes, fits in ((peak * (1 + 1e-12), True), (peak * (1 - 1e-9), False)):
        assert replace(model, usable_bytes=usable_bytes).fits(rows(4), counts_of(0))[0] == fits
    # Recomputing flash attention drops only its log-sum-exp, 4 bytes of 16 heads.
    assert model.policies.added_s[SELECTIVE, 0] > 0
    assert model.saved_bytes[0] - model.policies.saved_bytes[SELECTIVE, 0] == tokens * 16 * 4
    # A margin is taken off the device's memory.
    context = replace(context_of(hbm_bytes=80e9), margin_fraction=0.1)
    assert stage_model(context, columns_of()).usable_bytes == pytest.approx(72e9)


def test_communicators_are_counted_per_group_of_more_than_one() -> None:
    columns = columns_of(dp=[1, 2, 2, 2], tp=[1, 1, 4, 4], pp=[1, 1, 1, 2])
    extra = communicator_bytes(context_of(), columns)
    assert extra.tolist() == pytest.approx([0, 6e8, 12e8, 18e8])


def test_iteration_time_is_makespan_tail_and_constant() -> None:
    model = stage_model(context_of(), columns_of(pp=2, dp=2, num_micro_batches=8))
    args = (rows(3, 1), counts_of(1, 0))
    first, last = model.time_s(*args)[0].tolist()
    # 1F1B with stages T1 > T2: 7 T1 + T1 + T2.
    expected = 8 * max(first, last) + min(first, last)
    tails = (3 * model.tail_layer_s + model.tail_first_s, model.tail_layer_s + model.tail_last_s)
    total = float(model.iteration_s(*args)[0])
    assert total == pytest.approx(expected + np.max(tails) + float(model.constant_s[0]))


def test_host_memory_limits_offloaded_states() -> None:
    context = context_of(framework="deepspeed")
    columns = columns_of(dp=8, zero_stage=1, offload=[0, OFFLOAD_CODES.index("optimizer:host")])
    assert offloads(columns, "optimizer").tolist() == [0.0, 1.0]
    model = stage_model(context, columns)
    # 90 % of the node's memory over its 8 GPUs.
    limit = 0.9 * context.cluster.node.host_memory_bytes / 8
    assert model.host_limit_bytes.tolist() == pytest.approx([limit, limit])
    # 20 bytes (12, fp32 gradients, staging of weights and gradients) per parameter over 8 ranks.
    h, vocab = 1024, 32000
    params = 4 * (12 * h**2 + 13 * h) + 2 * vocab * h + 2 * h
    host = model.host_bytes(np.array([[4.0], [4.0]]))[:, 0]
    assert host.tolist() == pytest.approx([0.0, 20 / 8 * params])
    # Who offloads nothing needs no host memory at all.
    poor = replace(model, host_limit_bytes=np.array([0.0, host[1] * 0.99]))
    assert poor.fits(np.array([[4.0], [4.0]])).tolist() == [True, False]


def test_zero_changes_what_is_reduced_and_gathered_and_when() -> None:
    context = context_of(framework="deepspeed")
    columns = columns_of(dp=8, zero_stage=[0, 1, 2, 3])
    params = np.full(4, 1e9)
    group = group_of("dp_shard", columns, context.cluster)
    costs = data_parallel_costs(context, columns, group, params, params)
    assert (costs.reduce > 0).tolist() == [True, True, False, False]
    assert (costs.gather > 0).tolist() == [False, True, True, False]
    assert (costs.layer_forward > 0).tolist() == [False, False, False, True]
    # Stage 2 reduces in every micro-batch; stage 3 gathers once more besides.
    assert costs.layer_backward[3] > costs.layer_backward[2] > 0
    assert costs.layer_backward[:2].tolist() == [0.0, 0.0]
    # One replica reduces nothing.
    parts = stage_parameters(context, columns_of(zero_stage=[0, 1, 2, 3]))
    for name in ("reduce", "gather", "layer_forward", "layer_backward"):
        assert (getattr(parts.dp, name) == 0).all()


def test_experts_are_reduced_and_updated_over_dp_over_ep_only() -> None:
    # Mixtral, dp 8: at ep 8 every rank holds its own expert, which nobody else has: its gradients
    # are not reduced, and all of its optimizer states are its own; memory says 12 bytes, too.
    context = context_of(model="mixtral-8x7b", cluster="4xdgx-h100", global_batch=64)
    parts = stage_parameters(context, columns_of(dp=8, ep=[1, 8], pp=4, zero_stage=1))
    expert = parts.costs.at(parts.costs.expert_params) / parts.params
    dense = 1.0 - expert
    assert parts.layer_dp.reduce[1] == pytest.approx(parts.dp.reduce[1] * dense[1])
    assert parts.layer_dp.reduce[0] == pytest.approx(parts.dp.reduce[0])
    owned = [1 / 8, dense[1] / 8 + expert[1]]
    assert parts.owned_fraction.tolist() == pytest.approx(owned)
    assert parts.expert_states.optimizer.tolist() == [12 / 8, 12]


@pytest.mark.parametrize("pp", [1, 2])
def test_a_tied_vocabulary_is_copied_to_the_last_of_several_stages(pp: int) -> None:
    parts = stage_parameters(context_of(model=small_model(tied_embeddings=True)), columns_of(pp=pp))
    assert float(parts.last_params[0]) == 2 * 1024 + (pp > 1) * 32000 * 1024


def test_mfu_and_throughput_follow_from_the_iteration_time() -> None:
    context = context_of(global_batch=16, seq_len=1024)
    result = estimate(context, strategy_of(dp=2, num_micro_batches=8, zero_stage=0))
    assert result.tokens_per_s == pytest.approx(16 * 1024 / result.iter_time_s)
    assert result.tokens_per_s_per_gpu == pytest.approx(result.tokens_per_s / 2)
    most = result.iter_time_s * 2 * 989e12
    assert 0.05 < result.mfu < 0.71
    assert result.mfu == pytest.approx(result.model_flops / most)
    flops = model_flops_per_iteration(context.model, context.job, context.traits)
    assert result.mfu < result.mfu_full_square == pytest.approx(flops.full_square / most)


def test_a_step_takes_the_more_memory_and_time_the_less_is_narrowed() -> None:
    names = {"model": "llama3.2-1b", "cluster": "2xa100-sxm-80", "framework": "deepspeed"}
    strategy = strategy_of(dp=2, num_micro_batches=2, layers_per_stage=(16,))
    narrow, tensor, whole = (
        estimate(context_of(**names, global_batch=4, precision=precision), strategy)
        for precision in ("bf16", "tf32", "fp32")
    )
    assert narrow.memory.peak_bytes < tensor.memory.peak_bytes == whole.memory.peak_bytes
    assert narrow.iter_time_s < tensor.iter_time_s < whole.iter_time_s

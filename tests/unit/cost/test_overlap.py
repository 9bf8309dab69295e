from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from contexts import columns_of, context_of, strategy_of, with_traits
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.data_parallel import bucket_elements
from planner.cost.estimate import estimate
from planner.cost.overlap import (
    TensorParallelOverlap,
    bucketed_overlap_pieces,
    exposed_all_to_all_s,
    exposed_beside_s,
    exposed_tensor_parallel_s,
    gradient_pass_s,
    interference_fraction,
    prefetch_fill_s,
    straggler_slowdown,
    unpaired_micro_batches,
)
from planner.cost.policies import layer_times
from planner.cost.stage_model import stage_model
from planner.cost.stage_parts import stage_parameters
from planner.cost.step_terms import grad_sync_pieces, unoverlapped_all_to_all_s
from planner.cost.time_terms import exposed_p2p_s, p2p_s

SECONDS = st.floats(0.0, 10.0)
SHARES = st.floats(0.0, 1.0)


def scalar(value: float) -> np.ndarray:
    return np.array(value)


def test_24_channels_take_a_fifth_of_a_gpu() -> None:
    a100 = context_of(cluster="1xdgx-a100-640").cluster.accelerator
    unknown = replace(a100, gemm=replace(a100.gemm, num_multiprocessors=0))
    for number, device, share in ((24, a100, 24 / 108), (1000, a100, 1.0), (27, unknown, 0.25)):
        assert interference_fraction(number, device) == pytest.approx(share)


@given(compute=SECONDS, comm=SECONDS, interference=SHARES)
def test_both_streams_finish_as_an_event_by_event_run_says(
    compute: float, comm: float, interference: float
) -> None:
    # While the communication lasts, computation advances at 1 - i.
    left = compute - comm * (1.0 - interference)
    expected = comm + max(left, 0.0)
    shown = float(exposed_beside_s(scalar(compute), scalar(comm), interference))
    assert compute + shown == pytest.approx(expected)
    assert -1e-12 <= shown <= comm + 1e-12


@given(compute=SECONDS, comm=SECONDS, interference=SHARES, num_layers=st.integers(1, 20))
def test_prefetching_one_layer_ahead_takes_what_its_schedule_takes(
    compute: float, comm: float, interference: float, num_layers: int
) -> None:
    beside = compute + float(exposed_beside_s(scalar(compute), scalar(comm), interference))
    schedule = comm + (num_layers - 1) * beside + compute
    fill = float(prefetch_fill_s(scalar(compute), scalar(comm), interference))
    assert num_layers * beside + fill == pytest.approx(schedule)


def exposed_buckets_s(*args: Any) -> float:
    return max(map(float, bucketed_overlap_pieces(*args)))


@given(reduce_s=SECONDS, window_s=SECONDS, num_buckets=st.integers(1, 40))
def test_buckets_without_interference_end_when_their_events_do(
    reduce_s: float, window_s: float, num_buckets: int
) -> None:
    network = 0.0
    for i in range(num_buckets):
        full = window_s * (i + 1) / num_buckets
        network = max(network, full) + reduce_s / num_buckets
    shown = exposed_buckets_s(scalar(reduce_s), scalar(window_s), scalar(1 / num_buckets), 0.0)
    assert shown == pytest.approx(network - window_s, abs=1e-9)


@given(reduce_s=SECONDS, window_s=SECONDS, fraction=SHARES, interference=SHARES)
def test_bucketed_reduction_never_shows_more_than_itself_and_is_linear_in_the_layers(
    reduce_s: float, window_s: float, fraction: float, interference: float
) -> None:
    args, share = (scalar(reduce_s), scalar(window_s)), scalar(fraction)
    shown = exposed_buckets_s(*args, share, interference)
    assert shown <= reduce_s * (1 + 1e-12)
    assert exposed_buckets_s(*args, scalar(1.0), interference) == pytest.approx(reduce_s)
    one = bucketed_overlap_pieces(*args, share, interference)
    seven = bucketed_overlap_pieces(*(7 * each for each in args), share, interference)
    assert np.array(seven) == pytest.approx(7 * np.array(one))


def test_the_best_bucket_is_neither_the_smallest_nor_the_largest() -> None:
    # Small buckets pay latency, large ones show whole: exposed time has its least between.
    context = context_of(model="llama3.1-8b", cluster="16xdgx-h100", global_batch=128)
    context = with_traits(context, states={"sharded_by": "zero"})
    strategy, found = strategy_of(dp=128, layers_per_stage=(32,)), []
    for elements in (2e4, 4e7, 1e18):
        given = with_traits(context, overlap={"gradient_bucket_elements": elements})
        found.append(estimate(given, strategy).time["data_parallel"])
    smallest, middle, largest = found
    assert smallest.busy_s > middle.busy_s > largest.busy_s
    assert middle.exposed_s < smallest.exposed_s
    assert middle.exposed_s < largest.exposed_s


def test_megatron_s_buckets_grow_with_the_ranks() -> None:
    columns = columns_of(dp=[8, 64, 64], pp=[1, 1, 4], vpp=[1, 1, 2])
    chunk = np.array([1e9, 1e9, 5e7])
    elements = bucket_elements(context_of(), columns, chunk, np.full(3, 2e7))
    assert elements.tolist() == [4e7, 6.4e7, 5e7]
    fsdp = bucket_elements(context_of(framework="torchtitan"), columns, chunk, np.full(3, 2e7))
    assert fsdp.tolist() == [2e7, 2e7, 2e7]


def test_the_head_of_the_last_stage_reduces_while_the_first_still_computes() -> None:
    context = context_of(model="llama3.1-8b", cluster="16xdgx-h100", global_batch=128)
    parts = stage_parameters(context, columns_of(dp=[128, 32], pp=[1, 4], num_micro_batches=[1, 4]))
    shown = grad_sync_pieces(parts, layer_times(parts))
    assert (shown["first"].exposed_s > 0).all()
    assert (shown["last"].exposed_s[:, 0] > 0).all()
    assert (shown["last"].exposed_s[:, 1] == 0).all()


def test_without_overlap_all_of_the_reduction_shows() -> None:
    context = context_of(cluster="2xdgx-h100")
    context = with_traits(context, overlap={"overlaps_gradient_reduction": False})
    parts = stage_parameters(context, columns_of(dp=16))
    layer = grad_sync_pieces(parts, layer_times(parts))["layer"].exposed_s
    assert layer[0] == pytest.approx(parts.params * parts.layer_dp.reduce)
    assert layer[1] == pytest.approx(layer[0])


def test_gradients_kept_whole_under_pipelining_are_reduced_after_all_of_a_chunk_s_backwards() -> (
    None
):
    context = context_of(
        model="llama3-8b", framework="torchtitan", cluster="8xdgx-h100", seq_len=8192
    )

    def shown(engine: str) -> tuple[np.ndarray, np.ndarray]:
        changed = with_traits(
            context,
            overlap={"overlaps_parameter_gather": False},
            states={"pipeline_engine": engine, "reduces_every_micro_batch": False},
        )
        parts = stage_parameters(changed, columns_of(dp=16, pp=4, vpp=[1, 2], zero_stage=2))
        layer = grad_sync_pieces(parts, layer_times(parts))["layer"].exposed_s
        gather = parts.params * parts.layer_dp.gather
        return layer.max(axis=0) - gather, parts.params * parts.layer_dp.reduce

    interference = interference_fraction(24, context.cluster.accelerator)
    whole, total = shown("torch")
    assert whole[0] == pytest.approx(total[0])
    assert whole[1] == pytest.approx(total[1] * (1.0 + interference) / 2.0)
    sharded, total = shown("megatron")
    assert (sharded < 0.9 * whole).all()


@pytest.mark.parametrize(
    ("mode", "vpp", "hides"),
    [("none", 2, False), ("interleaved", 1, False), ("interleaved", 2, True), ("all", 1, True)],
)
def test_transfers_hide_where_a_stage_has_another_chunk_to_compute(
    mode: str, vpp: int, hides: bool
) -> None:
    context = with_traits(context_of(), overlap={"pipeline_p2p_overlap": mode})
    parts = stage_parameters(context, columns_of(pp=2, vpp=vpp, num_micro_batches=8))
    link = p2p_s(parts)
    shown = exposed_p2p_s(parts, layer_times(parts), link)
    assert (link > 0).all()
    assert (shown < 0.5 * link).all() if hides else (shown == link).all()


def test_the_fill_of_a_pass_is_paid_once_whatever_the_layers() -> None:
    model = stage_model(context_of(framework="torchtitan"), columns_of(dp=8, zero_stage=[2, 3]))
    assert model.link_s[1] > model.link_s[0]


@pytest.mark.parametrize(
    ("mode", "chunk", "share", "shown"),
    [
        # 4 chunks of 2 s: 8 s in all. 7 s of communication outlast three chunks by 1 s, 5 do not.
        ("ring", 2.0, 1.0, [1.0, 0.0]),
        # Chunks of 2.5 s waste 2 s.
        ("ring", 2.5, 1.0, [2.0, 2.0]),
        # Of 7 s, 6 could hide: 3/4 or none of them do; of 5 s, all could.
        ("ring", 2.0, 0.75, [2.5, 1.25]),
        ("ring", 2.0, 0.0, [7.0, 5.0]),
        # A fifth of what runs beside the product shows.
        ("bulk", 2.0, 1.0, [1.4, 1.0]),
        ("none", 2.0, 1.0, [7.0, 5.0]),
    ],
)
def test_tensor_parallel_communication_shows_what_its_mode_cannot_hide(
    mode: TensorParallelOverlap, chunk: float, share: float, shown: list[float]
) -> None:
    args = scalar(8.0), np.array([7.0, 5.0]), scalar(chunk), scalar(4.0)
    assert exposed_tensor_parallel_s(*args, mode, 0.2, share) == pytest.approx(shown)


@pytest.mark.parametrize("mode", get_args(TensorParallelOverlap))
@given(compute=SECONDS, comm=SECONDS, chunk=SECONDS, chunks=st.integers(1, 16), achieved=SHARES)
def test_no_tensor_parallel_overlap_costs_more_than_none(
    mode: TensorParallelOverlap,
    compute: float,
    comm: float,
    chunk: float,
    chunks: int,
    achieved: float,
) -> None:
    args = scalar(compute), scalar(comm), scalar(chunk), scalar(float(chunks))
    shown = float(exposed_tensor_parallel_s(*args, mode, 0.2, achieved))
    assert 0.0 <= shown <= comm * (1 + 1e-12)


def test_an_all_to_all_hides_behind_what_its_mode_puts_beside_it() -> None:
    comm, shared, other = scalar(4.0), scalar(1.0), scalar(10.0)
    assert exposed_all_to_all_s(comm, shared, other, "none", 0.15) == 4.0
    assert exposed_all_to_all_s(comm, shared, other, "shared_expert", 0.15) == 3.0
    assert exposed_all_to_all_s(comm, shared, other, "batches", 0.15) == pytest.approx(0.6)


def test_ring_exchange_needs_sequence_parallelism() -> None:
    columns, exposed = columns_of(tp=4, micro_batch=8, sequence_parallel=[0, 1]), {}
    for mode in ("ring", "none"):
        overlap = {"tensor_parallel_overlap": mode, "ring_achieved_fraction": 1.0}
        context = with_traits(context_of(model="llama3.1-8b"), overlap=overlap)
        costs = stage_parameters(context, columns).costs
        exposed[mode] = costs.at(costs.forward["tensor_parallel"].exposed_s)
    assert exposed["ring"][0] == exposed["none"][0]
    assert exposed["ring"][1] < 0.5 * exposed["none"][1]


def test_micro_batches_without_a_partner() -> None:
    num, pp, vpp = np.array([5, 64, 64, 2]), np.array([1, 8, 2, 8]), np.array([1, 1, 8, 8])
    assert unpaired_micro_batches(num, pp, vpp) == pytest.approx([1.0, 1.0, 15 / 8, 2.0])


def test_an_only_micro_batch_hides_no_exchange() -> None:
    context = context_of(model="mixtral-8x7b", cluster="1xdgx-h100")
    beside = with_traits(context, overlap={"expert_all_to_all_overlap": "batches"})
    plain, paired = (stage_parameters(each, columns_of(dp=8, ep=8)) for each in (context, beside))
    shown, less = (
        sum(items["expert_parallel"].exposed_s for items in (costs.forward, costs.backward))
        for costs in (plain.costs, paired.costs)
    )
    assert less < shown
    hidden = context.model.num_blocks * (shown - less)
    assert unoverlapped_all_to_all_s(paired) == pytest.approx(hidden)
    assert not unoverlapped_all_to_all_s(plain).any()


def test_gradient_passes_move_what_is_held_and_what_is_owned() -> None:
    # 1e9 held at 12 bytes and 1.25e8 owned at 18: 14.25e9 bytes.
    accelerator = context_of().cluster.accelerator
    rate = accelerator.hbm_bytes_per_s * accelerator.memory_bound_fraction
    seconds = gradient_pass_s(np.array(1e9), np.array(1.25e8), 12, 18, accelerator)
    assert seconds == pytest.approx(14.25e9 / rate)


def test_the_slowest_of_many_is_near_the_sampled_mean_maximum_and_one_waits_for_nobody() -> None:
    # The leading term exceeds the true expectation, by less with more ranks.
    for num_ranks in (64, 1024, 16384):
        random = np.random.default_rng(0)
        sampled = random.normal(1.0, 0.005, (200, num_ranks)).max(axis=1).mean()
        factor = float(straggler_slowdown(np.array(num_ranks)))
        assert sampled < factor < sampled + 0.003
    assert straggler_slowdown(np.array([1, 0])).tolist() == [1.0, 1.0]

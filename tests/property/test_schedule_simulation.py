"""Schedules: simulation and closed forms agree, and nothing beats the lower bounds."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.schedules import dualpipe, zero_bubble
from planner.schedules.closed_form import (
    chunk_layers,
    interleaved_in_flight,
    one_f_one_b_in_flight,
    one_f_one_b_makespan_s,
)
from planner.schedules.simulate import ChunkTimes, Simulation, device_orders, num_chunks, simulate
from planner.search.space.interleaving import fits_chunks
from tools.schedules import peak_in_flight

SECONDS = st.integers(1, 64).map(lambda n: n / 8.0)  # Sums of these are exact in floating point
DEVICES = st.integers(1, 6)
Times = tuple[float, float, float]


def equal_stages(schedule: str, p: int, m: int, times: Times, vpp: int = 1) -> Simulation:
    chunks = num_chunks(schedule, p, vpp)
    forward, backward, weight = ([seconds] * chunks for seconds in times)
    return simulate(
        device_orders(schedule, p, m, vpp),
        ChunkTimes(forward_s=forward, backward_s=backward, weight_s=weight),
    )


def held(schedule: str, p: int, m: int, v: int = 1) -> set[float]:
    """Micro-batches of all chunks that devices hold at their peaks."""
    return {peak_in_flight(order) / v for order in device_orders(schedule, p, m, v)}


TIMES = st.tuples(SECONDS, SECONDS, SECONDS)


@given(DEVICES, st.integers(1, 20), TIMES)
def test_gpipe_and_1f1b_agree_with_their_closed_forms(p: int, m: int, times: Times) -> None:
    total = np.array(sum(times))
    for schedule in ("gpipe", "1f1b"):
        run = equal_stages(schedule, p, m, times)
        assert run.makespan_s == one_f_one_b_makespan_s(total, p * total, np.array(m))
    peaks = [peak_in_flight(order) for order in device_orders("1f1b", p, m)]
    assert peaks == one_f_one_b_in_flight(np.arange(p), p, np.array(m)).tolist()
    assert held("gpipe", p, m) == {m}


@given(DEVICES, st.integers(1, 4), st.integers(2, 4), TIMES)
def test_interleaving_agrees_with_its_closed_form(
    p: int, groups: int, v: int, times: Times
) -> None:
    m, stage = groups * p, v * sum(times)
    counts = np.array(m), np.array(v)
    closed_s = one_f_one_b_makespan_s(np.array(stage), np.array(p * stage), *counts)
    assert equal_stages("1f1b", p, m, times, v).makespan_s == pytest.approx(closed_s, rel=1e-12)
    peaks = [peak_in_flight(order) / v for order in device_orders("1f1b", p, m, v)]
    assert peaks == pytest.approx(interleaved_in_flight(np.arange(p), p, *counts).tolist())


@given(DEVICES, st.integers(0, 12), TIMES, st.sampled_from([1, 2]))
def test_zb_h_agrees_with_its_closed_form(p: int, more: int, times: Times, k: int) -> None:
    m = k * (p - 1) + 1 + more
    run = equal_stages(f"zb-h{k}", p, m, times)
    work, seconds = m * sum(times), np.array(times)
    assert run.makespan_s == work + (p - 1) * zero_bubble.bubble_h_s(*seconds, k)
    assert run.span_s == work + (p - 1) * zero_bubble.bubble_h_s(*seconds, k, in_step=False)
    assert held(f"zb-h{k}", p, m) == {float(zero_bubble.in_flight(p, np.array(m), k))}


@given(DEVICES, st.integers(1, 4), st.integers(2, 4), TIMES)
def test_interleaved_zb_agrees_with_its_closed_form(
    p: int, groups: int, v: int, times: Times
) -> None:
    m = groups * p
    run = equal_stages("zb-interleaved", p, m, times, v)
    bubble = zero_bubble.bubble_h_s(*np.array(times), 1)
    assert run.makespan_s == m * v * sum(times) + (p - 1) * bubble
    assert held("zb-interleaved", p, m, v) == {float(zero_bubble.in_flight(p, np.array(m), 1))}


@given(DEVICES, st.integers(0, 12), TIMES)
def test_zb_v_agrees_with_its_closed_form_where_backward_is_the_longest(
    p: int, more: int, times: Times
) -> None:
    forward, weight, backward = sorted(times)
    for first, last in ((forward, weight), (weight, forward)):
        m = 2 * p - 1 + more
        run = equal_stages("zb-v", p, m, (first, backward, last))
        whole = [2.0 * np.array(seconds) for seconds in (first, backward, last)]
        work, steps = m * sum(whole), p - 1
        assert run.makespan_s == work + steps * zero_bubble.bubble_v_s(*whole)
        assert run.span_s == work + steps * zero_bubble.bubble_v_s(*whole, in_step=False)
    peaks = {peak_in_flight(order) / 2 for order in device_orders("zb-v", p, m)}
    assert peaks == {float(zero_bubble.in_flight(p, np.array(m), 1))}


@given(st.integers(1, 4), st.integers(0, 6), SECONDS, SECONDS)
def test_dualpipe_agrees_with_its_closed_form_where_forward_is_as_long_as_backward(
    half: int, more: int, first: float, second: float
) -> None:
    weight, forward = sorted((first, second))
    p, m = 2 * half, 4 * half + 2 * more
    times = (forward, forward, weight)
    bubble = float(dualpipe.bubble_s(*(np.array(t) for t in (*times, p))))
    for schedule, devices, number in (("dualpipe", p, m), ("dualpipe-v", half, m // 2)):
        run = equal_stages(schedule, devices, number, times)
        assert run.makespan_s == m * sum(times) + bubble
        assert held(schedule, devices, number) == {int(dualpipe.in_flight(p, np.array(m // 2)))}


SCHEDULES = ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v")


@given(st.sampled_from(SCHEDULES), DEVICES, st.integers(1, 12), st.data())
def test_no_simulation_beats_the_slowest_device_or_the_longest_path(
    schedule: str, p: int, m: int, data: st.DataObject
) -> None:
    chunks = num_chunks(schedule, p)
    rows = [data.draw(st.lists(SECONDS, min_size=chunks, max_size=chunks)) for _ in range(3)]
    p2p_s = data.draw(st.sampled_from([0.0, 0.25]))
    times = ChunkTimes(forward_s=rows[0], backward_s=rows[1], weight_s=rows[2], p2p_s=p2p_s)
    run = simulate(device_orders(schedule, p, m), times)
    assert run.makespan_s >= max(run.busy_s)
    # Down, back, and the weight gradient at the end.
    transfers = 2 * (p - 1) * p2p_s * (chunks // p)
    assert run.makespan_s >= sum(rows[0]) + sum(rows[1]) + rows[2][0] + transfers
    assert sum(run.busy_s) == pytest.approx(m * sum(map(sum, rows)))


@given(st.integers(2, 6), st.integers(1, 24), st.data())
def test_1f1b_closed_form_bounds_unequal_stages_and_is_exact_for_a_slow_last_one(
    p: int, m: int, data: st.DataObject
) -> None:
    """Stages differ by their layers, so that both passes are longer by the same factor.

    Where one stage is slow forward and another backward, few micro-batches may take longer.
    """
    forward = data.draw(st.lists(SECONDS, min_size=p, max_size=p))
    factors = (1, data.draw(st.integers(1, 4)), data.draw(st.integers(0, 4)))
    rows = [[factor * seconds for seconds in forward] for factor in factors]

    def both() -> tuple[float, float]:
        run = simulate(
            device_orders("1f1b", p, m),
            ChunkTimes(forward_s=rows[0], backward_s=rows[1], weight_s=rows[2]),
        )
        stages = np.array(rows).sum(axis=0)
        closed = one_f_one_b_makespan_s(stages.max(), stages.sum(), np.array(m))
        return run.makespan_s, float(closed)

    simulated, closed = both()
    assert simulated <= closed
    for row in rows:
        row[-1] = max(row)
    simulated, closed = both()
    assert simulated == closed


def interleaved_pipeline(data: st.DataObject, *, equal_chunks: bool) -> tuple[float, float]:
    """A random pipeline that fits_chunks allows: simulated seconds and those of the closed form.

    Embedding and head take at most what the layers would that the ends lack of the largest stage.
    """
    p, v = data.draw(st.integers(2, 8)), data.draw(st.integers(2, 4))
    m, most = p * data.draw(st.integers(1, 5)), data.draw(st.integers(v, 4 * v))
    most -= most % v if equal_chunks else 0
    lacks = [data.draw(st.integers(0, -(-most // v)))]
    lacks += [data.draw(st.integers(0, min(2, most - v))) for _ in range(p - 2)]
    lacks += [data.draw(st.integers(0, most // v))]
    layers = tuple(most - lack for lack in lacks)
    assume(fits_chunks(np.array([layers], dtype=float), np.array([v]))[0])
    work = np.array(chunk_layers(layers, v), dtype=float)
    work[0] += data.draw(st.floats(0.0, 1.0)) * (max(layers) - layers[0])
    work[-1] += data.draw(st.floats(0.0, 1.0)) * (max(layers) - layers[-1])
    forward = work * data.draw(st.sampled_from([0.5, 1 / 3, 0.25]))
    times = ChunkTimes(
        forward_s=forward.tolist(), backward_s=(work - forward).tolist(), weight_s=[0.0] * len(work)
    )
    stages = work.reshape(v, p).sum(axis=0)
    closed = one_f_one_b_makespan_s(stages.max(), stages.sum(), np.array(m), np.array(v))
    return simulate(device_orders("1f1b", p, m, v), times).makespan_s, float(closed)


# The largest stage's chunks are equal, over 2,400 random ones 20 % less to 7 % more; or its first
# chunks hold a layer more: 15 % less to 17 % more, 2 % mean.
@pytest.mark.parametrize(("equal_chunks", "most"), [(True, 1.1), (False, 1.2)])
@settings(derandomize=True, max_examples=150)
@given(data=st.data())
def test_uneven_stages_and_chunks_take_little_longer_than_the_closed_form(
    data: st.DataObject, equal_chunks: bool, most: float
) -> None:
    simulated, closed = interleaved_pipeline(data, equal_chunks=equal_chunks)
    assert 0.75 * closed < simulated < most * closed

import numpy as np
import pytest
from contexts import columns_of

from planner.cost.pipeline import in_flight, makespan_s
from planner.schedules.closed_form import (
    Operation,
    interleaved_in_flight,
    one_f_one_b_makespan_s,
)
from planner.schedules.simulate import ChunkTimes, Simulation, device_orders, num_chunks, simulate
from planner.spec.strategy import SCHEDULES
from tools.schedules import peak_in_flight


def idle_s(run: Simulation) -> tuple[float, ...]:
    return tuple(run.makespan_s - busy for busy in run.busy_s)


def simulated(
    schedule: str,
    p: int,
    m: int,
    *,
    times: tuple[float, float, float] = (1.0, 1.0, 1.0),
    p2p_s: float = 0.0,
) -> Simulation:
    """Equal stages, whose chunks take an equal part of (F, B, W) each."""
    chunks = num_chunks(schedule, p, 1)
    forward, backward, weight = ([seconds * p / chunks] * chunks for seconds in times)
    return simulate(
        device_orders(schedule, p, m),
        ChunkTimes(forward_s=forward, backward_s=backward, weight_s=weight, p2p_s=p2p_s),
    )


def test_zero_bubble_table_of_bubbles() -> None:
    # The authors' table for F = B = W, p = 4, m = 8: 1F1B (p-1)/m, ZB1P (p-1)/3m, ZB2P 0, ZBV 0.
    bubbles = {"1f1b": 3 / 8, "zb-h1": 3 / 24, "zb-h2": 0.0, "zb-v": 0.0}
    found = {name: simulated(name, 4, 8) for name in bubbles}
    assert {name: run.span_s / 24.0 - 1.0 for name, run in found.items()} == pytest.approx(bubbles)
    # In step device 3 of 4 cannot start before three forwards: 24 + 3 s (ZB-V: of half stages).
    assert found["zb-h2"].makespan_s == pytest.approx(27.0)
    assert found["zb-v"].makespan_s == pytest.approx(25.5)


def test_dualpipe_table_of_bubbles() -> None:
    # arXiv 2412.19437, table 2, p = 8, m = 20, F = B = 1, W = 0.8 (their B: 1.8), F&B = 2.8:
    # 1F1B 7 (F + B) = 19.6, ZB1P 7 (F + B - 2W) = 8.4, DualPipe 3 (F&B + B - 3W) = 6.6.
    for name, expected in (("1f1b", 19.6), ("zb-h1", 8.4), ("dualpipe", 6.6)):
        run = simulated(name, 8, 20, times=(1.0, 1.0, 0.8))
        assert max(idle_s(run)) == pytest.approx(expected)
    # DualPipe-V is DualPipe cut in half.
    whole = simulated("dualpipe", 8, 20, times=(1.0, 1.2, 0.8))
    half = simulated("dualpipe-v", 4, 10, times=(2.0, 2.4, 1.6))
    assert half.makespan_s == pytest.approx(whole.makespan_s)


def held(schedule: str, p: int, m: int, *, until_weight: bool = True) -> list[int]:
    orders = device_orders(schedule, p, m)
    return [peak_in_flight(order, until_weight=until_weight) for order in orders]


def test_zero_bubble_and_dualpipe_tables_of_memory() -> None:
    # arXiv 2401.10241, table 2 and its text, device i from 0: before B p - i and 2p - 2i - 1,
    # and between B and W i and 2i more: at most p and 2p - 1.
    assert held("zb-h1", 4, 16, until_weight=False) == [4, 3, 2, 1]
    assert held("zb-h1", 4, 16) == [4] * 4
    assert held("zb-h2", 4, 16, until_weight=False) == [7, 5, 3, 1]
    assert held("zb-h2", 4, 16) == [7] * 4
    # ZB-V: p micro-batches of two chunks each, on every device.
    assert held("zb-v", 4, 16) == [8] * 4
    # arXiv 2412.19437, table 2: PP + 1.
    assert held("dualpipe", 8, 20) == [9] * 8
    assert held("dualpipe-v", 4, 10) == [9] * 4


def test_transfers_delay_those_who_wait() -> None:
    # One micro-batch through two stages and back: 6 s of work, two transfers on the way.
    assert simulated("1f1b", 2, 1, p2p_s=0.25).makespan_s == 6.5


def test_v_shape_turns_round_without_a_transfer() -> None:
    # Chunks of 0.5 s an operation: F on devices 0, 1, 1, 0, B back, device 1's upper W in between,
    # W on device 0: ten operations and a transfer at each of the four changes of device.
    assert simulated("zb-v", 2, 1, p2p_s=0.25).makespan_s == 10 * 0.5 + 4 * 0.25


def test_unequal_stages_by_hand() -> None:
    # F 1, backward 2 on device 0, F 2, backward 4 on device 1, m = 2.
    run = simulate(
        device_orders("1f1b", 2, 2),
        ChunkTimes(forward_s=[1.0, 2.0], backward_s=[1.0, 2.0], weight_s=[1.0, 2.0]),
    )
    # Device 1: F 1-3, BW 3-7, F 7-9, BW 9-13; device 0: F 0-1, F 1-2, BW 7-9, BW 13-15.
    assert run.makespan_s == 15.0
    assert run.busy_s == (6.0, 12.0)
    assert idle_s(run) == (9.0, 3.0)
    assert one_f_one_b_makespan_s(*map(float, (6, 9, 2))) == 15.0  # type: ignore[arg-type]


def test_orders_that_wait_for_each_other_are_refused() -> None:
    backward_first = ((Operation("B", 0, 0),), (Operation("F", 0, 0),))
    times = ChunkTimes(forward_s=[1.0], backward_s=[1.0], weight_s=[1.0])
    with pytest.raises(ValueError, match="device 0 waits for ever"):
        simulate((backward_first,), times)


@pytest.mark.parametrize(
    ("schedule", "p", "m", "said"),
    [
        ("1f1b", 4, 10, "multiples of 4 devices; given 10"),
        ("zb-interleaved", 4, 10, "multiples of 4 devices; given 10"),
        ("dualpipe", 3, 12, "even number"),
        ("dualpipe", 8, 12, "at least 8 micro-batches per direction; given 6"),
        ("zb", 4, 8, "unknown schedule 'zb'"),
    ],
)
def test_a_schedule_says_what_it_needs(schedule: str, p: int, m: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        device_orders(schedule, p, m, vpp=2)


@pytest.mark.parametrize(
    ("p", "m", "v"), [(1, 4, 1), (4, 8, 1), (8, 64, 1), (4, 8, 2), (8, 16, 4), (2, 2, 3)]
)
def test_equal_stages_idle_for_p_minus_1_over_m_divided_by_v(p: int, m: int, v: int) -> None:
    # T = 1 s per stage and micro-batch; ideal m, bubble (p - 1) / v (arXiv 2104.04473, 2.2).
    total = one_f_one_b_makespan_s(np.array(1.0), np.array(float(p)), np.array(m), np.array(v))
    assert (total - m) / m == pytest.approx((p - 1) / m / v)


def test_unequal_stages_wait_for_the_slowest() -> None:
    # Stages 1, 3, 2 s, 5 micro-batches: 4 * 3 + (1 + 3 + 2) = 18 s.
    assert one_f_one_b_makespan_s(np.array(3.0), np.array(6.0), np.array(5)) == 18.0
    # Interleaved with v = 3: 5 * 3 + (6 - 3)/3 = 16 s.
    assert one_f_one_b_makespan_s(np.array(3.0), np.array(6.0), np.array(5), np.array(3)) == 16.0


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 2), (8, 12), (35, 3)])
def test_the_first_interleaved_stage_holds_p_times_1_plus_p_minus_1_over_pv(p: int, v: int) -> None:
    # arXiv 2205.05198, 4.2.3. p = 8, v = 12 (of 96 layers): 8 (1 + 7/96) = 8.583.
    held = interleaved_in_flight(np.array(0), np.array(p), np.array(1000), np.array(v))
    assert held == pytest.approx(p * (1 + (p - 1) / (p * v)))
    # Never more than all micro-batches.
    assert interleaved_in_flight(np.array(0), np.array(p), np.array(p), np.array(v)) == p


def test_columns_choose_their_schedule_by_vpp() -> None:
    num, vpp, schedule = np.array([[8], [8]]), np.array([[1], [2]]), np.zeros((2, 1), dtype=int)
    held = in_flight(np.array([[0, 3]]), 4.0, num, vpp, schedule)
    # v = 1: 4 and 1; v = 2: (6 + 4 + 1)/2 = 5.5 and (0 + 4 + 1)/2 = 2.5.
    assert held.tolist() == [[4.0, 1.0], [5.5, 2.5]]


def test_columns_choose_what_they_hold_by_schedule() -> None:
    # p = 4, m = 16, stages 0 and 3: 1F1B p - i, GPipe m, ZB-H1 and ZB-V p, ZB-H2 2p - 1,
    # DualPipe-V p + 1/2.
    schedules = np.arange(len(SCHEDULES))[:, None]
    vpp = np.array([1, 1, 1, 1, 2, 2, 2])[:, None]
    held = in_flight(np.array([[0, 3]]), np.full((7, 1), 4.0), np.full((7, 1), 16), vpp, schedules)
    assert dict(zip(SCHEDULES, held.tolist(), strict=True)) == {
        "1f1b": [4.0, 1.0],
        "gpipe": [16.0, 16.0],
        "zb-h1": [4.0, 4.0],
        "zb-h2": [7.0, 7.0],
        "zb-interleaved": [4.0, 4.0],
        "zb-v": [4.0, 4.0],
        "dualpipe-v": [4.5, 4.5],
    }


def test_a_bubble_can_be_filled_but_not_turned_into_gain() -> None:
    # Three stages of 2 s, 4 micro-batches: 8 s and 4 s of bubble, of which 3 s are filled, or all.
    times = (columns_of(num_micro_batches=4), np.array([2.0]), np.array([6.0]))
    for filled_s, seconds in ((0.0, 12.0), (3.0, 9.0), (5.0, 8.0)):
        assert makespan_s(*times, np.array([filled_s])) == seconds

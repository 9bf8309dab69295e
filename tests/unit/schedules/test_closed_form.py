import numpy as np
import pytest
from contexts import columns_of

from planner.cost.pipeline import in_flight, makespan_s
from planner.schedules.closed_form import (
    interleaved_in_flight,
    one_f_one_b_makespan_s,
)
from planner.spec.strategy import SCHEDULES


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

"""Collectives across machines against published measurements, within limits that can fail."""

from statistics import median

import pytest

from tools.collective_points import Point, largest, median_error, read_points, small

LIMITS = {"": 0.05, "nvlink": 0.03, "xgmi": 0.03, "pcie": 0.11, "ib": 0.08, "roce": 0.06}
LIMITS |= {"slingshot": 0.03, "efa": 0.03, "tcpxo": 0.03, "tcp": 0.5}
"""Median absolute log error of the largest messages; no kind of network may live of another."""


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return list(read_points())


@pytest.mark.parametrize("kind", LIMITS)
def test_large_messages_on_healthy_machines(kind: str, points: list[Point]) -> None:
    own = [p for p in largest(points) if p.state == "healthy" and kind in ("", p.kind)]
    assert median_error(own) <= LIMITS[kind]
    for left_out in {p.source for p in own} if not kind else ():
        assert median_error(p for p in own if p.source != left_out) <= LIMITS[kind], left_out


def test_hosts_called_bad_are_slower_than_predicted(points: list[Point]) -> None:
    """Nothing was fitted to them: they say how far below the usual a host can lie."""
    bad = [point.log_error for point in largest(points) if point.state in ("bad", "untuned")]
    assert max(bad) < 0.2
    assert median(bad) < -0.4


def test_small_messages(points: list[Point]) -> None:
    assert median_error(p for p in small(points) if p.state == "healthy") <= 0.4

"""What is said of a search that proved nothing, or only a part."""

from types import SimpleNamespace
from typing import Any

import pytest

from planner.report.plan import gap_text


def stopped(gap: float, objective: str = "iteration_s", *, plans: int = 3) -> Any:
    return SimpleNamespace(gap=gap, plans=range(plans), aim=SimpleNamespace(objective=objective))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (stopped(0.0123), "a plan up to 1.23% faster may exist"),
        (stopped(1e-9), "a plan up to 0.01% faster may exist"),
        (stopped(0.0), "plan 1 is the fastest, the others may be beaten"),
        (stopped(0.5, plans=0), "better plans may exist"),
        (stopped(0.02, "cost_usd"), "a plan up to 2.00% cheaper may exist"),
        (stopped(0.02, "gpus"), "plans on fewer GPUs, or up to 2.00% faster, may exist"),
    ],
)
def test_a_bound_is_never_rounded_below_itself(answer: Any, text: str) -> None:
    assert gap_text(answer) == text

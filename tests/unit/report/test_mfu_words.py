"""Which peak an MFU is over is named where the plan's products run at another one."""

from dataclasses import replace

import pytest
from contexts import context_of

from planner.answers.base import Plan
from planner.answers.plan import answer
from planner.cost.context import Context
from planner.report.words import mfu_line, mfu_text, utilization_line
from planner.spec.job import Precision


def planned(context: Context, precision: Precision, peaks: dict[str, float]) -> Plan:
    """The best plan in a precision, on accelerators with these peaks only."""
    node = context.cluster.node
    accelerator = replace(node.accelerator, peak_flops_per_s=peaks)
    cluster = replace(context.cluster, node=replace(node, accelerator=accelerator))
    job = replace(context.job, precision=precision)
    return answer([replace(context, cluster=cluster, job=job)], top=1).plans[0]


@pytest.mark.parametrize(
    ("precision", "peaks", "words", "over"),
    [
        ("bf16", {"bf16": 989e12, "fp32": 67e12}, "", "the dense 16-bit peak (989 TFLOP/s)"),
        (
            "fp32",
            {"bf16": 989e12, "fp32": 67e12},
            " of the 16-bit peak",
            "the dense 16-bit peak (989 TFLOP/s), also in fp32",
        ),
        ("fp32", {"fp32": 0.052e12}, "", "the dense fp32 peak (0.052 TFLOP/s)"),
    ],
)
def test_the_peak_is_named_where_it_is_not_that_of_the_products(
    precision: Precision, peaks: dict[str, float], words: str, over: str
) -> None:
    plan = planned(context_of(framework="accelerate"), precision, peaks)
    assert f" %){words}, " in utilization_line(plan)
    assert f"over {over}" in mfu_line(plan)


def test_an_mfu_beyond_16_bits_is_over_the_peak_of_the_products() -> None:
    plan = planned(context_of(framework="accelerate"), "fp8", {"bf16": 989e12, "fp8": 1978e12})
    assert " %) of the 16-bit peak, " in utilization_line(plan)
    plan = replace(plan, estimate=replace(plan.estimate, mfu=1.2))
    assert mfu_text(plan) == "60.0% of fp8"
    assert utilization_line(plan).startswith("MFU 60.0% (80 % interval ")
    assert " %) of the fp8 peak, " in utilization_line(plan)
    assert "over the dense fp8 peak (1,978 TFLOP/s);" in mfu_line(plan)

"""The DeepSpeed files of a few plans stay what they were, byte for byte.

After a deliberate change, `python tests/golden/test_emit_deepspeed.py` writes them anew.
"""

from pathlib import Path

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.formats.format import Emitted
from planner.formats.registry import load_format
from planner.frameworks.registry import load_traits
from planner.spec.job import JobSpec
from planner.spec.strategy import Strategy

FOLDER = Path(__file__).parent / "emit" / "deepspeed"
BASE = {"vpp": 1, "cp": 1, "ep": 1, "sequence_parallel": False}
PLANS = {
    "zero3_offload": Strategy(
        **BASE, dp=16, tp=1, etp=1, pp=1, zero_stage=3, micro_batch=2, num_micro_batches=4,
        offload="optimizer+parameters:host", offload_percent=75, layers_per_stage=(32,),
        selective_layers_per_stage=(0,), recompute_layers_per_stage=(32,),
    ),
    "zeropp": Strategy(
        **BASE, dp=16, tp=1, etp=1, pp=1, zero_stage=3, micro_batch=1, num_micro_batches=8,
        offload="none", layers_per_stage=(32,), selective_layers_per_stage=(0,),
        recompute_layers_per_stage=(0,),
    ),
    "autotp": Strategy(
        **BASE, dp=4, tp=4, etp=4, pp=1, zero_stage=2, micro_batch=2, num_micro_batches=16,
        offload="none", layers_per_stage=(32,), selective_layers_per_stage=(0,),
        recompute_layers_per_stage=(0,),
    ),
    "uneven_pipeline": Strategy(
        **BASE, dp=2, tp=2, etp=2, pp=4, zero_stage=1, micro_batch=1, num_micro_batches=64,
        offload="none", layers_per_stage=(7, 9, 9, 7), selective_layers_per_stage=(2, 0, 0, 0),
        recompute_layers_per_stage=(5, 3, 1, 0),
    ),
}  # fmt: skip


def emitted(name: str) -> Emitted:
    profile = "zero++" if name == "zeropp" else "current"
    context = Context(
        model=load_model("llama3-8b"),
        job=JobSpec(global_batch=128, seq_len=8192),
        cluster=load_cluster("2xdgx-h100"),
        traits=load_traits("deepspeed", profile),
    )
    return load_format("deepspeed").emit(context, PLANS[name])


def text_of(name: str) -> str:
    return emitted(name).files[0].text


@pytest.mark.parametrize("name", PLANS)
def test_the_emitted_file_equals_the_golden_one(name: str) -> None:
    assert text_of(name) == (FOLDER / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PLANS)
def test_the_same_plan_gives_the_same_bytes(name: str) -> None:
    assert emitted(name) == emitted(name)


if __name__ == "__main__":
    for plan in PLANS:
        (FOLDER / f"{plan}.json").write_text(text_of(plan), encoding="utf-8")

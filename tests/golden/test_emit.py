"""What formats write for a few plans stays what it was, byte for byte.

Beside the files stands how they are started. After a deliberate change
``PYTHONPATH=tests:tests/property python tests/golden/test_emit.py`` writes them anew.
"""

from pathlib import Path
from typing import Any

import pytest
from contexts import context_of, strategy_of
from megatron_plans import CASES, draw

from planner.cost.context import Context
from planner.formats.registry import load_format
from planner.spec.strategy import Strategy

FOLDER = Path(__file__).parent / "emit"
Plan = tuple[Context, Strategy]


def on_two_nodes(
    framework: str, *, model: str = "llama3-8b", profile: str = "current", **layout: Any
) -> Plan:
    sizes = {"cluster": "2xdgx-h100", "global_batch": 64, "seq_len": 8192}
    context = context_of(model=model, framework=framework, profile=profile, **sizes)
    return context, strategy_of(**{"layers_per_stage": (32,), **layout})


FULL = {"recompute_layers_per_stage": (32,)}
OFFLOADED = {"dp": 16, "zero_stage": 3, "offload": "optimizer+parameters:host"}
HYBRID = {"dp": 8, "dp_replicate": 2, "tp": 2, "zero_stage": 3, "micro_batch": 2}
SHARDED = {"zero_stage": 3, "micro_batch": 2}
PLANS: dict[str, Plan] = {
    "deepspeed/zero3_offload": on_two_nodes(
        "deepspeed", **OFFLOADED, micro_batch=2, num_micro_batches=2, offload_percent=75, **FULL
    ),
    "deepspeed/zeropp": on_two_nodes(
        "deepspeed", profile="zero++", dp=16, zero_stage=3, num_micro_batches=4
    ),
    "deepspeed/autotp": on_two_nodes(
        "deepspeed", dp=4, tp=4, zero_stage=2, micro_batch=2, num_micro_batches=8
    ),
    "deepspeed/uneven_pipeline": on_two_nodes(
        "deepspeed",
        dp=2,
        tp=2,
        pp=4,
        num_micro_batches=32,
        layers_per_stage=(7, 9, 9, 7),
        selective_layers_per_stage=(2, 0, 0, 0),
        recompute_layers_per_stage=(5, 3, 1, 0),
    ),
    **{
        f"{form}/zero3_offload": on_two_nodes("deepspeed", **OFFLOADED, num_micro_batches=4)
        for form in ("accelerate", "trainer")
    },
    **{
        f"{form}/fsdp2_hybrid_tp": on_two_nodes("accelerate", **HYBRID, num_micro_batches=4, **FULL)
        for form in ("accelerate", "trainer")
    },
    "torchtitan/hybrid": on_two_nodes(
        "torchtitan",
        **SHARDED,
        dp=4,
        tp=4,
        dp_replicate=2,
        num_micro_batches=8,
        sequence_parallel=True,
        selective_layers_per_stage=(32,),
    ),
    "torchtitan/interleaved": on_two_nodes(
        "torchtitan",
        dp=2,
        tp=4,
        pp=2,
        vpp=2,
        zero_stage=2,
        micro_batch=2,
        num_micro_batches=16,
        sequence_parallel=True,
        layers_per_stage=(16, 16),
        recompute_layers_per_stage=(16, 16),
    ),
    "torchtitan/experts": on_two_nodes(
        "torchtitan", model="mixtral-8x7b", **SHARDED, dp=16, ep=4, num_micro_batches=2
    ),
}
DRAWN = {
    f"{form}/{CASES[case][0]}-{seed}": (seed, case)
    for form, plans in (("megatron", ((1, 0), (6, 3), (0, 6))), ("bridge", ((1, 0), (0, 4))))
    for seed, case in plans
}
"""Seeds and places of CASES, of plans drawn from a whole space."""


def written(name: str) -> dict[str, str]:
    """The files of a plan, and how they are started."""
    plan = draw(*DRAWN[name]) if name in DRAWN else PLANS[name]
    emitted = load_format(name.partition("/")[0]).emit(*plan)
    lines = [" ".join((*emitted.own_launcher, *emitted.words))]
    lines += [f"{key}={value}" for key, value in emitted.environment.items()]
    lines += [f"${{{key}}}: {what}" for key, what in emitted.variables.items()]
    lines += [f"{each.key} | {each.value} | {each.why}" for each in emitted.decided]
    files = {f"{file.name}.golden": file.text for file in emitted.files}
    return files | {"start.txt": "\n".join(lines) + "\n"}


@pytest.mark.parametrize("name", PLANS | DRAWN)
def test_a_plan_is_written_as_before(name: str) -> None:
    golden = {path.name: path.read_text("utf-8") for path in (FOLDER / name).iterdir()}
    assert written(name) == golden


if __name__ == "__main__":
    for name in PLANS | DRAWN:
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        for file, text in written(name).items():
            (FOLDER / name / file).write_text(text, encoding="utf-8")

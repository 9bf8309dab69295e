"""Emitted files of a few plans; ``python tests/golden/test_emit_accelerate.py`` writes them."""

from pathlib import Path

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.formats.registry import load_format
from planner.frameworks.registry import load_traits
from planner.spec.job import JobSpec
from planner.spec.strategy import Strategy

ROOT = Path(__file__).parent / "emit"
COMMON = {"vpp": 1, "ep": 1, "sequence_parallel": False}


def context(framework: str) -> Context:
    return Context(
        model=load_model("llama3-8b"),
        job=JobSpec(global_batch=64, seq_len=8192),
        cluster=load_cluster("2xdgx-h100"),
        traits=load_traits(framework),
    )


def strategy(**values: object) -> Strategy:
    pp = int(str(values.get("pp", 1)))
    given = {
        "tp": 1,
        "pp": pp,
        "cp": 1,
        "offload": "none",
        "layers_per_stage": (32 // pp,) * pp,
        "selective_layers_per_stage": (0,) * pp,
        "recompute_layers_per_stage": (0,) * pp,
    }
    return Strategy(**{**COMMON, "etp": values.get("tp", given.get("tp", 1)), **given, **values})  # type: ignore[arg-type]


FULL = {"recompute_layers_per_stage": (32,)}
PLANS = {
    "fsdp2_hybrid_tp": (
        "accelerate",
        strategy(
            dp=8, dp_replicate=2, tp=2, zero_stage=3, micro_batch=2, num_micro_batches=4, **FULL
        ),
    ),
    "zero3_offload": (
        "deepspeed",
        strategy(
            dp=16,
            zero_stage=3,
            micro_batch=1,
            num_micro_batches=4,
            offload="optimizer+parameters:host",
        ),
    ),
}
CASES = [(name, plan) for name in ("accelerate", "trainer") for plan in PLANS]


def texts(name: str, plan: str) -> dict[Path, str]:
    framework, layout = PLANS[plan]
    emitted = load_format(name).emit(context(framework), layout)
    lines = [" ".join((*emitted.own_launcher, *emitted.command))]
    lines += [f"{key}={value}" for key, value in emitted.environment.items()]
    lines += [f"${{{key}}}: {what}" for key, what in emitted.variables.items()]
    lines += [f"{each.key} | {each.value} | {each.why}" for each in emitted.decided]
    (file,) = emitted.files
    folder = ROOT / name
    return {
        folder / f"{plan}{Path(file.name).suffix}": file.text,
        folder / f"{plan}.txt": "\n".join(lines) + "\n",
    }


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_the_plan_gives_the_golden_files(name: str, plan: str) -> None:
    for path, text in texts(name, plan).items():
        assert path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    for case in CASES:
        for path, text in texts(*case).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

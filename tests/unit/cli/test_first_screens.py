"""What the first screen says of a plan beside the plan: what it rests on, what is faster."""

import json

import pytest
from in_process import json_of, planner

from planner.query.job import smooth_step

DEEPSPEED = ("--framework", "deepspeed", "--zero-stage", "3", "--recompute", "full")


@pytest.mark.parametrize(("host_memory", "says"), [("128GB", "host too small"), ("512GiB", "fits")])
def test_a_saving_that_needs_the_host_is_held_against_it(host_memory: str, says: str) -> None:
    question = ("memory", "llama3.1-8b", "8xrtx3090", "--seq-len", "4k", *DEEPSPEED)
    run = planner(*question, "--host-memory", host_memory)
    line = next(line for line in run.out.splitlines() if line.startswith("offload optimizer:host"))
    assert line.rstrip().endswith(says)
    run = planner(*question, "--host-memory", host_memory, "--format", "json")
    document = json.loads(run.out)
    change = next(one for one in document["savings"] if one["change"] == "offload optimizer:host")
    assert change["verdict"] == ("fits" if says == "fits" else "does not fit")


def test_scale_takes_a_layout() -> None:
    scale = ("size", "llama3-8b", "dgx-h100", "--gpus", "8,16", "--global-batch", "64")
    document = json_of(*scale, "--tp", "4", "--pp", "1")
    layouts = [size["plan"]["strategy"] for size in document["sizes"]]
    assert [(layout["tp"], layout["pp"]) for layout in layouts] == [(4, 1), (4, 1)]
    assert "given: --fix tp=4, --fix pp=1" in document["inputs"]["assumed"]


def test_the_batch_that_is_proposed_divides_over_the_gpus() -> None:
    assert [smooth_step(gpus) for gpus in (1, 128, 96, 40, 67)] == [64, 64, 48, 40, 64]

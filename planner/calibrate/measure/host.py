"""The host: links to a GPU, Adam on its processors."""

from collections.abc import Iterator
from functools import partial

import torch

from planner.calibrate.measure.task import Task, blank, filled
from planner.calibrate.measure.timing import timed
from planner.calibrate.measure.world import World
from planner.calibrate.measured import Measured

LINK_BYTES = 2**28
ADAM_PARAMS = {"cpu": 2**23, "gpu": 2**26}


def links(world: World) -> Iterator[Task]:
    """Copies between pinned host memory and the device, all ranks at once; none of a processor."""
    if not world.device.is_gpu:
        return
    for what in ("host_to_device", "device_to_host"):
        yield Task(label=what.replace("_", " "), run=partial(_link, world, what))


def _link(world: World, what: str) -> Measured:
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(LINK_BYTES, dtype=torch.uint8, device=world.device.torch)
    to, source = (device, host) if what == "host_to_device" else (host, device)
    found = timed(lambda: to.copy_(source, non_blocking=True), world)
    return filled(blank(world, what=what, num_bytes=LINK_BYTES), found)


def adam(world: World) -> Iterator[Task]:
    """Torch's AdamW on parameters in host memory, fused into one pass, all ranks at once."""
    yield Task(label="Adam on the host", run=lambda: _adam(world))


def _adam(world: World) -> Measured:
    count = ADAM_PARAMS["gpu" if world.device.is_gpu else "cpu"]
    weight = torch.nn.Parameter(torch.zeros(count))
    weight.grad = torch.ones(count)
    optimizer = torch.optim.AdamW([weight], fused=True)
    found = timed(optimizer.step, world)
    return filled(blank(world, what="host_adam", dtype="fp32", params=count), found)

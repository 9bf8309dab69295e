"""A rank of the oracle of exchanges: what torch's communication hooks and averagers send.

Started by ``test_exchanges.py`` with a rendezvous in the environment and a folder to write to:
``python exchange_worker.py FOLDER WIDTH LAYERS RANK EVERY``.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
ALL_REDUCE = dist.all_reduce


def model_of(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


class Counted:
    """All-reduces while it is entered, in bytes."""

    def __enter__(self) -> list[int]:
        self.sizes: list[int] = []

        def counted(tensor: torch.Tensor, *given: Any, **named: Any) -> Any:
            self.sizes.append(tensor.nbytes)
            return ALL_REDUCE(tensor, *given, **named)

        dist.all_reduce = counted  # type: ignore[assignment]
        return self.sizes

    def __exit__(self, *_: object) -> None:
        dist.all_reduce = ALL_REDUCE


def hooked(model: nn.Module, width: int, state: object, hook: Callable[..., Any]) -> list[int]:
    """Bytes of every all-reduce in the last of several steps."""
    replicas = DistributedDataParallel(model)
    replicas.register_comm_hook(state, hook)
    for _ in range(STEPS):
        with Counted() as sizes:
            replicas(torch.randn(4, width)).sum().backward()
    return sizes


def averaged(model: nn.Module, width: int, every: int) -> list[int]:
    """All-reduces of each step under local SGD, in bytes."""
    model(torch.ones(1, width)).sum().backward()  # weights without gradients are left out
    averager = PeriodicModelAverager(period=every, warmup_steps=0)
    sums = []
    for _ in range(3 * every):
        with Counted() as sizes:
            averager.average_parameters(model.parameters())
        sums.append(sum(sizes))
    return sums


def main() -> None:
    folder = Path(sys.argv[1])
    width, layers, rank, every = map(int, sys.argv[2:])
    dist.init_process_group("gloo")
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    content = {
        "fp16": hooked(model_of(width, layers), width, None, default_hooks.fp16_compress_hook),
        "powersgd": hooked(model_of(width, layers), width, state, powerSGD_hook.powerSGD_hook),
        "error": sum(each.nbytes for each in state.error_dict.values()),
        "factors": sum(
            each.nbytes
            for memory in (state.p_memory_dict, state.q_memory_dict)
            for each in memory.values()
        ),
        "averaged": averaged(model_of(width, layers), width, every),
    }
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(content))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

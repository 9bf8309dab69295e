"""A rank of the oracle of plain data parallelism: what torch's DDP reduces, and what it keeps.

Started by ``test_ddp_buckets.py`` with a rendezvous in the environment and a folder to write to:
``python ddp_worker.py FOLDER WIDTH LAYERS``.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    folder, width, layers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    blocks = [nn.Linear(width, width, bias=False) for _ in range(layers)]
    model = DistributedDataParallel(nn.Sequential(*blocks))
    buckets: list[tuple[int, int]] = []

    def reduced(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        buckets.append((buffer.untyped_storage().data_ptr(), buffer.nbytes))
        future = dist.all_reduce(buffer, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model.register_comm_hook(None, reduced)
    for is_last in (True, False, True):  # the first step rebuilds the buckets in order of use
        buckets.clear()
        if not is_last:
            with model.no_sync():
                model(torch.ones(1, width)).sum().backward()
            unsynchronised = len(buckets)
            continue
        model(torch.ones(1, width)).sum().backward()
    gradients = {
        p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None
    }
    content = {
        "sizes": [size for _, size in buckets],
        "unsynchronised": unsynchronised,
        "gradients_are_buckets": bool(gradients & {place for place, _ in buckets}),
        "gradient_bytes": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
    }
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(content))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

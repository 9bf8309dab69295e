"""Writes down what a launched process sees, after a collective over all of them."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SOME_SWITCH")


def main() -> None:
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    seen = {name: os.environ.get(name) for name in NAMES}
    content = {**seen, "arguments": sys.argv[2:], "sum": total.item()}
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(content))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Ten steps under Accelerate's FSDP2; what it made goes to $OUT.

Accelerate takes FSDP for accelerators only and decides by the kind of device. Here it is told that
these processes are several GPUs, which talk over gloo and compute on the CPU; everything behind
that decision is its own.
"""

import json
import os
from pathlib import Path

import accelerate.state
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedType
from tiny_model import STEPS, batch, build, leave
from torch.distributed.tensor import DTensor


def on_the_cpu(state: accelerate.state.PartialState) -> None:
    state.device = torch.device("cpu")


def main() -> None:
    torch.set_num_threads(1)
    accelerate.state.PartialState._prepare_backend = lambda *_, **__: (
        "gloo",
        DistributedType.MULTI_GPU,
    )
    accelerate.state.PartialState.set_device = on_the_cpu
    accelerator = Accelerator()
    model = build()
    num_params = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(os.environ["LEARNING_RATE"]))
    model, optimizer = accelerator.prepare(model, optimizer)
    micro_batch, seq_len = int(os.environ["MICRO_BATCH"]), int(os.environ["SEQ_LEN"])
    tokens = batch(dist.get_rank(), micro_batch, seq_len)
    losses, steps = [], 0
    while steps < STEPS:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
            losses.append(loss.item())
    shards = [p for p in model.parameters() if isinstance(p, DTensor)]
    made = {
        "world_size": dist.get_world_size(),
        "mesh": {
            name: accelerator.torch_device_mesh[name].size()
            for name in accelerator.torch_device_mesh.mesh_dim_names
        },
        "num_micro_batches": accelerator.gradient_accumulation_steps,
        "steps": steps,
        "losses": losses,
        "num_params": num_params,
        "sharded_params": sum(p.numel() for p in shards),
        "shard_elements": sum(p.to_local().numel() for p in shards),
        "reshards": accelerator.state.fsdp_plugin.reshard_after_forward,
    }
    Path(os.environ["OUT"], f"{dist.get_rank()}.json").write_text(json.dumps(made))
    accelerator.end_training()
    leave()


if __name__ == "__main__":
    main()

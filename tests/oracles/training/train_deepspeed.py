"""Ten steps under DeepSpeed with the configuration given; what it made goes to $OUT."""

import argparse
import json
import os
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from tiny_model import STEPS, batch, build, leave


def partition_elements(optimizer: object) -> int:
    """Elements of the master weights that this rank updates."""
    names = (
        "single_partition_of_fp32_groups",
        "fp32_groups_flat_partition",
        "fp32_partitioned_groups_flat",
    )
    masters = next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))
    return sum(master.numel() for master in masters)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--deepspeed_config")
    options = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled
    dist.init_process_group("gloo")
    deepspeed.init_distributed("gloo")
    model = build()
    rate = json.loads(Path(options.deepspeed_config).read_text())["optimizer"]["params"]["lr"]
    num_params = sum(parameter.numel() for parameter in model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=rate),
        config=options.deepspeed_config,
    )
    seq_len = int(os.environ["SEQ_LEN"])
    tokens = batch(dist.get_rank(), engine.train_micro_batch_size_per_gpu(), seq_len)
    losses = []
    for _ in range(STEPS * engine.gradient_accumulation_steps()):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    made = {
        "world_size": dist.get_world_size(),
        "zero_stage": engine.zero_optimization_stage(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "num_micro_batches": engine.gradient_accumulation_steps(),
        "global_batch": engine.train_batch_size(),
        "steps": engine.global_steps,
        "losses": losses,
        "num_params": num_params,
        "shard_elements": partition_elements(engine.optimizer),
    }
    Path(os.environ["OUT"], f"{dist.get_rank()}.json").write_text(json.dumps(made))
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main()

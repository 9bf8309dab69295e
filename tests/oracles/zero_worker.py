"""The ranks of the sharding oracle: train tiny models and report the bytes of their real tensors.

Started by ``test_zero_shards.py`` with the address of the rendezvous in the environment:
``python zero_worker.py WORLD_SIZE``, in a folder that holds ``cases.json``. Every rank is a fork
that writes ``RANK.json`` there.
"""

import gc
import json
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "deepseek": (DeepseekV3Config, DeepseekV3ForCausalLM),
}


def storages(items: Iterable[Any]) -> dict[int, int]:
    """Bytes of every storage these tensors lie in, by address; containers are opened."""
    found: dict[int, int] = {}
    for item in items:
        if isinstance(item, dict):
            found |= storages(item.values())
        elif isinstance(item, list | tuple):
            found |= storages(item)
        elif isinstance(item, DTensor):
            found |= storages([item._local_tensor])
        elif isinstance(item, torch.Tensor) and item.device.type != "meta":
            storage = item.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    found.pop(0, None)
    return found


def size(items: Iterable[Any]) -> int:
    return sum(storages(items).values())


def live() -> list[torch.Tensor]:
    """Every tensor there is, single numbers apart."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
    return [item for item in tensors if item.untyped_storage().nbytes() > item.itemsize]


class Held:
    """Bytes of all tensors that came after this was made, and of the model it was made with."""

    def __init__(self, model: torch.nn.Module) -> None:
        own = {id(parameter) for parameter in model.parameters()}
        self.others = [weakref.ref(item) for item in live() if id(item) not in own]

    def bytes(self) -> int:
        return size(live()) - size(reference() for reference in self.others)


def build_model(case: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(0)
    config, model = MODELS[case["family"]]
    return model(config(**case["config"], use_cache=False))


def tokens(case: dict[str, Any]) -> torch.Tensor:
    return torch.randint(0, case["config"]["vocab_size"], (1, 16))


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(input_ids=batch, labels=batch).loss


def parameter_groups(model: torch.nn.Module) -> list[list[torch.nn.Parameter]]:
    """Matrices, vectors, and the last vector alone: a group smaller than its alignment."""
    parameters = list(model.parameters())
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim == 1]
    return [matrices, vectors[:-1], vectors[-1:]]


def adam_bytes(states: Iterable[dict[str, torch.Tensor]]) -> tuple[int, int]:
    """Bytes of the moments, and of the step counters."""
    states = list(states)
    moments = [tensor for state in states for name, tensor in state.items() if name != "step"]
    return size(moments), size([state["step"] for state in states])


def run_fsdp(case: dict[str, Any]) -> dict[str, Any]:
    """fully_shard per block and for the root; fp32 shards, bf16 compute, fp32 reduction."""
    model = build_model(case)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    held = Held(model)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = model.model.layers if case["family"] == "llama" else model.transformer.h
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gradients = []
    for _ in range(2):
        loss_of(model, tokens(case)).backward()
        gradients.append(size(p.grad for p in model.parameters()))
    optimizer.step()
    moments, steps = adam_bytes(optimizer.state.values())
    return {
        "parameters": size(model.parameters()),
        "accumulated": gradients[0],
        "gradients": gradients[1],
        "optimizer": moments,
        "steps": steps,
        "held": held.bytes(),
    }


def zero_config(case: dict[str, Any], scheme: dict[str, Any]) -> dict[str, Any]:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": scheme["stage"], **case["zero"]},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    if scheme["fp32_accumulation"]:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def gradient_tensors(engine: Any) -> Iterator[Any]:
    """Everything in which a ZeRO optimizer keeps gradients, buckets apart."""
    for parameter in engine.module.parameters():
        yield from (parameter.grad, getattr(parameter, "grad_accum", None))
    names = (
        "averaged_gradients",
        "all_grad_tensors",
        "grads_in_partition",
        "fp32_groups_gradients_flat",
        "grad_partitions_flat_buffer",
    )
    yield from (getattr(engine.optimizer, name, None) for name in names)
    yield from (master.grad for master in master_weights(engine.optimizer))


def master_weights(optimizer: Any) -> list[torch.Tensor]:
    names = (
        "single_partition_of_fp32_groups",
        "fp32_groups_flat_partition",
        "fp32_partitioned_groups_flat",
    )
    return next(getattr(optimizer, name) for name in names if hasattr(optimizer, name))


def bucket_tensors(engine: Any) -> Iterator[Any]:
    yield from (bucket.buffer for bucket in getattr(engine.optimizer, "ipg_buckets", {}).values())


def run_zero(case: dict[str, Any], scheme: dict[str, Any]) -> dict[str, Any]:
    """Two micro-batches and one step under DeepSpeed."""
    model = build_model(case)
    held = Held(model)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[{"params": group} for group in parameter_groups(model)],
        config=zero_config(case, scheme),
    )
    gradients, buckets = [], []
    for _ in range(2):
        engine.backward(loss_of(engine, tokens(case)))
        gradients.append(size(gradient_tensors(engine)))
        buckets.append(size(bucket_tensors(engine)))
        engine.step()
    masters = master_weights(engine.optimizer)
    partitions = [getattr(p, "ds_tensor", None) for p in model.parameters()]
    moments, steps = adam_bytes(engine.optimizer.optimizer.state[master] for master in masters)
    result = {
        "parameters": size([*model.parameters(), *partitions]),
        "accumulated": gradients[0],
        "gradients": gradients[1],
        "optimizer": size(masters) + moments,
        "steps": steps,
        "master_elements": [master.numel() for master in masters],
        "bucket_between": buckets[0],
        "bucket_before_step": buckets[1],
        "held": held.bytes(),
    }
    engine.destroy()
    return result


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    shapes = [list(parameter.shape) for parameter in build_model(case).parameters()]
    results: dict[str, Any] = {"shapes": shapes}
    for scheme in case["schemes"]:
        fsdp = scheme["name"] == "fsdp"
        results[scheme["name"]] = run_fsdp(case) if fsdp else run_zero(case, scheme)
    return results


def run_rank(rank: int, world_size: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    dist.init_process_group("gloo")
    deepspeed.init_distributed("gloo")
    cases = json.loads(Path("cases.json").read_text())
    found = {case["family"]: run_case(case) for case in cases}
    Path(f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(world_size: int) -> None:
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled
    gc.freeze()
    mp.start_processes(run_rank, (world_size,), nprocs=world_size, start_method="fork")


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Train a small GPT for real under one layout after the other; say what every rank saw.

``python reality_worker.py FOLDER`` reads ``FOLDER/cases.json``: sizes of the model, and runs, each
a layout with its number of ranks. For every run it forks so many ranks, which write
``FOLDER/RUN.RANK.json``: seconds of each step, bytes given to every collective, bytes held. The
device is the accelerator that torch finds, a GPU a rank, else the CPU with gloo.
"""

import contextlib
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from reality_model import Gpt, Sizes, loss_of, positions
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

WARM_UP = 2  # Steps before those that are timed: buckets are laid out anew behind the first
Run = dict[str, Any]
Step = Callable[[], None]


# --- what is seen ------------------------------------------------------------------------------


class Wire(TorchDispatchMode):
    """Bytes given to collectives by kind, as nccl-tests counts them.

    All-reduce, reduce and broadcast: the buffer; all-gather: what is gathered; reduce-scatter:
    what goes in; send: what is sent, and nothing for what is received. Not single numbers.
    """

    KINDS: ClassVar = {
        "all_gather": "all_gather",
        "allgather": "all_gather",
        "reduce_scatter": "reduce_scatter",
        "all_reduce": "all_reduce",
        "allreduce": "all_reduce",
        "broadcast": "broadcast",
        "reduce": "reduce",
        "alltoall": "all_to_all",
        "send": "send",
    }
    """Of operations whose name begins so, the first that fits."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it asks again with what it consists of
        made = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name.split("::")[1].lstrip("_")
            kind = next((kind for word, kind in self.KINDS.items() if name.startswith(word)), "")
            if kind:
                in_place = func.namespace == "c10d"
                handed = {"all_gather": made, "reduce_scatter": args[in_place]}.get(kind, args[0])
                handed = args[0] if in_place and kind == "all_gather" else handed
                self.sent[kind] += sum(x.nbytes for x in tensors_in(handed) if x.numel() > 1)
        return made


class Live(TorchDispatchMode):
    """Storages that operations made since this was entered, as long as they live."""

    def __init__(self, others: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.others = WeakIdKeyDictionary({x.untyped_storage(): None for x in others})
        self.known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        for tensor in tensors_in(made):
            if tensor.is_floating_point() and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                if storage not in self.others:
                    self.known.setdefault(storage, tensor.element_size())
        return made

    def sizes(self) -> Counter[int]:
        """How many storages of so many bytes live, those of single numbers apart."""
        gc.collect()
        return Counter(s.nbytes() for s, size in self.known.items() if s.nbytes() > size)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    leaves = (x._local_tensor if isinstance(x, DTensor) else x for x in tree_leaves(tree))
    return [x for x in leaves if isinstance(x, torch.Tensor)]


# --- layouts -----------------------------------------------------------------------------------


class Trainer:
    """A layout at work: a rank's model, its optimizer and one iteration."""

    def __init__(self, sizes: Sizes, run: Run, turns: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.sizes, self.run, self.device = sizes, run, turns[0].device
        self.micro_batch: int = run["micro_batch"]
        self.num: int = run["num_micro_batches"]
        self.gpt = Gpt(sizes, self.layers(), turns, recompute=run["recompute"]).to(self.device)
        self.gpt.on_layers = lambda: None if run["kind"] == "fsdp" else self.look()
        self.model: nn.Module = self.gpt
        self.optimizer: Any = None

    def look(self) -> None:
        """Called when a forward is through its layers; a sharded model's when its loss is there."""

    def look_at_step(self) -> None:
        """Called when the optimizer is about to update."""

    def layers(self) -> range:
        """Those that this rank has."""
        return range(self.sizes["num_layers"])

    def tokens(self, number: int = 1) -> torch.Tensor:
        shape = (number * self.micro_batch, self.sizes["seq_len"])
        return torch.randint(0, self.sizes["vocab_size"], shape, device=self.device)

    def adam(self) -> None:
        kinds = (
            [p for p in self.model.parameters() if isinstance(p, DTensor) == is_split]
            for is_split in (True, False)
        )
        groups = [{"params": some} for some in kinds if some]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
        self.optimizer.register_step_pre_hook(lambda *_: self.look_at_step())

    def waits(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients are not reduced before the last micro-batch."""
        return contextlib.nullcontext()

    def step(self) -> None:
        for number in range(self.num):
            with self.waits(number == self.num - 1):
                tokens = self.tokens()
                loss = loss_of(self.model(tokens), tokens) / self.num
                if self.run["kind"] == "fsdp":
                    self.look()
                loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Ddp(Trainer):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.adam()
        self.model = DistributedDataParallel(self.model)

    def waits(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if is_last else self.model.no_sync()


class Fsdp(Trainer):
    """FSDP2 around every block and the rest, as Accelerate wraps a model."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        for module in (*self.model.layers, self.model):
            fully_shard(module, mesh=mesh, reshard_after_forward=self.run["zero"] == 3)
        self.adam()

    def waits(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        self.model.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()


class Zero(Trainer):
    """DeepSpeed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        import deepspeed

        config = {
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.num,
            "zero_optimization": {
                "stage": self.run["zero"],
                "reduce_bucket_size": sum(p.numel() for p in self.model.parameters()),
                "stage3_param_persistence_threshold": 0,
                "stage3_max_live_parameters": 0,
                "stage3_max_reuse_distance": 0,
                "stage3_prefetch_bucket_size": 0,
            },
        }
        self.adam()
        self.engine, self.optimizer, *_ = deepspeed.initialize(
            model=self.model, optimizer=self.optimizer, config=config
        )

    def step(self) -> None:
        for _ in range(self.num):
            tokens = self.tokens()
            self.engine.backward(loss_of(self.engine(tokens), tokens))
            self.engine.step()


class Tensor(Trainer):
    """Tensor parallelism by DTensor, norms and what runs between the blocks whole on every rank."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        whole = PrepareModuleInput(
            input_layouts=(Replicate(), None, None), desired_input_layouts=(Replicate(), None, None)
        )
        one = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
        block = {
            "attention": whole,
            "attention.q": ColwiseParallel(),
            "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(),
            "attention.o": RowwiseParallel(),
            "mlp": one,
            "mlp.gate": ColwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(),
        }
        ends = {
            "embedding": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        for layer in self.model.layers:
            parallelize_module(layer, mesh, block)
        parallelize_module(self.model, mesh, ends)
        self.adam()

    def step(self) -> None:
        with loss_parallel():
            super().step()


class Pipeline(Trainer):
    """1F1B of torch.distributed.pipelining."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        stage, stages = dist.get_rank(), dist.get_world_size()
        self.stage = PipelineStage(self.model, stage, stages, self.device)
        self.schedule = Schedule1F1B(self.stage, self.num, loss_fn=loss_of)
        self.ends = (stage == 0, stage == stages - 1)
        self.adam()

    def layers(self) -> range:
        each = self.sizes["num_layers"] // dist.get_world_size()
        return range(dist.get_rank() * each, (dist.get_rank() + 1) * each)

    def step(self) -> None:
        tokens = self.tokens(self.num)
        is_first, is_last = self.ends
        self.schedule.step(*([tokens] if is_first else []), target=tokens if is_last else None)
        self.stage.clear_runtime_states()
        self.optimizer.step()
        self.optimizer.zero_grad()


KINDS = {"ddp": Ddp, "fsdp": Fsdp, "zero": Zero, "tensor": Tensor, "pipeline": Pipeline}


# --- a rank ------------------------------------------------------------------------------------


def synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
    dist.barrier()


def seen(sizes: Sizes, run: Run, device: torch.device) -> dict[str, Any]:
    """Train; first with an eye on bytes, then on the clock."""
    held: dict[str, Counter[int]] = {}
    turns = positions(sizes, device)

    forwards = iter(range(1, 1 + run["num_micro_batches"]))
    in_flight = dist.get_world_size() - dist.get_rank() if run["kind"] == "pipeline" else 1

    def look() -> None:
        if next(forwards, 0) == in_flight:
            held["forward"] = live.sizes()

    with Live(turns) as live:
        trainer = KINDS[run["kind"]](sizes, run, turns)
        trainer.step()
        held["between"] = live.sizes()
        trainer.look = look
        trainer.look_at_step = lambda: held.update(step=live.sizes())
        trainer.step()
        trainer.look = trainer.look_at_step = lambda: None
    with Wire() as wire:
        trainer.step()
    seconds = []
    for _ in range(WARM_UP + run["steps"] if run["steps"] else 0):
        synchronise(device)
        started = time.perf_counter()
        trainer.step()
        synchronise(device)
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds[WARM_UP:], "sent_bytes": wire.sent, "held": held}


def run_rank(rank: int, folder: Path, name: str, sizes: Sizes, run: Run) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {name: str(run["ranks"]) for name in ("WORLD_SIZE", "LOCAL_SIZE")}
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = torch.device(found.type, rank) if found else torch.device("cpu")
    if found:
        torch.accelerator.set_device_index(rank)
    else:
        torch.set_num_threads(1)
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend)
    if run["kind"] == "zero":
        import deepspeed

        deepspeed.init_distributed(backend)
    made = seen(sizes, run, device)
    (folder / f"{name}.{rank}.json").write_text(json.dumps(made))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may still ask for the interpreter, and abort


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    given = json.loads((folder / "cases.json").read_text())
    if not torch.accelerator.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    if any(run["kind"] == "zero" for run in given["runs"].values()):
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled
    gc.freeze()
    start = "spawn" if torch.accelerator.is_available() else "fork"
    for name, run in given["runs"].items():
        os.environ["MASTER_PORT"] = str(given["port"])
        given["port"] += 1
        mp.start_processes(
            run_rank,
            (folder, name, given["sizes"], run),
            nprocs=run["ranks"],
            start_method=start,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The device that a process measures: a CUDA or ROCm GPU, or its threads of the processor."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

KIB = 1024.0


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator: how it is called, and how much it remembers."""

    kind: Literal["cpu", "cuda", "rocm"]
    name: str
    torch: torch.device
    memory_bytes: float

    @property
    def is_gpu(self) -> bool:
        """Whether kernels run beside the host."""
        return self.kind != "cpu"

    def synchronise(self) -> None:
        """Wait until all that was launched is done."""
        if self.is_gpu:
            torch.cuda.synchronize(self.torch)

    def context_bytes(self) -> float:
        """What the process holds before its first tensor: of a GPU its context with kernels."""
        if self.is_gpu:
            free, total = torch.cuda.mem_get_info(self.torch)
            return float(total - free - torch.cuda.memory_reserved(self.torch))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB

    def dtypes(self) -> dict[str, torch.dtype]:
        """Precisions to measure products in, the usual one first."""
        if self.is_gpu:
            first = {"bf16": torch.bfloat16} if torch.cuda.is_bf16_supported() else {}
            return {**first, "fp16": torch.float16, "fp32": torch.float32}
        return {"fp32": torch.float32, "bf16": torch.bfloat16}


def this_device(local_rank: int, local_world: int) -> Device:
    """The GPU of this process, where torch sees any; else its share of the processor."""
    if torch.cuda.is_available():
        index = local_rank % torch.cuda.device_count()
        torch.cuda.set_device(index)
        properties = torch.cuda.get_device_properties(index)
        return Device(
            kind="rocm" if torch.version.hip else "cuda",
            name=properties.name,
            torch=torch.device("cuda", index),
            memory_bytes=float(properties.total_memory),
        )
    return Device(
        kind="cpu",
        name=processor_name(),
        torch=torch.device("cpu"),
        memory_bytes=host_memory_bytes() / local_world,
    )


def processor_name() -> str:
    """What the system calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "processor"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "processor")


def host_memory_bytes() -> float:
    """Of the host, or of the control group that holds it back."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, float(limit)) if limit.isdecimal() else total


def host_cores() -> int:
    """Cores that processes of this host may use."""
    return len(os.sched_getaffinity(0))

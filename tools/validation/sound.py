"""What of a published run contradicts the rest of it, or what its machine has."""

import math
import re
from collections.abc import Iterator

from planner.cost.kernels import peak_flops_per_s
from planner.spec.cluster import NodeSpec
from planner.units import GB, GIB, TERA
from tools.validation.records import MEMORY_UNITS, Record

RATE_TOLERANCE = 0.25
"""Of tokens per second beside a time: sources round, and where padding is left out have fewer."""
LABEL_TOLERANCE = 0.1
"""Of memory on a label beside what programs see, in GB or GiB."""


def contradictions(record: Record) -> Iterator[str]:
    """Yield what of a record excludes something else that it states."""
    model, parallel, memory = record.model, record.parallel, record.memory
    if model.moe and model.moe.top_k > model.moe.experts:
        text = f"given {model.moe.top_k}, allowed up to {model.moe.experts}, the experts"
        yield f"model.moe.top_k: {text}"
    if model.heads and model.kv_heads and model.heads % model.kv_heads:
        yield f"model.kv_heads: given {model.kv_heads}, allowed are divisors of {model.heads} heads"
    if (parallel.ep or 1) > 1 and not model.moe:
        yield f"parallel.ep: given {parallel.ep}, allowed 1: the model has no experts"
    if record.out_of_memory and record.iter_time_s:
        yield f"iter_time_s: given {record.iter_time_s:g}, allowed none: the run is out of memory"
    if memory and (memory.allocated_gib or 0.0) > (memory.reserved_gib or math.inf):
        text = f"given {memory.allocated_gib:g}, allowed up to reserved_gib {memory.reserved_gib:g}"
        yield f"memory.allocated_gib: {text}"
    for name in ("mfu", "hfu"):
        if (share := getattr(record, name) or 0.0) > 1.0:
            yield f"{name}: given {share:g}, allowed above 0 and up to 1, a share of the peak"
    tokens = (parallel.global_batch or 0) * (model.seq_len or 0)
    if record.tokens_per_s_per_gpu and record.iter_time_s and record.hardware.gpus and tokens:
        rate = tokens / record.iter_time_s / record.hardware.gpus
        if record.tokens_per_s_per_gpu > rate * (1.0 + RATE_TOLERANCE):
            text = f"given {record.tokens_per_s_per_gpu:g}, allowed up to {rate:.5g} by iter_time_s"
            yield f"tokens_per_s_per_gpu: {text}"


def impossible(record: Record, node: NodeSpec) -> Iterator[str]:
    """Yield what of a record no machine of its kind can have or do."""
    accelerator, hardware, memory = node.accelerator, record.hardware, record.memory
    named = re.sub("[-_ ]", "", hardware.gpu.lower())
    is_other = not named.startswith(accelerator.name.split("-")[0])
    label = re.search(r"(\d+)gb", hardware.gpu.lower())
    labelled = float(label[1]) * GB if label else accelerator.hbm_bytes
    if is_other or abs(labelled / accelerator.hbm_bytes - 1.0) > LABEL_TOLERANCE:
        has = f"{accelerator.name} of {accelerator.hbm_bytes / GB:.0f} GB"
        yield f"hardware.gpu: given {hardware.gpu}, allowed as {hardware.node} has: {has}"
    peak = peak_flops_per_s(accelerator, record.precision) / TERA
    if (record.tflops_per_gpu or 0.0) > peak:
        text = f"given {record.tflops_per_gpu:g}, allowed up to {peak:g} in {record.precision}"
        yield f"tflops_per_gpu: {text} on {accelerator.name}"
    for name in ("allocated_gib", "reserved_gib", "nvidia_smi_gb"):
        held = (getattr(memory, name, None) or 0.0) * MEMORY_UNITS[memory.unit if memory else "GiB"]
        if held * GIB > accelerator.hbm_bytes * (1.0 + LABEL_TOLERANCE):
            most = f"{accelerator.hbm_bytes / GIB:.4g} on {accelerator.name}"
            yield f"memory.{name}: given {held:g} GiB, allowed up to {most}"

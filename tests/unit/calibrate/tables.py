"""A table as a machine of known figures would make it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.calibrate.points import HOST_ADAM_BYTES, work_of
from planner.calibrate.rows import Machine, Measured, Table
from planner.collectives.cost import busbw_factor
from planner.cost.attention_kernels import flash_attention_backward_s, flash_attention_forward_s
from planner.cost.kernels import product_s
from planner.layers.op import Gemm
from planner.spec.cluster import AcceleratorSpec, AttentionEfficiency, GemmEfficiency

ATTENTION = AttentionEfficiency(
    forward_fraction=0.5,
    forward_s0=200.0,
    backward_fraction=0.4,
    backward_s0=150.0,
    launch_s=2e-5,
    head_dims=(32.0, 64.0, 128.0),
    forward_head_factors=(0.7, 0.9, 1.0),
    backward_head_factors=(0.6, 0.8, 1.0),
)
TRUTH = AcceleratorSpec(
    name="x",
    vendor="CPU",
    hbm_bytes=2**33,
    hbm_bytes_per_s=12e9,
    peak_flops_per_s={"fp32": 50e9},
    memory_bound_fraction=0.4,
    gemm=GemmEfficiency(sustained_fraction=0.95, m0=15.0, n0=12.0, k0=8.0, launch_s=2e-5),
    attention=ATTENTION,
    attention_flash2=ATTENTION,
)
MACHINE = Machine(
    date="2026-01-02",
    device="cpu",
    name="A Processor",
    software="torch 2",
    backend="gloo",
    nodes=1,
    per_node=4,
    threads=2,
    memory_bytes=2.0**33,
    context_bytes=2.0**28,
    host_memory_bytes=2.0**35,
    host_cores=8,
)
ALL_REDUCE = (2e-4, 1.5e9)  # Latency and bus bandwidth
ADAM_BYTES_PER_S = 9e9


def blank(**fields: object) -> Measured:
    known = {"ranks": 4, "time_us": 1e6, "spread_us": 0.0, "repeats": 5, **fields}
    return Measured(**known)  # type: ignore[arg-type]


def at(row: Measured, seconds: float) -> Measured:
    return replace(row, time_us=float(seconds) * 1e6, spread_us=2e4 * float(seconds))


def products() -> Iterator[Measured]:
    for m in (128, 512, 2048):
        for n, k in ((64, 64), (256, 256), (1024, 256), (256, 1024), (1024, 1024)):
            sides = Gemm(m=np.array(m), n=np.array(n), k=np.array(k))
            row = blank(what="product", dtype="fp32", m=m, n=n, k=k)
            yield at(row, product_s(sides, TRUTH, "fp32"))
    best = blank(what="product", dtype="fp32", m=8192, n=4096, k=4096)
    yield at(best, 2.0 * 8192 * 4096 * 4096 / 50e9)
    yield at(blank(what="product", dtype="bf16", m=128, n=128, k=128), 1e-2)


def attentions() -> Iterator[Measured]:
    for head_dim in (32, 64, 128):
        for seq_len in (128, 512, 2048):
            shape = {"batch": 2, "heads": 4, "seq_len": seq_len, "head_dim": head_dim}
            for what, seconds in (
                ("attention_forward", flash_attention_forward_s),
                ("attention_backward", flash_attention_backward_s),
            ):
                row = blank(what=what, dtype="fp32", **shape)
                yield at(row, np.sum(seconds(work_of(row), TRUTH, "fp32")))


def others() -> Iterator[Measured]:
    yield at(blank(what="launch"), 1e-5)
    yield at(blank(what="copy", dtype="fp32", num_bytes=2**27), 2**27 / 12e9)
    for what in ("add", "norm"):
        yield at(blank(what=what, dtype="fp32", num_bytes=2**24), 2**24 / (0.4 * 12e9))
    yield at(blank(what="host_adam", params=2**20), HOST_ADAM_BYTES * 2**20 / ADAM_BYTES_PER_S)
    for power in range(12, 26, 2):
        size = 2**power
        for ranks in (2, 4):
            factor = float(busbw_factor("all_reduce", float(ranks)))
            row = blank(what="all_reduce", dtype="fp32", ranks=ranks, num_bytes=size)
            yield at(row, ALL_REDUCE[0] + factor * size / ALL_REDUCE[1])
        yield at(blank(what="p2p", dtype="fp32", ranks=2, num_bytes=size), 1e-4 + size / 1e9)


def synthetic() -> Table:
    rows = (*products(), *attentions(), *others())
    return Table(machine=MACHINE, rows=rows)

"""Results of checks, made up, with everything in them that a report has to escape."""

from planner.check.result import Figures, FileResult, finding_of
from planner.errors import Problem
from planner.formats.format import Finding

NASTY = 'a <b> & "c" 100% done: x,y\nnext line'

CLEAN = FileResult(
    path="configs/clean.json",
    format="deepspeed",
    framework="deepspeed",
    model="llama3-8b",
    cluster="2xdgx-h100",
    num_gpus=16,
    assumed=("sequences of 8192 tokens", "bf16"),
    figures=Figures(
        iter_time_s=22.9,
        tokens_per_s=182935.0,
        peak_bytes=72.0 * 2**30,
        usable_bytes=79.1 * 2**30,
        peak_stage=0,
    ),
)
BROKEN = FileResult(
    path="configs/broken, 100%.yaml",
    format="plan",
    framework="megatron",
    model="llama3-8b",
    cluster="2xdgx-h100",
    num_gpus=24,
    findings=(
        Finding(
            rule="legality.tp_divides_heads",
            severity="error",
            message="Attention heads are split whole over tensor-parallel ranks. Given: tp=3",
            path="configs/broken, 100%.yaml",
            key="strategy.tp",
            line=18,
        ),
        Finding(
            rule="memory.tight",
            severity="warning",
            message=NASTY,
            path="configs/broken, 100%.yaml",
            key="strategy.micro_batch",
            line=24,
        ),
        Finding(
            rule="advice.better_plan",
            severity="note",
            message="12% faster for the same batch on the same GPUs",
            path="configs/broken, 100%.yaml",
        ),
    ),
    num_ignored=2,
)
UNREADABLE = FileResult(
    path="/tmp/a b.json",
    findings=(
        finding_of(
            Problem(where="/tmp/a b.json", key="line 3", message="not JSON"), "/tmp/a b.json"
        ),
    ),
    fail_on="warning",
)
RESULTS = (CLEAN, BROKEN, UNREADABLE)

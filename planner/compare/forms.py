"""Forms of each framework's printed steps, memory and sizes: one table, a row per form.

Sources: Megatron-LM megatron/training/training.py training_log and utils.py report_memory;
Megatron-Bridge training/utils/train_utils.py; NeMo lightning/pytorch/callbacks/progress_printer.py;
DeepSpeed utils/timer.py ThroughputTimer and runtime/pipe/engine.py; torchtitan
components/metrics.py; transformers trainer.py and tqdm; ms-swift's progress callback.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from re import Pattern
from typing import Literal

from planner.units import GIB, MIB

Unit = Literal["ms", "s", "samples/s", "tokens/s/GPU", "it/s"]  # as a log prints its steps
TIMES: Mapping[str, float] = {"ms": 1e-3, "s": 1.0}  # the other units are rates
_N = r"(?P<value>[0-9][0-9.,]*(?:[eE][+-]?\d+)?)"
_BAR = r"(?:^|\s)(?:{name})\s*\d+%\|[^|]*\|\s*(?P<number>\d+)/(?P<total>\d+) \[[^\]]*?, *"


@dataclass(frozen=True, kw_only=True)
class StepForm:
    """A line that says how fast a step was; ``number`` and ``value`` are groups of the pattern."""

    framework: str
    unit: Unit
    line: Pattern[str]
    is_bar: bool = False  # printed anew while the step runs: the last of a number counts
    by_all_ranks: bool = False  # lines of a step may stand among those of the next
    is_summary: bool = False  # one figure for the whole run, taken where nothing better is there


def _step(framework: str, unit: Unit, line: str, **more: bool) -> StepForm:
    return StepForm(framework=framework, unit=unit, line=re.compile(line), **more)


_MEGATRON = r"iteration\s+(?P<number>\d+)\s*/\s*\d+ \|.*?elapsed time per iteration \({}\):\s*" + _N
# Tried in this order on every line; the form with most lines is the log's.
STEPS: tuple[StepForm, ...] = (
    _step("megatron", "ms", _MEGATRON.format("ms")),
    _step("megatron", "s", _MEGATRON.format("s")),
    _step("nemo", "s", r"global_step: (?P<number>\d+) \|.*?train_step_timing in s: " + _N),
    _step(
        "nemo",
        "s",
        r"global_step=(?P<number>\d+)[^\]]*train_step_timing in s=" + _N,
        is_bar=True,
    ),
    _step("bridge", "s", r"Step Time : " + _N + r"s GPU utilization"),
    _step(
        "deepspeed",
        "samples/s",
        r"(?:global_step=|\] +\d+/)(?P<number>\d+), (?:.*CurrSamplesPerSec|SamplesPerSec)=" + _N,
    ),
    _step("deepspeed", "s", r"steps: (?P<number>\d+) .*iter time \(s\): " + _N),
    _step(
        "torchtitan",
        "tokens/s/GPU",
        r"step:\s*(?P<number>\d+) .*\b[tw]ps: *" + _N,
        by_all_ranks=True,
    ),
    _step(
        "trainer",
        "it/s",
        r"'global_step/max_steps': '(?P<number>\d+)/\d+'.*'train_speed\(iter/s\)': '?" + _N,
    ),
    _step(
        "trainer",
        "s",
        r"'global_step/max_steps': '(?P<number>\d+)/\d+'.*'train_speed\(s/it\)': '?" + _N,
    ),
    _step("nemo", "s", _BAR.format(name=r"Epoch \d+:") + _N + "s/it", is_bar=True),
    _step("nemo", "it/s", _BAR.format(name=r"Epoch \d+:") + _N + "it/s", is_bar=True),
    _step("trainer", "s", _BAR.format(name="") + _N + "s/it", is_bar=True),
    _step("trainer", "it/s", _BAR.format(name="") + _N + "it/s", is_bar=True),
    _step(
        "trainer",
        "samples/s",
        r"['\"]?train_samples_per_second['\"]?\s*[:=]\s*['\"]?" + _N,
        is_summary=True,
    ),
)
# Peaks of memory: field of Memory, a line as printed, bytes of its unit.
MEMORY: tuple[tuple[str, str, float], ...] = (
    ("allocated_bytes", r"memory \(MB\) \|.*?max allocated: ([\d.]+)", MIB),
    ("reserved_bytes", r"memory \(MB\) \|.*?max reserved: ([\d.]+)", MIB),
    ("allocated_bytes", r"MaxMemAllocated=([\d.]+)GB", GIB),
    ("reserved_bytes", r"\bmemory: *([\d.]+)GiB\(", GIB),
    ("reserved_bytes", r"'memory\(GiB\)': '?([\d.]+)", GIB),
    ("allocated_bytes", r"max_mem_allocated\(gib\)'?: '?([\d.]+)", GIB),
    ("reserved_bytes", r"device_mem_reserved\(gib\)'?: '?([\d.]+)", GIB),
    ("reserved_bytes", r"max_memory_reserved: ([\d.]+)(?= )", 1.0),
)
# Of the job; the last line that says one counts, as batches grow.
SIZES: Mapping[str, tuple[Pattern[str], ...]] = {
    "global_batch": (
        re.compile(r"global batch size: *([\d,]+)"),
        re.compile(r"global_batch_size: ([\d,]+)"),
        re.compile(r"global batch size ([\d,]+)"),
        re.compile(r"Total train batch size \(.*\) = ([\d,]+)"),
    ),
    "seq_len": (re.compile(r"sequence length ([\d,]+)"),),
    "num_gpus": (
        re.compile(r"using world size: ([\d,]+)"),
        re.compile(r"dist_world_size=(\d+)"),
        re.compile(r"'world_size': (\d+)"),
    ),
}
PER_DEVICE = re.compile(r"Instantaneous batch size per device = ([\d,]+)")
ACCUMULATION = re.compile(r"Gradient Accumulation steps = ([\d,]+)")
TOTAL_STEPS = re.compile(r"Total optimization steps = ([\d,]+)")
MESH = re.compile(r"Building \d-D device mesh with \[[^\]]*\], \[([\d, ]+)\]")
ELAPSED = re.compile(r"elapsed time per iteration \(([^)]*)\)")
# Marks of a framework's log before it has finished a step.
STARTS: Mapping[str, Pattern[str]] = {
    "megatron": re.compile(r"^\W*-{5,} arguments -{5,}|elapsed time per iteration"),
    "deepspeed": re.compile(r"\[(?:config|logging|timer)\.py:\d+:"),
    "torchtitan": re.compile(r"Starting job: |Running with (?:args|configs?): "),
    "trainer": re.compile(r"\*{5} Running training \*{5}"),
    "nemo": re.compile(r"\[NeMo [IW] |train_step_timing"),
}
ONCE = re.compile(r"-{5,} end of arguments -{5,}")  # what one rank prints once in a run
# Colours, their escape sometimes lost on the way.
ANSI = re.compile(r"\x1b?\[(?:\d{1,3})(?:;\d{1,3})*m|\x1b\[[A-Z]")
BLANKS = re.compile(r"[ \t]{2,}")  # columns of blanks say nothing, and make patterns slow

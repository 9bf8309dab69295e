"""What each framework prints: steps, memory and sizes, a row per form; its settings, as a file.

Sources: Megatron-LM megatron/training/training.py training_log and utils.py report_memory;
Megatron-Bridge training/utils/train_utils.py; NeMo lightning/pytorch/callbacks/progress_printer.py;
DeepSpeed utils/timer.py ThroughputTimer and runtime/pipe/engine.py; torchtitan
components/metrics.py; transformers trainer.py and tqdm; ms-swift's progress callback.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from re import Pattern
from typing import Any, Literal

from planner.errors import InputError
from planner.formats.bridge.format import read_dumped as read_bridge
from planner.formats.format import Located, ParsedConfig, SourceText
from planner.formats.megatron.format import read_dumped as read_megatron
from planner.formats.registry import load_format
from planner.formats.torchtitan.read import read_settings
from planner.limits import MAX_FILE_BYTES
from planner.units import GIB, MIB

Unit = Literal["ms", "s", "samples/s", "tokens/s/GPU", "it/s"]  # as a log prints its steps
TIMES: Mapping[str, float] = {"ms": 1e-3, "s": 1.0}  # the other units are rates
Prints = Literal["once", "bar", "by all ranks", "summary"]
# Words of the patterns below that stand for groups of them.
GROUPS = {
    "NUMBER": r"(?P<number>\d+)",
    "VALUE": r"(?P<value>[0-9][0-9.,]*(?:[eE][+-]?\d+)?)",
    "BAR": r"\d+%\|[^|]*\|\s*(?P<number>\d+)/(?P<total>\d+) \[[^\]]*?, *",
}


@dataclass(frozen=True)
class StepForm:
    """A line that says how fast a step was; ``number`` and ``value`` are groups of the pattern.

    A bar is printed anew while the step runs: the last of a number counts. Lines of all ranks may
    stand among those of the next step. A summary is one figure for the whole run, taken where
    nothing better is there.
    """

    framework: str
    unit: Unit
    line: Pattern[str]
    prints: Prints

    @classmethod
    def of(cls, framework: str, unit: Unit, line: str, prints: Prints = "once") -> "StepForm":
        """The form of a pattern with words of GROUPS."""
        for word, group in GROUPS.items():
            line = line.replace(word, group)
        return cls(framework, unit, re.compile(line), prints)


_MEGATRON = r"iteration\s+NUMBER\s*/\s*\d+ \|.*?elapsed time per iteration "
_SWIFT = r"'global_step/max_steps': 'NUMBER/\d+'.*'train_speed"
# Tried in this order on every line; the form with most lines is the log's.
STEPS: tuple[StepForm, ...] = (
    StepForm.of("megatron", "ms", _MEGATRON + r"\(ms\):\s*VALUE"),
    StepForm.of("megatron", "s", _MEGATRON + r"\(s\):\s*VALUE"),
    StepForm.of("nemo", "s", r"global_step: NUMBER \|.*?train_step_timing in s: VALUE"),
    StepForm.of("nemo", "s", r"global_step=NUMBER[^\]]*train_step_timing in s=VALUE", "bar"),
    StepForm.of("bridge", "s", r"Step Time : VALUEs GPU utilization"),
    StepForm.of(
        "deepspeed",
        "samples/s",
        r"(?:global_step=|\] +\d+/)NUMBER, (?:.*CurrSamplesPerSec|SamplesPerSec)=VALUE",
    ),
    StepForm.of("deepspeed", "s", r"steps: NUMBER .*iter time \(s\): VALUE"),
    StepForm.of("torchtitan", "tokens/s/GPU", r"step:\s*NUMBER .*\b[tw]ps: *VALUE", "by all ranks"),
    StepForm.of("trainer", "it/s", _SWIFT + r"\(iter/s\)': '?VALUE"),
    StepForm.of("trainer", "s", _SWIFT + r"\(s/it\)': '?VALUE"),
    StepForm.of("nemo", "s", r"(?:^|\s)(?:Epoch \d+:)\s*BARVALUEs/it", "bar"),
    StepForm.of("nemo", "it/s", r"(?:^|\s)(?:Epoch \d+:)\s*BARVALUEit/s", "bar"),
    StepForm.of("trainer", "s", r"(?:^|\s)\s*BARVALUEs/it", "bar"),
    StepForm.of("trainer", "it/s", r"(?:^|\s)\s*BARVALUEit/s", "bar"),
    StepForm.of(
        "trainer",
        "samples/s",
        r"['\"]?train_samples_per_second['\"]?\s*[:=]\s*['\"]?VALUE",
        "summary",
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
# Of the job, the first form that there is; the last line that says one counts, as batches grow.
SIZES = (
    ("global_batch", r"global batch size: *([\d,]+)"),
    ("global_batch", r"global_batch_size: ([\d,]+)"),
    ("global_batch", r"global batch size ([\d,]+)"),
    ("global_batch", r"Total train batch size \(.*\) = ([\d,]+)"),
    ("seq_len", r"sequence length ([\d,]+)"),
    ("num_gpus", r"using world size: ([\d,]+)"),
    ("num_gpus", r"dist_world_size=(\d+)"),
    ("num_gpus", r"'world_size': (\d+)"),
    ("batch_per_device", r"Instantaneous batch size per device = ([\d,]+)"),
    ("accumulation", r"Gradient Accumulation steps = ([\d,]+)"),
    ("total_steps", r"Total optimization steps = ([\d,]+)"),
)
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
# Colours, their escape sometimes lost on the way.
ANSI = re.compile(r"\x1b?\[(?:\d{1,3})(?:;\d{1,3})*m|\x1b\[[A-Z]")
BLANKS = re.compile(r"[ \t]{2,}")  # columns of blanks say nothing, and make patterns slow
CLOSES = re.compile(r"-{5,} end of arguments -{5,}")  # one rank prints it, once in a run
MAX_ATTRIBUTE = 1_000  # characters of a line of arguments that are looked at
_JSON = re.compile(r"\bjson = (\{.*)")
_TITAN = re.compile(r"Running with (?:args|configs?): (\{.*)")


@dataclass(frozen=True, kw_only=True)
class Dump:
    """The settings that a run printed at its start."""

    reading: ParsedConfig
    framework: str  # whose traits hold


def dump_in(path: str, lines: Sequence[str]) -> tuple[Dump | None, tuple[str, ...]]:
    """The first dump that can be read, and what is wrong with others."""
    notes: list[str] = []
    for opens, read in _READERS:
        at = _line_of(lines, opens)
        if at is None:
            continue
        try:
            return read(path, lines, at), tuple(notes)
        except InputError as error:
            notes.append(f"line {at}: {error.problems[0].message}")
    return None, tuple(notes)


def _unusable(path: str, why: str) -> InputError:
    return InputError.single(path, "layout", why)


def _line_of(lines: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    return next((at for at, line in enumerate(lines, 1) if pattern.search(line)), None)


def _megatron(path: str, lines: Sequence[str], first: int) -> Dump:
    last = _line_of(lines[first:], CLOSES)
    if last is None:
        raise _unusable(path, "the arguments have no end: they are truncated, and not used")
    given = {}
    form = r"(?:^|\s)(\w+) \.{2,} ?(.*?)(?: *\.{3,}(?:default|updated))?\s*$"
    for at, line in enumerate(lines[first : first + last - 1], first + 1):
        if match := re.search(form, line[:MAX_ATTRIBUTE]):
            name, value = match.groups()
            given[name] = Located(value=value.strip(), key=name, line=at)
    found = read_megatron(path, given)
    if found is None:
        raise _unusable(path, "arguments of an old Megatron: --config says the layout")
    return Dump(reading=found[0], framework=found[1])


def _bridge(path: str, lines: Sequence[str], first: int) -> Dump:
    given: dict[str, Located] = {}
    group = ""
    heading = r"\[(\w+)\](?: Non-default values \(.*\))?:\s*$"
    field = r"(?:^|\s)(\w+): (.*?)(?: +\(Mcore default: .*\))?\s*$"
    for at, line in enumerate(lines[first:], first + 1):
        if match := re.search(heading, line[:MAX_ATTRIBUTE]):
            group = match[1]
        elif group and (match := re.search(field, line[:MAX_ATTRIBUTE])):
            key = f"{group}.{match[1]}"
            given.setdefault(key, Located(value=match[2], key=key, line=at))
        # the last group
        elif group == "rng" and "=====" in line:
            break
    reading = read_bridge(path, given)
    if reading is None:
        raise _unusable(path, "the configuration is truncated, and not used")
    return Dump(reading=reading, framework="megatron")


def _nemo(path: str, _lines: Sequence[str], _first: int) -> Dump:
    raise _unusable(path, "NeMo 1.x's YAML is not covered: --config says the layout")


def _titan(path: str, lines: Sequence[str], at: int) -> Dump:
    # What it prints stands in one line.
    return Dump(
        reading=read_settings(path, _braces(path, lines, at, _TITAN), defaultdict(lambda: at)),
        framework="torchtitan",
    )


def _deepspeed(path: str, lines: Sequence[str], at: int) -> Dump:
    settings = json.dumps(_braces(path, lines, at, _JSON), indent=4)
    # blank lines before it, so that the reader's lines are the log's
    text = "\n" * (at - 1) + settings
    reading = load_format("deepspeed").read(SourceText(path=path, text=text))
    return Dump(reading=replace(reading, path=path), framework="deepspeed")


def _braces(
    path: str,
    lines: Sequence[str],
    at: int,
    opens: re.Pattern[str],
) -> dict[str, Any]:
    """The JSON object that begins in a line, on one or several."""
    match = opens.search(lines[at - 1])
    assert match is not None
    text = "\n".join([match[1], *lines[at:]])[:MAX_FILE_BYTES]
    try:
        data, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise _unusable(path, "the settings are truncated, and not used")
    return data


_READERS: tuple[tuple[re.Pattern[str], Callable[[str, Sequence[str], int], Dump]], ...] = (
    (re.compile(r"-{5,} arguments -{5,}"), _megatron),
    (re.compile(r"Configuration Summary \(Non-Default Values"), _bridge),
    (re.compile(r"\*{5,} Experiment configuration \*{5,}"), _nemo),
    (_TITAN, _titan),
    (_JSON, _deepspeed),
)

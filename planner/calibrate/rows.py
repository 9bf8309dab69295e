"""What ``planner calibrate --measure`` found: a machine and rows, as a CSV that people can read.

Lines of ``# key: value`` say what the machine is, then follow a header and one row per measurement.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_type_hints

from planner.errors import InputError, Problem
from planner.limits import brief, one_line
from planner.units import US

What = Literal[
    "product",
    "attention_forward",
    "attention_backward",
    "copy",
    "add",
    "norm",
    "launch",
    "host_to_device",
    "device_to_host",
    "host_adam",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "p2p",
]
FIRST_LINE = "# planner measurements"
MOST_ROWS = 5000
"""A run of ``--measure`` has some hundreds."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measurement: what, of which size, how long; sizes that do not apply are 0.

    ``num_bytes``: of collectives as nccl-tests counts them; of a copy and of host links what is
    copied; of other kernels all that is read and written.
    """

    what: What
    dtype: str = ""
    ranks: int = 1
    """That did it together, or that were busy with the same at once."""
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0
    heads: int = 0
    seq_len: int = 0
    head_dim: int = 0
    num_bytes: int = 0
    params: int = 0
    time_s: float
    """Median of the repeats of all ranks."""
    spread_s: float
    """Half the distance of the quartiles."""
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was measured on: one process per accelerator."""

    date: str
    device: Literal["cpu", "cuda", "rocm"]
    name: str
    """Of the device, or of the processor."""
    software: str
    backend: str
    """Of torch.distributed; empty: one process alone, nothing between ranks was measured."""
    nodes: int
    per_node: int
    """Accelerators."""
    threads: int
    """Of each process."""
    memory_bytes: float
    """Of one accelerator; of a processor its process's share of the host's."""
    context_bytes: float
    """That a process holds before it makes a tensor of its own."""
    host_memory_bytes: float
    host_cores: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """A machine and what was measured on it; ``lines`` says where each row stands."""

    machine: Machine
    rows: tuple[Measured, ...]
    lines: tuple[int, ...] = ()

    def of(self, *what: What) -> list[Measured]:
        """The rows of these kinds."""
        return [row for row in self.rows if row.what in what]


_RENAMED = {"num_bytes": "bytes", "time_s": "time_us", "spread_s": "spread_us"}
_HINTS = get_type_hints(Measured)
_COLUMNS = [_RENAMED.get(name, name) for name in _HINTS]


def table_text(table: Table) -> str:
    """The table as CSV, times in microseconds."""
    out = io.StringIO()
    out.write(f"{FIRST_LINE}\n")
    for key, value in asdict(table.machine).items():
        text = f"{value:.0f}" if isinstance(value, float) else one_line(str(value))
        out.write(f"# {key}: {text}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in table.rows:
        writer.writerow(_cell(key, value) for key, value in asdict(row).items())
    return out.getvalue()


def _cell(key: str, value: object) -> str:
    if key in ("time_s", "spread_s") and isinstance(value, float):
        return f"{value / US:.4g}"
    return "" if value == 0 and key != "repeats" else str(value)


def is_table(text: str) -> bool:
    """Whether a text begins as a table of measurements does."""
    return text.startswith(FIRST_LINE)


def read_table(path: str, text: str) -> Table:
    """The table of a text; raises InputError with every problem of its machine, or its rows."""
    lines = text.splitlines()
    head = [line[1:].partition(":") for line in lines[1:] if line.startswith("#")]
    machine = _machine(path, {key.strip(): value.strip() for key, _, value in head})
    start = 1 + len(head)
    reader = csv.DictReader(lines[start:])
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        message = f"columns missing: {', '.join(missing)}"
        raise InputError.single(path, f"line {start + 1}", message)
    rows: list[Measured] = []
    where: list[int] = []
    problems: list[Problem] = []
    for raw in reader:
        at = start + reader.line_num
        try:
            rows.append(_row(raw))
            where.append(at)
        except ValueError as error:
            problems.append(Problem(where=path, key=f"line {at}", message=str(error)))
        if len(rows) > MOST_ROWS:
            message = f"more than {MOST_ROWS:,} rows"
            raise InputError.single(path, f"line {at}", message)
    if not rows and not problems:
        message = "the table has no row: it is truncated"
        raise InputError.single(path, f"line {len(lines)}", message)
    if problems:
        # the first lines show what is wrong; a spoilt column would name thousands
        raise InputError(problems[:10])
    return Table(machine=machine, rows=tuple(rows), lines=tuple(where))


def _machine(path: str, given: dict[str, str]) -> Machine:
    values: dict[str, Any] = {}
    problems = []
    for name, hint in get_type_hints(Machine).items():
        try:
            values[name] = _typed(hint, given.get(name, ""), name)
        except ValueError as error:
            problems.append(Problem(where=path, key=f"# {name}", message=str(error)))
    if problems:
        raise InputError(problems)
    return Machine(**values)


def _row(raw: dict[str, str]) -> Measured:
    values: dict[str, Any] = {}
    for column, (name, hint) in zip(_COLUMNS, _HINTS.items(), strict=True):
        value = _typed(hint, (raw.get(column) or "").strip(), column)
        values[name] = value * US if column.endswith("_us") else value
    if not values["time_s"] > 0 or values["repeats"] < 1:
        raise ValueError("time_us and repeats must be above 0")
    return Measured(**values)


def _typed(hint: object, text: str, key: str) -> Any:  # noqa: ANN401 - by the field
    """A cell as its field's type: a number of 0 or more, one of the words of a Literal, text."""
    if hint in (int, float):
        try:
            number = float(text or 0)
        except ValueError:
            number = -1.0
        if not 0 <= number < math.inf or (hint is int and number != int(number)):
            raise ValueError(f"{key} must be a number of 0 or more; given {brief(text)}")
        return int(number) if hint is int else number
    allowed: Sequence[str] = get_args(hint)
    if allowed and text not in allowed:
        raise ValueError(f"{key} {brief(text)}; allowed are {', '.join(allowed)}")
    return text

"""Result of ``planner calibrate --measure``: a machine and rows, as a CSV that people can read.

Lines of ``# key: value`` say what the machine is, then follow a header and one row per measurement.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from planner.catalog.figures import message_of
from planner.errors import InputError, Problem
from planner.limits import one_line
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
TRUNCATED = "the table has no row: it is truncated"
FIRST_LINE = "# planner measurements"
# A run of `--measure` has some hundreds.
MOST_ROWS = 5000
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measurement: what, of which size, how long; sizes that do not apply are 0.

    ``num_bytes``: of collectives as nccl-tests counts them; of a copy and of host links what is
    copied; of other kernels all that is read and written.
    """

    what: What
    dtype: str = ""
    ranks: Count = 1  # that did it together, or that were busy with the same at once
    m: Count = 0
    n: Count = 0
    k: Count = 0
    batch: Count = 0
    heads: Count = 0
    seq_len: Count = 0
    head_dim: Count = 0
    num_bytes: Count = 0
    params: Count = 0
    time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # median of the repeats of all ranks
    spread_s: Amount  # half the distance of the quartiles
    repeats: Annotated[int, Field(ge=1)]

    @property
    def deviation(self) -> float:
        """Spread over time: how surely the row says a figure."""
        return self.spread_s / self.time_s

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of all that is counted in ``num_bytes``."""
        return self.num_bytes / self.time_s

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of a GEMM."""
        return 2.0 * self.m * self.n * self.k / self.time_s


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The measured machine: one process per accelerator."""

    date: str
    device: Literal["cpu", "cuda", "rocm"]
    name: str  # of the device, or of the processor
    software: str
    # Of torch.distributed; empty: one process alone, nothing between ranks was measured.
    backend: str
    nodes: Count
    per_node: Count  # accelerators
    threads: Count  # of each process
    # Of one accelerator; of a processor its process's share of the host's.
    memory_bytes: Amount
    context_bytes: Amount  # that a process holds before it makes a tensor of its own
    host_memory_bytes: Amount
    host_cores: Count


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
# Name of a field by its column.
_COLUMNS = {_RENAMED.get(field.name, field.name): field.name for field in fields(Measured)}
_ROWS, _MACHINE = TypeAdapter(tuple[Measured, ...]), TypeAdapter(Machine)


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
        # sizes that do not apply are 0
        cells = {key: str(value) if value else "" for key, value in asdict(row).items()}
        for key in ("time_s", "spread_s"):
            cells[key] = f"{getattr(row, key) / US:.4g}"
        writer.writerow(cells.values())
    return out.getvalue()


def read_table(path: str, text: str) -> Table:
    """The table of a text; raises InputError with every problem of its machine, or its rows."""
    lines = text.splitlines()
    head = [line[1:].partition(":") for line in lines[1:] if line.startswith("#")]
    start = 1 + len(head)
    reader = csv.DictReader(lines[start:])
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    numbered = [(start + reader.line_num, raw) for raw in reader]
    numbers = tuple(number for number, _ in numbered)
    given = [
        {name: raw[column] for column, name in _COLUMNS.items() if raw.get(column)}
        for _, raw in numbered
    ]
    try:
        machine = _MACHINE.validate_python({key.strip(): value.strip() for key, _, value in head})
        if missing:
            message = f"columns missing: {', '.join(missing)}"
            raise InputError.single(path, f"line {start + 1}", message)
        if not 0 < len(given) <= MOST_ROWS:
            message = f"more than {MOST_ROWS:,} rows" if given else TRUNCATED
            raise InputError.single(path, f"line {len(lines)}", message)
        rows = _ROWS.validate_python(given)
    except ValidationError as error:
        # the first lines show what is wrong; a spoilt column would name thousands
        raise InputError(
            _problem(path, numbers, details) for details in error.errors()[:10]
        ) from None
    measured = (replace(row, time_s=row.time_s * US, spread_s=row.spread_s * US) for row in rows)
    return Table(machine=machine, rows=tuple(measured), lines=numbers)


def _problem(path: str, lines: Sequence[int], details: ErrorDetails) -> Problem:
    """Return the problem with a field of the machine, or of the row that its number points to."""
    *row, name = details["loc"]
    if not row:
        return Problem(where=path, key=f"# {name}", message=message_of(details))
    message = f"{_RENAMED.get(str(name), name)} {message_of(details)}"
    return Problem(where=path, key=f"line {lines[int(row[0])]}", message=message)

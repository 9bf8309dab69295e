"""Result of ``planner calibrate --measure``: a machine and rows, as a CSV that people can read.

Lines of ``# key: value`` say what the machine is, then follow a header and one row per measurement.
"""

import csv
import io
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

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
    num_bytes: Annotated[Count, Field(alias="bytes")] = 0
    params: Count = 0
    time_us: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # median of repeats of all ranks
    spread_us: Amount  # half the distance of the quartiles
    repeats: Annotated[int, Field(ge=1)]

    @property
    def time_s(self) -> float:
        """Seconds of the median."""
        return self.time_us * US

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


_COLUMNS = ["bytes" if field.name == "num_bytes" else field.name for field in fields(Measured)]


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
        times = {"time_us": f"{row.time_us:.4g}", "spread_us": f"{row.spread_us:.4g}"}
        # sizes that do not apply are 0
        writer.writerow(value or "" for value in (asdict(row) | times).values())
    return out.getvalue()


def read_table(path: str, text: str) -> Table:
    """The table of a text; raises InputError with every problem of its machine, or its rows."""
    lines = text.splitlines()
    head = [line[1:].partition(":") for line in lines[1:] if line.startswith("#")]
    start = 1 + len(head)
    reader = csv.DictReader(lines[start:])
    names = reader.fieldnames or ()
    missing = ", ".join(name for name in _COLUMNS if name not in names)
    numbers, given = [], []
    for raw in reader:
        numbers.append(start + reader.line_num)
        given.append({column: raw[column] for column in _COLUMNS if raw.get(column)})
    stated = {key.strip(): value.strip() for key, _, value in head}
    try:
        machine = TypeAdapter(Machine).validate_python(stated)
        if missing:
            raise InputError.single(path, f"line {start + 1}", f"columns missing: {missing}")
        if not 0 < len(given) <= MOST_ROWS:
            message = f"more than {MOST_ROWS:,} rows" if given else TRUNCATED
            raise InputError.single(path, f"line {len(lines)}", message)
        rows = TypeAdapter(tuple[Measured, ...]).validate_python(given)
    except ValidationError as error:
        problems = []
        # the first lines show what is wrong; a spoilt column would name thousands
        for details in error.errors()[:10]:
            *row, name = details["loc"]
            key, message = f"# {name}", message_of(details)
            if row:
                key, message = f"line {numbers[int(row[0])]}", f"{name} {message}"
            problems.append(Problem(where=path, key=key, message=message))
        raise InputError(problems) from None
    return Table(machine=machine, rows=rows, lines=tuple(numbers))

"""Tells what a file of measurements is, and has it read."""

from planner.calibrate.figures import Base
from planner.calibrate.measured import is_table, read_table
from planner.calibrate.nccl import is_nccl, nccl_points
from planner.calibrate.nvbandwidth import is_nvbandwidth, nvbandwidth_points
from planner.calibrate.points import Point, run_point
from planner.calibrate.read_more import (
    ADAM,
    ATTENTION,
    SIDES,
    adam_points,
    attention_points,
    fio_points,
    flash_points,
    is_fio,
    is_flash,
    product_points,
)
from planner.calibrate.table_points import table_points
from planner.check.job import Request
from planner.compare.compare import compare
from planner.documents.file import read_printed
from planner.errors import InputError
from planner.limits import MAX_LOG_BYTES
from planner.logs.read import FORMS as LOGS
from planner.logs.read import log_of

FORMS = (
    "output of nccl-tests, rccl-tests, nvbandwidth, flash-attention's benchmark or fio's JSON; CSV "
    "of products (m,n,k,dtype,time_us), attention (batch,heads,seq_len,head_dim,time_us) or Adam "
    "(params,threads,time_us); tables of --measure; logs of " + LOGS
)


def points_of(path: str, base: Base, request: Request, config: str | None) -> tuple[Point, ...]:
    """The points of a file; raises InputError for what is of no known form, or cannot be so."""
    text = read_printed(path, MAX_LOG_BYTES)
    lines = text.split("\n")
    if is_table(text):
        return tuple(table_points(path, read_table(path, text), base.cluster))
    if is_nccl(lines):
        return tuple(nccl_points(path, lines, base.cluster))
    if _header(lines[0]) >= SIDES:
        return tuple(product_points(path, lines, base))
    if _header(lines[0]) >= ATTENTION:
        return tuple(attention_points(path, lines, base))
    if _header(lines[0]) >= ADAM:
        return tuple(adam_points(path, lines, base))
    if is_flash(lines):
        return tuple(flash_points(path, lines, base))
    if is_fio(text):
        return tuple(fio_points(path, base))
    if is_nvbandwidth(text):
        return tuple(nvbandwidth_points(path, text, base))
    return _run(path, text, base, request, config)


def _header(line: str) -> set[str]:
    return {name.strip().lower() for name in line.split(",")}


def _run(
    path: str, text: str, base: Base, request: Request, config: str | None
) -> tuple[Point, ...]:
    found = compare(log_of(path, text, FORMS), request, config)
    if found.predicted is None or found.measured is None:
        reason = found.unpriced[0] if found.unpriced else "its batch is not known"
        raise InputError.single(path, "layout", f"cannot be priced: {reason}")
    first = found.log.steps[0].line
    layout, measured_s = found.predicted.layout, found.measured.median_s
    return (run_point(path, first, layout, measured_s, base.cluster),)

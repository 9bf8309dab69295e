"""A disk: what is written is on it and what is read comes from it, not from memory."""

import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from planner.calibrate.measure.task import Task, blank, filled
from planner.calibrate.measure.timing import summary
from planner.calibrate.measure.world import World
from planner.calibrate.measured import Measured
from planner.errors import InputError

FILE_BYTES = 2**30
BLOCK_BYTES = 2**23
DEPTH = 8
"""Blocks on their way at once."""
REPEATS = 3
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
NAME = ".planner-measure"


def file_system(folder: Path) -> str:
    """The kind of file system that holds a folder, as the system names it; empty: not known."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    found = [line.split()[1:3] for line in mounts if len(line.split()) > 2]
    own = folder.resolve()
    holding = [(at, kind) for at, kind in found if own.is_relative_to(at)]
    return max(holding, key=lambda each: len(each[0]), default=("", ""))[1]


def check_folder(folder: Path) -> None:
    """Raise InputError for a folder that cannot be written, is in memory, or is too full."""
    option = "--nvme"
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError.single(str(folder), option, "is no folder that can be written")
    kind = file_system(folder)
    if kind in IN_MEMORY:
        message = f"is on {kind}, which is memory; give a folder of the disk to measure"
        raise InputError.single(str(folder), option, message)
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < 2 * FILE_BYTES:
        message = f"has {free / 2**30:.1f} GiB free; {2 * FILE_BYTES / 2**30:.0f} are needed"
        raise InputError.single(str(folder), option, message)


def disk_bytes(folder: Path) -> float:
    """Of the whole file system."""
    status = os.statvfs(folder)
    return float(status.f_blocks * status.f_frsize)


def disk(world: World, folder: Path) -> Iterator[Task]:
    """One file written and read back by the first rank, the others idle."""
    for what in ("nvme_write", "nvme_read"):
        yield Task(label=what.replace("_", " "), run=partial(_measured, world, folder, what))


def _measured(world: World, folder: Path, what: str) -> Measured:
    path = folder / NAME

    def run() -> list[float] | str:
        try:
            return [_passed(path, is_write=what == "nvme_write") for _ in range(REPEATS)]
        except OSError as error:
            return str(error)
        finally:
            if what == "nvme_read":
                path.unlink(missing_ok=True)

    seconds = world.decided(run)
    if isinstance(seconds, str):
        path.unlink(missing_ok=True)
        raise InputError.single(str(folder), "--nvme", f"cannot be measured: {seconds}")
    return filled(blank(world, what=what, ranks=1, num_bytes=FILE_BYTES), summary(seconds))


def _passed(path: Path, *, is_write: bool) -> float:
    """Seconds of the whole file: past the cache where the file system allows, else made sure of."""
    flags = os.O_RDWR | os.O_CREAT
    try:
        handle = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        handle = os.open(path, flags, 0o600)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        with ThreadPoolExecutor(DEPTH) as pool:
            work = partial(_blocks, handle, is_write=is_write)
            for done in pool.map(work, range(DEPTH)):
                assert done == FILE_BYTES // DEPTH
        if is_write:
            os.fsync(handle)
        return time.perf_counter() - start
    finally:
        os.close(handle)


def _blocks(handle: int, first: int, *, is_write: bool) -> int:
    """Every DEPTH-th block, through memory aligned to pages; returns the bytes that passed."""
    passed = 0
    with mmap.mmap(-1, BLOCK_BYTES) as block:
        if is_write:
            block.write(os.urandom(2**16) * (BLOCK_BYTES // 2**16))
        for offset in range(first * BLOCK_BYTES, FILE_BYTES, DEPTH * BLOCK_BYTES):
            if is_write:
                passed += os.pwrite(handle, block, offset)
            else:
                passed += os.preadv(handle, [block], offset)
    return passed

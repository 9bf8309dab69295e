"""Sizes that a test can afford; also one of the processes that torchrun would start."""

import sys
from pathlib import Path

SIZES = {
    "HIDDEN": (64, 128),
    "TOKENS": (64, 128),
    "SQUARES": (64,),
    "SEQ_LENS": (64,),
    "HEAD_DIMS": (32, 64),
    "TOKENS_OF_ATTENTION": 128,
    "MOST_HEADS": 2,
    "COPIED_BYTES": {"cpu": (2**20,), "gpu": (2**20,)},
    "ROTATED_BYTES": 2**20,
    "ADAM_PARAMS": {"cpu": 2**12, "gpu": 2**12},
    "COLLECTIVE_BYTES": (2**12, 2**16),
    "BUDGET_S": 0.002,
    "REPEATS": (2, 2),
    "LEAST_S": 1e-4,
}


def main(out: Path) -> None:
    """Measure, and write the table of this process."""
    from planner.calibrate import measure
    from planner.calibrate.rows import table_text

    for name, value in SIZES.items():
        setattr(measure, name, value)
    world = measure.join()
    table = measure.measure(world, lambda _message, _fraction: None)
    measure.leave(world)
    out.with_suffix(f".{world.rank}").write_text(table_text(table))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

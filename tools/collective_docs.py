"""Algorithms of collectives and their formulas, from the code."""

from planner.collectives import algorithms
from planner.collectives.algorithms import ALGORITHMS
from planner.collectives.flat import grid_collective
from tools.formulas import docstrings, summary, table

PLACEMENTS = {
    "around": "one ring through all; pipelined",
    "tree": "trees of trees; pipelined",
    "shards": "level by level, each on its part",
    "chunks": "the same in chunks; pipelined",
    "whole": "level by level, whole vector",
    "peers": "one partner after the other",
    "all_peers": "all partners at once",
}
MORE = (
    grid_collective,
    algorithms.exposed_in_order_s,
    algorithms.exposed_by_priority_s,
    algorithms.top_k_all_gather,
    algorithms.int8_all_gather,
)
"""Formulas that take more than a size, a number of ranks and a link."""


def algorithms_table() -> str:
    """Every algorithm: what it does, by collective, and its way over several levels."""
    return table(
        ("algorithm", "collective", "time on one level", "over levels"),
        (
            (f"`{a.name}`", kind.replace("_", "-"), summary(flat), PLACEMENTS[a.placement])
            for a in ALGORITHMS
            for kind, flat in a.flat.items()
        ),
    )


def collectives_text() -> str:
    """The table, and the docstring of every formula, once."""
    formulas = docstrings([*(flat for a in ALGORITHMS for flat in a.flat.values()), *MORE])
    return f"{algorithms_table()}\n\n{formulas}"

"""Words of sbatch and srun that say with how many nodes, processes and GPUs a job starts.

Source: https://slurm.schedmd.com/sbatch.html, options and output environment variables.
"""

import re
from collections.abc import Iterator, Sequence

from planner.formats.shell.word import Word

DIRECTIVE = "#SBATCH"
"""Begins a comment that holds words of sbatch."""
NODES, TASKS, GPUS = "--nodes", "--ntasks", "--gpus"
TASKS_PER_NODE, GPUS_PER_NODE, RESOURCES = "--ntasks-per-node", "--gpus-per-node", "--gres"
_SHORT = {"-N": NODES, "-n": TASKS, "-G": GPUS}
_PROGRAMS = ("srun", "sbatch", "salloc", DIRECTIVE)
_OTHERS = ("torchrun", "mpirun", "mpiexec", "python", "python3")
"""Programs whose own options begin there."""
_VARIABLES = {
    NODES: ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    TASKS: ("SLURM_NTASKS", "SLURM_NPROCS"),
    GPUS: ("SLURM_GPUS",),
    TASKS_PER_NODE: ("SLURM_NTASKS_PER_NODE",),
    GPUS_PER_NODE: ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    RESOURCES: ("SLURM_GPUS_ON_NODE",),
}
_NUMBER = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?([1-9]\d{0,7})")


def slurm_values(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Nodes, processes and GPUs: the option in full, and its number, or all it says."""
    is_own = False
    for at, word in enumerate(words):
        program = word.text.rpartition("/")[2]
        is_own = program in _PROGRAMS or (is_own and program not in _OTHERS)
        name, sign, _ = word.text.partition("=")
        start = 2 if name[:2] in _SHORT else len(name) + len(sign)
        name = _SHORT.get(name[:2], name)
        value = word
        if start >= len(word.text):
            start, value = 0, words[min(at + 1, len(words) - 1)]
        if is_own and name in _VARIABLES:
            found = _NUMBER.fullmatch(value.text, start)
            span = found.span(1) if found else (start, len(value.text))
            yield name, Word(parts=tuple(value.cut(*span)), written=value.written)


def slurm_variables(words: Sequence[Word]) -> dict[str, Word]:
    """Variables that Slurm sets where a job asks for so much."""
    return {variable: value for name, value in slurm_values(words) for variable in _VARIABLES[name]}

"""Number of processes that torchrun and Slurm start, and what torchrun does not know.

Sources: torch/distributed/run.py, whose parser takes shortened names and ``_`` for ``-``;
https://slurm.schedmd.com/sbatch.html, options and output environment variables.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from planner.errors import ExpressError
from planner.formats.format import Located, SourceText
from planner.formats.shell.word import Lines, Word
from planner.spelling import did_you_mean

NNODES, NPROC_PER_NODE = "--nnodes", "--nproc-per-node"
# Begins a comment that holds words of sbatch.
SBATCH = "#SBATCH"
# Options of torchrun without a value, and those with one.
SWITCHES = "--help --standalone --module --no-python --run-path --virtual-local-rank -h -m"
WITH_VALUE = """
--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts
--monitor-interval --start-method --event-log-handler --role --log-dir --redirects --tee
--local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --node-rank
--master-addr --master-port --local-addr --logs-specs --numa-binding --signals-to-handle
--shutdown-timeout -r -t
"""
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}
# Variables that Slurm sets where a job asks for so much.
SLURM_VARIABLES = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--gpus": ("SLURM_GPUS",),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gres": ("SLURM_GPUS_ON_NODE",),
}
_NUMBER = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?([1-9]\d{0,7})")


def launcher_values(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Nodes, processes and GPUs: the option in full, and its number, or all it says."""
    is_slurm = False
    for word, following in zip_longest(words, words[1:]):
        program = word.text.rpartition("/")[2]
        if program in ("srun", "sbatch", "salloc", SBATCH):
            is_slurm = True
        elif program in ("torchrun", "mpirun", "mpiexec", "python", "python3"):
            # Their own options begin here among the words of srun.
            is_slurm = False
        name = word.text.partition("=")[0]
        spelled = re.sub("^-+", "--", name.replace("_", "-"))
        start = len(name) + 1
        if is_slurm and name[:2] in _SHORT:
            spelled, start = _SHORT[name[:2]], 2
        value = word
        if start >= len(word.text):
            start, value = 0, following
        is_slurms = is_slurm and spelled in SLURM_VARIABLES
        if value and (is_slurms or spelled in (NNODES, NPROC_PER_NODE)):
            end = len(value.text)
            if found := _NUMBER.fullmatch(value.text, start):
                start, end = found.span(1)
            yield spelled, value.cut(start, end)


def launcher_settings(words: Sequence[Word], lines: Lines) -> dict[str, Located]:
    """Numbers of nodes and processes per node; None where they are not numbers."""
    found: dict[str, Located] = {}
    for option, word in launcher_values(words):
        number, line = number_of(word.text), lines.at(word.start)
        found[option] = Located(value=number, key=option, line=line)
    return found


def variables(environment: Mapping[str, Word], lines: Lines) -> dict[str, Located]:
    """Variables that are known, by their names."""
    return {
        name: Located(value=word.text, key=name, line=lines.at(word.start))
        for name, word in environment.items()
        if not word.unknown
    }


def number_of(text: str) -> int | None:
    """A number of nodes or processes; None where the text is none."""
    is_number = re.fullmatch("[0-9]{1,8}", text) and int(text) > 0
    return int(text) if is_number else None


def processes(settings: Mapping[str, Located]) -> Located | None:
    """Nodes times processes per node; one node where a launcher names none.

    What torchrun leaves open, or where Slurm starts the processes, is what Slurm gives the job.
    """

    def first(*names: str) -> Located | None:
        found = (settings[name] for name in names if name in settings)
        return next((each for each in found if each.value), None)

    is_slurm = NPROC_PER_NODE not in settings
    per_node = first(NPROC_PER_NODE, "--gpus-per-node", "--gres", "--ntasks-per-node")
    names_nodes = NNODES in settings or (is_slurm and "--nodes" in settings)
    nodes = first(NNODES, "--nodes")
    total = first("--gpus", "--ntasks") if is_slurm else None
    if total and (per_node is None or not names_nodes):
        return total if total.value > 1 else None
    # One process a node under Slurm is a launcher of its own, of which nothing is known.
    if per_node is None or (is_slurm and per_node.value == 1) or (names_nodes and nodes is None):
        return None
    count = per_node.value * (nodes.value if nodes and names_nodes else 1)
    # More than one job may start: a misread word.
    return None if count > 10**7 else replace(per_node, value=count)


def open_processes(settings: Mapping[str, Located]) -> dict[str, Located]:
    """The processes, where a launcher says them by a variable that nobody knows."""
    stated = [settings[name] for name in (NNODES, NPROC_PER_NODE) if name in settings]
    is_open = any(each.value is None for each in stated) and processes(settings) is None
    return {"num_gpus": stated[-1]} if is_open else {}


def processes_edit(
    source: SourceText, words: Sequence[Word], num_gpus: int
) -> Iterator[tuple[int, int, str]]:
    """Yield edits (start, end, text) after which the launcher starts ``num_gpus`` processes.

    Numbers of the whole job change, Slurm's too, never what a node has; numbers that come from
    elsewhere stay. Raises ExpressError where that makes no whole nodes or a number is not in one
    place.
    """
    values = list(launcher_values(words))
    settings = launcher_settings(words, Lines(source.text))
    count = processes(settings)
    is_open = any(word.unknown for _, word in values)
    if count is None or count.value == num_gpus or is_open:
        return
    # Options whose numbers are those of the whole job.
    totals = [each for each in values if each[0] in (NNODES, "--nodes", "--ntasks", "--gpus")]
    of_slurm = {word.origin for name, word in totals if name != NNODES}
    wanted = [(number_of(word.text) or 0) * num_gpus for _, word in totals]
    if not totals or any(number % count.value for number in wanted):
        own = settings.get(NPROC_PER_NODE)
        per_node = own.value if own else f"{count.value} or less"
        message = f"{num_gpus} processes do not make up whole nodes of {per_node}"
        raise ExpressError(f"{source.path}: {message}; change the launcher's words first")
    for (name, word), number in zip(totals, wanted, strict=True):
        if name == NNODES and word.origin in of_slurm:
            continue
        if word.place is None:
            raise ExpressError(f"{source.path}: {word.text[:60]!r} is put together from variables")
        yield *word.place, str(number // count.value)


def unknown_options(words: Sequence[Word]) -> Iterator[tuple[Word, str]]:
    """The first option that torchrun does not know, which ends the job at once, and a near one.

    What a variable hides is not looked into.
    """
    switches = SWITCHES.split()
    known = [*switches, *WITH_VALUE.split()]
    names = [word.text.rpartition("/")[2] for word in words]
    programs = ("torchrun", "torch.distributed.run")
    at = next((at + 1 for at, name in enumerate(names) if name in programs), len(words))
    while at < len(words):
        word = words[at]
        if word.unknown or not word.text.startswith("-"):
            return
        spelled, sign, _ = word.text.partition("=")
        found = _option(spelled, known)
        if found is None:
            yield word, did_you_mean(spelled, known)
            return
        is_joined = bool(sign) or (len(found) == 2 and spelled != found)
        at += 1 if is_joined or found in switches else 2


def _option(spelled: str, known: Sequence[str]) -> str | None:
    """The option of a name in full or shortened; None where there is none."""
    if not spelled.startswith("--"):
        return spelled[:2] if spelled[:2] in ("-h", "-m", "-r", "-t") else None
    name = spelled.replace("_", "-")
    return min((each for each in known if each.startswith(name)), default=None)

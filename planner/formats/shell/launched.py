"""The words of torchrun, torch.distributed and Slurm that say how many processes there are."""

from collections.abc import Iterator, Mapping, Sequence

from planner.errors import ExpressError
from planner.formats.format import SourceText, Value
from planner.formats.shell import slurm
from planner.formats.shell.word import Word
from planner.formats.shell.words import Lines

NODES = "--nnodes"
PER_NODE = "--nproc-per-node"
KEPT = "the command line stands in a variable, and how it is run is not understood; edit it by hand"
"""Why a script is read, not written."""
_OF_JOB = (NODES, slurm.NODES, slurm.TASKS, slurm.GPUS)
"""Options whose numbers are those of the whole job."""
MAX = 10**7
"""Processes."""


def launcher_values(words: Sequence[Word]) -> Iterator[tuple[str, Word, str]]:
    """Nodes and processes per node: option, the word that holds the value, and its text."""
    for at, word in enumerate(words):
        name, sign, joined = word.text.partition("=")
        name = name.replace("_", "-")
        name = "--" + name.lstrip("-") if name.startswith("-") else name
        if name not in (NODES, PER_NODE):
            continue
        if sign:
            yield name, word, joined
        elif at + 1 < len(words):
            yield name, words[at + 1], words[at + 1].text
    for name, word in slurm.slurm_values(words):
        yield name, word, word.text


def launcher_settings(words: Sequence[Word], lines: Lines) -> dict[str, Value]:
    """Numbers of nodes and processes per node; None where they are not numbers."""
    return {
        option: Value(value=number_of(text), key=option, line=lines.at(word.start))
        for option, word, text in launcher_values(words)
    }


def number_of(text: str) -> int | None:
    """A number of nodes or processes; None where the text is none."""
    is_small = text.isascii() and text.isdigit() and len(text) < 9
    return int(text) if is_small and int(text) > 0 else None


def processes(settings: Mapping[str, Value]) -> Value | None:
    """Nodes times processes per node; one node where a launcher names none.

    What torchrun leaves open, or where Slurm starts the processes, is what Slurm gives the job.
    """

    def first(*names: str) -> Value | None:
        return next((settings[name] for name in names if _number(settings, name)), None)

    is_slurm = PER_NODE not in settings
    per_node = first(PER_NODE, slurm.GPUS_PER_NODE, slurm.RESOURCES, slurm.TASKS_PER_NODE)
    names_nodes = NODES in settings or (is_slurm and slurm.NODES in settings)
    nodes = first(NODES, slurm.NODES)
    total = first(slurm.GPUS, slurm.TASKS) if is_slurm else None
    if total and (per_node is None or not names_nodes):
        return total if total.value > 1 else None
    if per_node is None or (is_slurm and per_node.value == 1) or (names_nodes and nodes is None):
        return None
    count = per_node.value * (nodes.value if nodes and names_nodes else 1)
    return Value(value=count, key=per_node.key, line=per_node.line) if count <= MAX else None


def _number(settings: Mapping[str, Value], name: str) -> int | None:
    return settings[name].value if name in settings else None


def open_processes(settings: Mapping[str, Value]) -> dict[str, Value]:
    """The processes, where a launcher says them by a variable that nobody knows."""
    stated = [settings[name] for name in (NODES, PER_NODE) if name in settings]
    is_open = any(each.value is None for each in stated) and processes(settings) is None
    return {"num_gpus": stated[-1]} if is_open else {}


def processes_edit(
    source: SourceText, words: Sequence[Word], num_gpus: int
) -> Iterator[tuple[int, int, str]]:
    """What to write where (start, end, text), so that the launcher starts ``num_gpus`` processes.

    Numbers of the whole job change, Slurm's too, never what a node has; numbers that come from
    elsewhere stay. Raises ExpressError where that makes no whole nodes or a number is not in one
    place.
    """
    values = list(launcher_values(words))
    settings = {name: Value(value=number_of(text), key=name) for name, _, text in values}
    count = processes(settings)
    if count is None or count.value == num_gpus or any(word.unknown for _, word, _ in values):
        return
    totals = [each for each in values if each[0] in _OF_JOB]
    of_slurm = {word.origin for name, word, _ in totals if name != NODES}
    wanted = [(number_of(text) or 0) * num_gpus for _, _, text in totals]
    if not totals or any(number % count.value for number in wanted):
        per_node = settings[PER_NODE].value if PER_NODE in settings else f"{count.value} or less"
        message = f"{num_gpus} processes do not make up whole nodes of {per_node}"
        raise ExpressError(f"{source.path}: {message}; change the launcher's words first")
    for (name, word, text), number in zip(totals, wanted, strict=True):
        if name == NODES and word.origin in of_slurm:
            continue
        if word.place is None:
            raise ExpressError(f"{source.path}: {word.text[:60]!r} is put together from variables")
        yield *word.place, word.text.removesuffix(text) + str(number // count.value)

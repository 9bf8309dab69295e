"""The words of torchrun, torch.distributed and srun that say how many processes there are."""

from collections.abc import Iterator, Sequence

from planner.errors import ExpressError
from planner.formats.format import SourceText, Value
from planner.formats.shell.word import Word
from planner.formats.shell.words import Lines

NODES = "--nnodes"
PER_NODE = "--nproc-per-node"
KEPT = "the command line stands in a variable, and how it is run is not understood; edit it by hand"
"""Why a script is read, not written."""
MAX_PROCESSES = 10**7


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


def processes(settings: dict[str, Value]) -> Value | None:
    """Nodes times processes per node; one node where a launcher names none."""
    per_node = settings.get(PER_NODE)
    if per_node is None or per_node.value is None:
        return None
    nodes = settings.get(NODES)
    count = 1 if nodes is None else nodes.value
    if count is None or count * per_node.value > MAX_PROCESSES:
        return None
    return Value(value=count * per_node.value, key=per_node.key, line=per_node.line)


def processes_edit(
    source: SourceText, words: Sequence[Word], num_gpus: int
) -> Iterator[tuple[int, int, str]]:
    """What to write where (start, end, text), so that the launcher starts ``num_gpus`` processes.

    The nodes change, never what a node has; numbers that come from elsewhere stay. Raises
    ExpressError where that makes no whole nodes or the number of nodes is not in one place.
    """
    values = {name: (word, text) for name, word, text in launcher_values(words)}
    if PER_NODE not in values or any(word.unknown for word, _ in values.values()):
        return
    numbers = {name: number_of(text) or 0 for name, (_, text) in values.items()}
    per_node = numbers[PER_NODE]
    if per_node * numbers.get(NODES, 1) == num_gpus:
        return
    if not per_node or num_gpus % per_node or NODES not in values:
        message = f"{num_gpus} processes do not make up whole nodes of {per_node or '?'}"
        raise ExpressError(f"{source.path}: {message}; change the launcher's words first")
    word, text = values[NODES]
    if word.place is None:
        raise ExpressError(f"{source.path}: {word.text[:60]!r} is put together from variables")
    yield *word.place, word.text.removesuffix(text) + str(num_gpus // per_node)

"""The words of torchrun, torch.distributed and srun that say how many processes there are."""

from collections.abc import Iterator, Sequence

from planner.frameworks.format import Value
from planner.frameworks.megatron.shell import Lines, Word

NODES = "--nnodes"
PER_NODE = "--nproc-per-node"
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
        option: Value(value=_number(text), key=option, line=lines.at(word.start))
        for option, word, text in launcher_values(words)
    }


def _number(text: str) -> int | None:
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
    return Value(value=count * per_node.value, key=PER_NODE, line=per_node.line)

"""Layers of pipeline stages and chunks: Megatron's layout text and its other ways to split.

Chunks are listed from embedding to head; chunk c is on stage c mod p. Sources:
megatron/core/transformer/pipeline_parallel_layer_layout.py, transformer_config.py.
"""

import re
from collections.abc import Sequence
from itertools import groupby

# Characters of a layout whose repetitions are written out.
MAX_LAYOUT = 200_000
LETTERS = {"E": "embedding", "L": "loss", "t": "decoder", "m": "mtp"}


def layout_text(chunks: Sequence[int], mtp_layers: int = 0) -> str:
    """Layers per chunk as Megatron takes them; those of MTP stand in front of the loss."""
    parts = [f"t*{n}" if n > 1 else "t" * n for n in chunks]
    parts[0] = f"E{parts[0]}"
    parts[-1] += "m" * mtp_layers + "L"
    return "|".join(parts)


def parse_layout(text: str) -> list[str]:
    """The stages of a layout with repetitions written out; ValueError says what is wrong."""
    text = text.replace(",", "")
    for repeated in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        size = len(text)
        for found in re.finditer(repeated, text):
            repeats = int(found[2]) if len(found[2]) < 8 else MAX_LAYOUT
            size += len(found[1]) * repeats
        if size > MAX_LAYOUT:
            raise ValueError(f"longer than {MAX_LAYOUT} layers")
        text = re.sub(repeated, lambda found: found[1] * int(found[2]), text)
    unknown = sorted(set(text) - {*LETTERS, "|"})
    if unknown:
        allowed = ", ".join(f"{letter} ({name})" for letter, name in LETTERS.items())
        raise ValueError(f"unknown layers {''.join(unknown)[:20]!r}; allowed are {allowed} and |")
    return text.split("|")


def layout_problem(stages: Sequence[str], num_layers: int | None) -> str | None:
    """Return what Megatron refuses in the order and number of layers; None if nothing."""
    flat = "".join(stages)
    if not flat.startswith("E") or flat.count("E") != 1:
        return "the first layer must be the embedding, E, and the only one"
    if not flat.endswith("L") or flat.count("L") != 1:
        return "the last layer must be the loss, L, and the only one"
    if num_layers is not None and flat.count("t") != num_layers:
        return f"holds {flat.count('t')} layers; --num-layers is {num_layers}"
    return None


def mtp_in(text: str) -> int:
    """Layers of multi-token prediction of a layout; 0 of one that cannot be read."""
    try:
        return "".join(parse_layout(text)).count("m")
    except ValueError:
        return 0


def chunks_of(stages: Sequence[str]) -> tuple[int, ...]:
    """Transformer layers of every chunk of a layout."""
    return tuple(stage.count("t") for stage in stages)


def even_chunks(
    num_layers: int, pp: int, vpp: int, *, embedding: bool = False, loss: bool = False
) -> tuple[int, ...] | None:
    """Equal chunks, of which embedding and loss may count as a layer each; None: none are."""
    size, rest = divmod(num_layers + embedding + loss, pp * vpp)
    chunks = [size] * (pp * vpp)
    chunks[0] -= embedding
    chunks[-1] -= loss
    return None if rest or min(chunks) < 0 else tuple(chunks)


def given_ends(
    num_layers: int, pp: int, vpp: int, *, first: int | None, last: int | None
) -> tuple[int, ...] | None:
    """Chunks where the first or the last stage has a number of layers of its own."""
    heads = [first] if first is not None else []
    tails = [last] if last is not None else []
    middle = pp - len(heads) - len(tails)
    rest = num_layers - sum(heads) - sum(tails)
    if min(middle, rest) < 0 or bool(middle) != bool(rest):
        return None
    each, left = divmod(rest, max(middle, 1))
    stages = [*heads, *[each] * middle, *tails]
    if left or any(layers % vpp for layers in stages):
        return None
    return tuple(layers // vpp for layers in stages) * vpp


def per_stage(chunks: Sequence[int], pp: int) -> tuple[int, ...]:
    """Layers of every stage."""
    return tuple(sum(chunks[stage::pp]) for stage in range(pp))


def uniform_block(chunks: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Layers per chunk that block recomputation must repeat to reach a number on every stage."""
    for most in range(1, max(chunks, default=0) + 1):
        if per_stage([min(n, most) for n in chunks], len(wanted)) == tuple(wanted):
            return most
    return None


def pattern_text(layers: Sequence[int]) -> str:
    """A list of 0 and 1 as the product form that ``--moe-layer-freq`` takes."""
    runs = (f"[{kind}]*{len(list(run))}" for kind, run in groupby(layers))
    return f"({'+'.join(runs)})"

"""Layers per chunk and stage where a configuration leaves the split to its framework."""

from planner.formats.megatron.layout import (
    chunks_of,
    even_chunks,
    parse_layout,
    per_stage,
    short_ends,
)
from planner.search.space.interleaving import default_layers

CUT = "..."
"""At the end of a layout of which only the beginning is known."""


def layout_chunks(layout: str, num_layers: int) -> tuple[int, ...]:
    """Layers per chunk of a Megatron layout such as ``Et*4|(t*4|)*14tmL``.

    Embedding (E), MTP layers (m) and loss (L) are not counted. One that ends in ``...`` goes on
    with chunks as large as the last one known, while there are layers. ValueError says what is
    wrong with it.
    """
    chunks = chunks_of(parse_layout(layout.removesuffix(CUT).removesuffix("|")))
    if not layout.endswith(CUT):
        return chunks
    rest, size = num_layers - sum(chunks), chunks[-1]
    if not size:
        raise ValueError(f"{CUT} after a chunk of no layers")
    whole, last = divmod(rest, size)
    return (*chunks, *([size] * whole), *([last] if last else []))


def layout_layers(layout: str, pp: int, num_layers: int = 0) -> tuple[int, ...]:
    """Layers per stage of a Megatron layout; chunk c is on stage c mod pp."""
    return per_stage(layout_chunks(layout, num_layers), pp)


def default_chunks(num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers per chunk as Megatron's recipes split them where they state no layout.

    Even where pp · vpp divides them. Else, where it divides layers + 2, embedding and head count
    as a layer each, so both end chunks hold one less (Megatron's and torchtitan's rule, and
    BLOOM's). Else, without interleaving, the first stages hold one more, and with it chunks are
    full but for the last ones.
    """
    chunks = even_chunks(num_layers, pp, vpp)
    if chunks is None and pp > 1:
        chunks = short_ends(num_layers, pp, vpp, embedding=True, loss=True)
    if chunks is not None:
        return chunks
    if vpp == 1:
        base, rest = divmod(num_layers, pp)
        return tuple(base + (stage < rest) for stage in range(pp))
    return _filled(default_layers(num_layers, pp, vpp), -(-num_layers // (pp * vpp)), vpp)


def _filled(stages: tuple[int, ...], size: int, vpp: int) -> tuple[int, ...]:
    """Chunks of stages whose last chunks lack what is missing."""
    return tuple(
        max(0, min(size, layers - chunk * size)) for chunk in range(vpp) for layers in stages
    )

"""Adapters of split matrices: what a tensor-parallel rank holds of one, and what ranks exchange."""

from collections.abc import Iterable

import numpy as np

from planner.layers.adapter_sizes import Adapter
from planner.layers.op import Comm, LayerShape
from planner.spec.cluster import Collective
from planner.units import Array

ROWS = ("attention_output", "mlp_down")
"""Ops whose matrix is split by rows: their input is split already, their output summed."""
GATHERED_BYTES = 4.0
"""Per element of what is gathered by columns: parts laid side by side, read and written."""
Part = tuple[Array, Array, Array]


def is_by_rows(adapter: Adapter) -> bool:
    """The matrix beside which it stands is split by rows."""
    return adapter.beside in ROWS


def adapter_parts(adapter: Adapter, rank: int, tp: Array) -> Part:
    """Of one rank: width of A's input, of A's output, of B's output.

    By columns ``(in, r/t, out/t)``, by rows ``(in/t, r, out/t)``: A is split as the matrix it
    stands beside is, B always by columns; r (in + out) / t parameters either way. Source:
    ParallelLinearAdapter in megatron/bridge/peft/utils.py.
    """
    width, out = np.asarray(float(adapter.width)), adapter.out / tp
    if is_by_rows(adapter):
        return width / tp, rank * np.ones_like(tp), out
    return width * np.ones_like(tp), rank / tp, out


def added_width(adapter: Adapter, shape: LayerShape) -> tuple[Array, Array]:
    """Output elements per token that a rank scales and adds, and that it joins after a gather.

    Behind rows the whole output is gathered, of which sequence parallelism keeps a rank's tokens.
    """
    if not is_by_rows(adapter):
        return adapter.out / shape.tp, np.zeros_like(shape.tp)
    return adapter.out / shape.sp, adapter.out * np.where(shape.tp > 1, 1.0, 0.0)


def adapter_comms(
    adapter: Adapter, rank: int, shape: LayerShape, *, is_overlapped: bool
) -> tuple[tuple[Comm, ...], tuple[Comm, ...]]:
    """Collectives of an adapter of a split matrix, forward and backward; nothing hides them.

    With T tokens and two bytes an element. By columns: the r numbers between A and B are gathered,
    T·r, and their gradient is all-reduced; without sequence parallelism the gradient of A's input
    too, T·in. With it A takes the gathered output of the norm, which the matrix gathers anyway;
    where that gather is cut into chunks (``is_overlapped``) A gathers its own, T·in, and scatters
    its gradient. By rows: A's partial sums are all-reduced, T·r, as is their gradient, and B's
    output is gathered, T·out; under sequence parallelism its gradient too. Source:
    ParallelLinearAdapter and get_adapter_attributes_from_linear in megatron/bridge/peft/utils.py.
    """
    split = shape.num_tokens * shape.element_bytes * (shape.tp > 1)
    is_sp = shape.sequence_parallel == 1
    latent, whole = split * rank, split * adapter.width
    if is_by_rows(adapter):
        output = split * adapter.out
        return (
            _waited([("all_reduce", latent), ("all_gather", output)]),
            _waited([("all_reduce", latent), ("all_gather", output * is_sp)]),
        )
    own = whole * (is_sp & is_overlapped)
    return (
        _waited([("all_gather", latent), ("all_gather", own)]),
        _waited([("all_reduce", latent), ("all_reduce", whole * ~is_sp), ("reduce_scatter", own)]),
    )


def _waited(comms: Iterable[tuple[Collective, Array]]) -> tuple[Comm, ...]:
    return tuple(
        Comm(collective=collective, axis="tp", num_bytes=num_bytes, is_waited_for=True)
        for collective, num_bytes in comms
    )

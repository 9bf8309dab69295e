"""One named item of a ledger: bytes with shape, dtype and lifetime."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.layers.op import SavedTensor

Lifetime = Literal[
    "whole run",
    "forward to backward",
    "loss",
    "backward of a layer",
    "outside the allocator",
    "held by the allocator",
]


@dataclass(frozen=True, kw_only=True)
class LedgerItem:
    """``copies`` arrays of ``shape`` with ``element_bytes`` each; num_bytes is their product."""

    name: str
    """Dotted: group, owner, tensor."""
    num_bytes: float
    lifetime: Lifetime
    shape: tuple[int, ...] = ()
    """Empty for bytes that are no tensor."""
    element_bytes: float = 1.0
    copies: float = 1.0


HELD: Lifetime = "held by the allocator"
OUTSIDE: Lifetime = "outside the allocator"


def tensor_item(group: str, tensor: SavedTensor, copies: float, lifetime: Lifetime) -> LedgerItem:
    """Bytes, shape and lifetime of a kept tensor."""
    if tensor.is_freed:
        lifetime = HELD
    copies *= float(np.max(tensor.count))
    rows, width = float(np.max(tensor.rows)), float(np.max(tensor.width))
    is_whole = rows.is_integer() and width.is_integer()
    return LedgerItem(
        name=f"{group}.{tensor.name}",
        num_bytes=rows * width * tensor.element_bytes * copies,
        lifetime=lifetime,
        shape=(round(rows), round(width)) if is_whole else (round(rows * width),),
        element_bytes=tensor.element_bytes,
        copies=copies,
    )


def flat_item(name: str, elements: float, num_bytes: float, lifetime: Lifetime) -> LedgerItem:
    """Bytes of elements without further shape."""
    return LedgerItem(
        name=name,
        num_bytes=num_bytes,
        lifetime=lifetime,
        shape=(round(elements),),
        element_bytes=num_bytes / elements if elements else 0.0,
    )

"""Which layers see a window only: the patterns of ``layer_types`` that a model file can say."""

from collections.abc import Sequence

from planner.catalog.model_rules import Finding

FULL, SLIDING = "full_attention", "sliding_attention"
Kinds = tuple[str, ...]
"""Kind of attention per layer."""


def every_nth_full(num_layers: int, step: int) -> Kinds:
    """Return the kinds of layers of which every ``step``-th sees the whole sequence; 0: none."""
    return tuple(
        FULL if step and (index + 1) % step == 0 else SLIDING for index in range(num_layers)
    )


def full_before(first: int, kinds: Kinds) -> Kinds:
    """Return the kinds where layers before ``first`` see the whole sequence."""
    return tuple(FULL if index < first else kind for index, kind in enumerate(kinds))


def full_from(first: int, kinds: Kinds) -> Kinds:
    """Return the kinds where layers from ``first`` on see the whole sequence."""
    return tuple(FULL if index >= first else kind for index, kind in enumerate(kinds))


def full_attention_step(kinds: Sequence[str]) -> int | None:
    """Return n where every n-th layer sees all, 0 where none does, None for other patterns."""
    if FULL not in kinds:
        return 0
    step = kinds.index(FULL) + 1
    return step if tuple(kinds) == every_nth_full(len(kinds), step) else None


def wrong_layer_types(
    given: Kinds | None, built: Kinds, window: int | None, reader: str | None
) -> Finding | None:
    """Return why ``layer_types``, or the layers built without it, cannot be or be expressed.

    ``reader`` is the class that goes by its own rule, None where ``layer_types`` is followed.
    """
    kinds = built if given is None else given
    allowed = f"all {FULL}, all {SLIDING}, or every n-th {FULL}"
    if len(kinds) != len(built):
        what = "needs one entry per layer"
        return Finding("layer_types", what, f"{len(kinds)} entries", len(built))
    if unknown := sorted(set(kinds) - {FULL, SLIDING}):
        what = "kinds of layers that are not modelled"
        return Finding("layer_types", what, ", ".join(map(repr, unknown)), allowed)
    if reader and kinds != built:
        what = f"{reader} does not read it and builds other layers"
        return Finding("layer_types", what, _shown(kinds), _shown(built))
    if window and full_attention_step(kinds) is None:
        key = "max_window_layers" if given is None else "layer_types"
        return Finding(key, "a pattern that is not modelled", _shown(kinds), allowed)
    if SLIDING in kinds and not window:
        return Finding("layer_types", f"{SLIDING} without a window", _shown(kinds), FULL)
    return None


def _shown(kinds: Kinds) -> str:
    """Runs of equal layers: ``5 sliding_attention, 1 full_attention, ...``."""
    runs: list[tuple[int, str]] = []
    for kind in kinds:
        count = runs.pop()[0] if runs and runs[-1][1] == kind else 0
        runs.append((count + 1, kind))
    text = ", ".join(f"{count} {kind}" for count, kind in runs[:4])
    return f"{text}, ..." if len(runs) > 4 else text

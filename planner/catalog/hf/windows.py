"""Which layers see a window only: the patterns of ``layer_types`` that a model file can say."""

from collections.abc import Sequence

FULL, SLIDING = "full_attention", "sliding_attention"


def every_nth_full(num_layers: int, step: int) -> tuple[str, ...]:
    """Return the kinds of layers of which every ``step``-th sees the whole sequence."""
    return tuple(SLIDING if (index + 1) % step else FULL for index in range(num_layers))


def full_attention_step(kinds: Sequence[str]) -> int | None:
    """Return n where every n-th layer sees all, 0 where none does, None for other patterns."""
    if FULL not in kinds:
        return 0
    step = kinds.index(FULL) + 1
    return step if tuple(kinds) == every_nth_full(len(kinds), step) else None

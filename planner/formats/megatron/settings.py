"""What Megatron's options of a file say: flags, numbers, words, and the layers of every chunk."""

from planner.formats.megatron.layout import (
    chunks_of,
    even_chunks,
    given_ends,
    parse_layout,
    short_ends,
)
from planner.formats.settings import Settings, given, word

TP = "--tensor-model-parallel-size"
PP = "--pipeline-model-parallel-size"
LAYOUT = "--pipeline-model-parallel-layout"
CHUNK = "--num-layers-per-virtual-pipeline-stage"
CHUNKS = "--num-virtual-stages-per-pipeline-rank"
FIRST = "--decoder-first-pipeline-num-layers"
LAST = "--decoder-last-pipeline-num-layers"
EMBEDDING = "--account-for-embedding-in-pipeline-split"
LOSS = "--account-for-loss-in-pipeline-split"
MTP = "--mtp-num-layers"
MAX_CHUNKS = 10_000


def is_on(settings: Settings, option: str) -> bool:
    """Whether a flag is given."""
    return given(settings, option) is True


def number(settings: Settings, option: str) -> int | None:
    """A whole number; None where it is not given or not known."""
    value = given(settings, option)
    return value if type(value) is int else None


def whole(settings: Settings, option: str, default: int = 1) -> int:
    """A number from 1 on; the default where it is not one."""
    value = number(settings, option)
    return value if value is not None and value >= 1 else default


def fraction(settings: Settings, option: str, default: float) -> float:
    """A number with a point; the default where it is not given or not known."""
    value = given(settings, option)
    return float(value) if isinstance(value, int | float) else default


def names(settings: Settings, option: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Several words; the default where they are not given or not known."""
    value = given(settings, option)
    return tuple(map(str, value)) if isinstance(value, tuple) else default


def chunks_in(settings: Settings) -> tuple[int, ...] | None:
    """Layers of every chunk; None where they do not divide or are not known."""
    pp, num_layers = whole(settings, PP), whole(settings, "--num-layers", 0)
    if pp > MAX_CHUNKS or num_layers > MAX_CHUNKS:
        return None
    layout = word(settings, LAYOUT)
    if layout:
        try:
            stages = chunks_of(parse_layout(layout))
        except ValueError:
            return None
        return stages if len(stages) % pp == 0 else None
    vpp = _virtual_stages(settings, num_layers, pp)
    if not num_layers or vpp is None or pp * vpp > MAX_CHUNKS:
        return None
    first, last = number(settings, FIRST), number(settings, LAST)
    if first is not None or last is not None:
        return given_ends(num_layers, pp, vpp, first=first, last=last)
    embedding, loss = accounted(settings)
    if embedding or loss:
        return short_ends(num_layers, pp, vpp, embedding=embedding, loss=loss)
    return even_chunks(num_layers, pp, vpp)


def accounted(settings: Settings) -> tuple[bool, bool]:
    """Whether embedding and loss count as a layer each."""
    return is_on(settings, EMBEDDING), is_on(settings, LOSS)


def _virtual_stages(settings: Settings, num_layers: int, pp: int) -> int | None:
    """Chunks per stage; None where layers do not divide into chunks of the size given."""
    size = number(settings, CHUNK)
    if size is None:
        return whole(settings, CHUNKS)
    layers = num_layers + sum(accounted(settings))
    if size < 1 or layers % (pp * size):
        return None
    return layers // (pp * size)


def is_even(settings: Settings) -> bool:
    """Nothing makes stages or chunks differ."""
    has_ends = any(number(settings, option) is not None for option in (FIRST, LAST))
    return not word(settings, LAYOUT) and not has_ends and not any(accounted(settings))

"""Values of families.yaml: ``=text`` is computed from the keys of a config, ``{text}`` printed.

Expressions are those of :mod:`planner.expr`, with the functions here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from planner import expr

Value: TypeAlias = Any  # what YAML or JSON holds, or is computed from it
Names: TypeAlias = Mapping[str, Value]
WHEN = "when"  # of a mapping: the condition under which it is there


def activation(name: str) -> str:
    """Return the model file's word for an activation of transformers."""
    if name in ("gelu", "gelu_10", "gelu_python"):
        return "gelu"
    renamed = {"swish": "silu", "relu2": "squared-relu"}
    return "gelu-tanh" if name.startswith("gelu") else renamed.get(name, name)


def mixed_layers(num_layers: int, step: int, dense: Collection[int] | None) -> tuple[int, ...]:
    """Return the layers that are mixtures: every ``step``-th, less the dense ones."""
    left_out = set(dense or ())
    return tuple(index for index in range(step - 1, num_layers, step) if index not in left_out)


def layer_step(mixed: Sequence[int], num_layers: int) -> int:
    """Return how far apart the first two mixed layers are."""
    if len(mixed) > 1:
        return mixed[1] - mixed[0]
    return max(1, num_layers - mixed[0])


def leading_dense(mixed: Sequence[int], num_layers: int) -> int | None:
    """Return the leading dense layers that, with ``layer_step``, give these mixed layers, or None.

    The first mixed layer is the last of its step.
    """
    step = layer_step(mixed, num_layers)
    leading = mixed[0] - step + 1
    is_regular = tuple(mixed) == tuple(range(mixed[0], num_layers, step))
    return leading if leading >= 0 and is_regular else None


def side(size: int | Sequence[int], index: int) -> int:
    """Return one of two sides, or that of a square."""
    return size if isinstance(size, int) else size[index]


FULL, SLIDING = "full_attention", "sliding_attention"
Kinds = tuple[str, ...]  # kind of attention per layer


def every_nth_full(num_layers: int, step: int, one_of_them: int = -1) -> Kinds:
    """Return the kinds of layers of which every ``step``-th sees the whole sequence; 0: none."""
    return tuple(
        FULL if step and (index - one_of_them) % step == 0 else SLIDING
        for index in range(num_layers)
    )


def letters(kinds: Sequence[str | int], words: str, other: str, most: int | None = None) -> str:
    """Return letters of kinds of layers, by words such as ``moe=E``; of further kinds ``other``.

    ``most``: so many of the first layers.
    """
    known = dict(word.split("=") for word in words.split())
    return "".join(known.get(str(kind), other) for kind in kinds[:most])


def full_within(first: int, end: int, kinds: Kinds) -> Kinds:
    """Return the kinds where layers from ``first`` to before ``end`` see the whole sequence."""
    return tuple(FULL if first <= index < end else kind for index, kind in enumerate(kinds))


def divisors(number: int) -> str:
    """Return the divisors of a number in words."""
    # larger numbers of heads are a mistake; looking for their divisors takes long
    if number > 100_000:
        return "its divisors"
    found = (each for each in range(1, number + 1) if number % each == 0)
    return ", ".join(map(str, found))


FUNCTIONS: expr.Functions = {
    "activation": activation,
    "divisors": divisors,
    "every_nth_full": every_nth_full,
    "full_within": full_within,
    "layer_step": layer_step,
    "leading_dense": leading_dense,
    "len": len,
    "letters": letters,
    "mixed_layers": mixed_layers,
    "side": side,
}


def value_of(data: object, names: Names) -> Value:
    """Return data with its expressions computed; a mapping whose ``when`` is false is None.

    What is None is left out of lists. A name that is not among ``names`` raises KeyError, in a
    mapping its key is left out.
    """
    if isinstance(data, Mapping):
        values: dict[str, Value] = {}
        for key in sorted(data, key=lambda key: key != WHEN):
            with suppress(KeyError):
                values[key] = value_of(data[key], names)
                if key == WHEN and not values.pop(WHEN):
                    return None
        return values
    if isinstance(data, list):
        found = [value_of(each, names) for each in data]
        return [value for value in found if value is not None]
    if not isinstance(data, str):
        return data
    known = expr.Names(names.__getitem__, FUNCTIONS)
    return known.value(data[1:]) if data.startswith("=") else known.filled(data)


def plain_names(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of every value that is a name alone, and the name."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from plain_names(value, f"{prefix}{key}.")
        elif (
            key != WHEN
            and isinstance(value, str)
            and value.startswith("=")
            and value[1:].isidentifier()
        ):
            yield prefix + key, value[1:]

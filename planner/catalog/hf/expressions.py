"""Values of families.yaml: ``=text`` is computed from the keys of a config, ``{text}`` printed.

An expression has names, numbers and quoted words, ``+ - * //``, comparisons, ``and or not``,
``a if b else c``, and calls of the functions here. Nothing else is evaluated.
"""

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias

from planner.catalog.hf.windows import every_nth_full, full_before, full_from
from planner.spelling import did_you_mean

Value: TypeAlias = Any
"""What YAML or JSON holds, or is computed from it."""
Names: TypeAlias = Mapping[str, Value]
WHEN = "when"
"""Of a mapping: the condition under which it is there."""
_IN_BRACES = re.compile(r"\{(.+?)\}")
_EXACT_GELU = ("gelu", "gelu_10", "gelu_python")
_RENAMED = {"swish": "silu", "relu2": "squared-relu"}


def activation(name: str) -> str:
    """Return the model file's word for an activation of transformers."""
    if name in _EXACT_GELU:
        return "gelu"
    return "gelu-tanh" if name.startswith("gelu") else _RENAMED.get(name, name)


def mixed_layers(num_layers: int, step: int, dense: Collection[int] | None) -> tuple[int, ...]:
    """Return the layers that are mixtures: every ``step``-th, less the dense ones."""
    left_out = set(dense or ())
    return tuple(index for index in range(step - 1, num_layers, step) if index not in left_out)


def layer_step(mixed: Sequence[int], num_layers: int) -> int:
    """Return how far apart the first two mixed layers are."""
    return mixed[1] - mixed[0] if len(mixed) > 1 else max(1, num_layers - mixed[0])


def leading_dense(mixed: Sequence[int], num_layers: int) -> int | None:
    """Return the leading dense layers that, with ``layer_step``, give these mixed layers, or None.

    The first mixed layer is the last of its step.
    """
    step = layer_step(mixed, num_layers)
    leading = mixed[0] - step + 1
    is_regular = tuple(mixed) == tuple(range(mixed[0], num_layers, step))
    return leading if leading >= 0 and is_regular else None


def height(side: int | Sequence[int]) -> int:
    """Return the first of two sides, or that of a square."""
    return side if isinstance(side, int) else side[0]


def width(side: int | Sequence[int]) -> int:
    """Return the second of two sides, or that of a square."""
    return side if isinstance(side, int) else side[1]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        activation,
        every_nth_full,
        full_before,
        full_from,
        height,
        layer_step,
        leading_dense,
        len,
        mixed_layers,
        width,
    )
}
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda part, whole: part in whole,
}
_FORMS = (
    *_OPERATORS,
    *(ast.And, ast.BoolOp, ast.BinOp, ast.Call, ast.Compare, ast.Constant, ast.IfExp),
    *(ast.Load, ast.Name, ast.Not, ast.Or, ast.UnaryOp),
)


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
    if data.startswith("="):
        return _value(_parsed(data[1:]), names)
    return _IN_BRACES.sub(lambda match: str(_value(_parsed(match[1]), names)), data)


def wrong_expressions(data: object, known: Collection[str], key: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the fault of every expression in data that cannot be computed."""
    if isinstance(data, Mapping):
        for inner, value in data.items():
            yield from wrong_expressions(value, known, f"{key}.{inner}")
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from wrong_expressions(value, known, f"{key}.{index}")
    elif isinstance(data, str):
        texts = [data[1:]] if data.startswith("=") else _IN_BRACES.findall(data)
        for text in texts:
            yield from ((key, fault) for fault in _faults(text, known))


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


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _faults(text: str, known: Collection[str]) -> Iterator[str]:
    try:
        nodes = list(ast.walk(_parsed(text)))
    except SyntaxError as error:
        yield f"not an expression: {error.msg}; given {text!r}"
        return
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, _FORMS) or (isinstance(node, ast.Compare) and len(node.ops) > 1):
            yield f"{type(node).__name__} is not allowed in an expression; given {text!r}"
        elif isinstance(node, ast.Call) and node.keywords:
            yield f"arguments have no names; given {text!r}"
        elif id(node) in called:
            if not isinstance(node, ast.Name) or node.id not in FUNCTIONS:
                allowed = ", ".join(FUNCTIONS)
                yield f"unknown function; given {ast.unparse(node)!r}, allowed are {allowed}"
        elif isinstance(node, ast.Name) and node.id not in known:
            hint = did_you_mean(node.id, known) or f"allowed are {', '.join(known)}"
            yield f"unknown name; given {node.id!r}, {hint}"


def _value(node: ast.expr, names: Names) -> Value:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names[node.id]
        case ast.BoolOp():
            return _chosen(node, names)
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
        case ast.Compare():
            left, right = _value(node.left, names), _value(node.comparators[0], names)
            return _OPERATORS[type(node.ops[0])](left, right)
        case ast.UnaryOp():
            return not _value(node.operand, names)
        case ast.IfExp():
            return _value(node.body if _value(node.test, names) else node.orelse, names)
        case ast.Call(func=ast.Name(id=name)):
            return FUNCTIONS[name](*(_value(each, names) for each in node.args))
    raise TypeError(f"{type(node).__name__} was not refused")


def _chosen(node: ast.BoolOp, names: Names) -> Value:
    """The first value that decides, or the last one."""
    value = None
    for each in node.values:
        value = _value(each, names)
        if bool(value) == isinstance(node.op, ast.Or):
            break
    return value

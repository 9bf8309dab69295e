"""Formulas over columns of strategies, from the nodes of a checked expression.

Arithmetic is on whole numbers up to 2**53. A comparison that divides by zero or grows beyond is
neither true nor false.
"""

import ast
from collections.abc import Callable
from functools import reduce

import numpy as np

from planner.cost.context import Context
from planner.search.space.rule import Columns
from planner.search.space.vocabulary import ALIASES, DERIVED, DIMENSIONS, Dimension
from planner.spelling import did_you_mean
from planner.units import Array

Formula = Callable[[Context | None, Columns], Array]

SHAPE = "allowed are names, whole numbers, + - * // %, comparisons, in, and, or, not"
LISTS = (ast.Tuple, ast.List, ast.Set)
ARITHMETIC: dict[type[ast.operator], np.ufunc] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.remainder,
}
COMPARISONS: dict[type[ast.cmpop], np.ufunc] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_MEMBERSHIP = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_EXACT = 2.0**53
_UNDEFINED = 0.5
"""Truth between false (0) and true (1)."""
_NOUNS: dict[type[ast.expr], str] = {
    ast.BoolOp: "a condition",
    ast.Compare: "a comparison",
    ast.BinOp: "a sum or product",
    ast.UnaryOp: "a negation",
    ast.Call: "a call",
    ast.Attribute: "an attribute (a dot)",
    ast.Subscript: "an index",
    ast.Tuple: "a list",
    ast.List: "a list",
    ast.Set: "a list",
}


def shown(text: str) -> str:
    """Return what a user gave, in quotes and of bearable length."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def hinted(message: str, name: str, known: tuple[str, ...]) -> str:
    """Return the message with the names allowed and the nearest of them."""
    hint = did_you_mean(name, known)
    return f"{message}; allowed are {', '.join(known)}" + (f"; {hint}" if hint else "")


def source_of(node: ast.expr) -> str:
    """Return a node in words: itself where it is short, else what it is."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant):
        return shown(str(node.value))
    return _NOUNS.get(type(node), type(node).__name__)


def words_of(
    name: str, known: tuple[str, ...], operator: ast.cmpop, right: ast.expr
) -> tuple[str, ...]:
    """Return the words a name is compared with; raises ValueError where they are not known."""
    if not isinstance(operator, _MEMBERSHIP):
        raise ValueError(f"{name} has names, not sizes; compare it with ==, != or in")
    is_list = isinstance(operator, ast.In | ast.NotIn)
    words = tuple(_word(node) for node in (_elements(right) if is_list else [right]))
    for word in words:
        if word not in known:
            raise ValueError(hinted(f"{name} cannot be {shown(word)}", word, known))
    return words


def truth_of(node: ast.expr) -> Formula:
    """Return the formula: 1 where the node is true, 0 where false, a half where undefined.

    Raises ValueError where the node is no condition.
    """
    if isinstance(node, ast.BoolOp):
        parts = [truth_of(value) for value in node.values]
        return all_of(parts) if isinstance(node.op, ast.And) else _any_of(parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _not(truth_of(node.operand))
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        return all_of([_compared(*pair) for pair in pairs])
    raise ValueError(f"{source_of(node)} is no condition; compare it, such as tp<=8")


def all_of(parts: list[Formula]) -> Formula:
    """Return the formula that is as true as the least true part."""
    return lambda context, columns: reduce(np.minimum, (part(context, columns) for part in parts))


def _any_of(parts: list[Formula]) -> Formula:
    return lambda context, columns: reduce(np.maximum, (part(context, columns) for part in parts))


def _not(part: Formula) -> Formula:
    return lambda context, columns: 1.0 - part(context, columns)


def _word(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return str(node.value) if isinstance(node, ast.Constant) else source_of(node)


def _elements(node: ast.expr) -> list[ast.expr]:
    elements = node.elts if isinstance(node, LISTS) else [node]
    if not elements:
        raise ValueError("an empty list allows nothing; name what is allowed")
    return elements


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Formula:
    if isinstance(operator, ast.Eq | ast.NotEq) and _named(left) is None and _named(right):
        left, right = right, left
    dimension = _named(left)
    if dimension is not None:
        return _is_word(dimension, operator, right)
    if isinstance(operator, ast.In | ast.NotIn):
        value = _number(left)
        among = _any_of([_pair(np.equal, value, _number(node)) for node in _elements(right)])
        return among if isinstance(operator, ast.In) else _not(among)
    return _pair(COMPARISONS[type(operator)], _number(left), _number(right))


def _named(node: ast.expr) -> Dimension | None:
    """The dimension whose values are names, if the node is one."""
    name = ALIASES.get(node.id, node.id) if isinstance(node, ast.Name) else ""
    dimension = DIMENSIONS.get(name)
    return dimension if dimension and dimension.words else None


def _is_word(dimension: Dimension, operator: ast.cmpop, right: ast.expr) -> Formula:
    words = words_of(dimension.name, tuple(dimension.words), operator, right)
    codes = [dimension.words[word] for word in words]
    inverted = isinstance(operator, ast.NotEq | ast.NotIn)
    return lambda _, columns: np.isin(columns[dimension.name], codes, invert=inverted).astype(float)


def _pair(compare: np.ufunc, left: Formula, right: Formula) -> Formula:
    def truth(context: Context | None, columns: Columns) -> Array:
        first, second = left(context, columns), right(context, columns)
        return np.where(np.isnan(first + second), _UNDEFINED, compare(first, second))

    return truth


def _number(node: ast.expr) -> Formula:
    """Whole numbers, NaN where a zero divides or 2**53 is passed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        literal = np.array(float(node.value))
        return lambda _, __: literal
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _number(node.operand)
        return lambda context, columns: -operand(context, columns)
    if isinstance(node, ast.BinOp):
        return _computed(ARITHMETIC[type(node.op)], _number(node.left), _number(node.right))
    if isinstance(node, ast.Name):
        return _numbers_of(ALIASES.get(node.id, node.id))
    raise ValueError(f"{source_of(node)} is no number; {SHAPE}")


def _computed(compute: np.ufunc, left: Formula, right: Formula) -> Formula:
    def number(context: Context | None, columns: Columns) -> Array:
        result = compute(left(context, columns), right(context, columns))
        return np.where(np.abs(result) <= _EXACT, result, np.nan)

    return number


def _numbers_of(name: str) -> Formula:
    """The column of a dimension, or what follows from several."""
    if name in DERIVED:
        return _DERIVED_FORMULAS[name]
    dimension = DIMENSIONS.get(name)
    if dimension is None or dimension.words:
        raise ValueError(f"{name} is no number; words go with ==, != or in, as in schedule == 1f1b")
    return _column(name)


def _column(name: str) -> Formula:
    return lambda _, columns: np.asarray(columns[name], dtype=np.float64)


def _num_micro_batches(context: Context | None, columns: Columns) -> Array:
    assert context is not None
    ranks = _column("dp")(context, columns) * _column("micro_batch")(context, columns)
    return np.asarray(context.job.global_batch // ranks)


_DERIVED_FORMULAS: dict[str, Formula] = {
    "gpus": lambda _, columns: reduce(
        np.multiply, (_column(name)(None, columns) for name in DERIVED["gpus"])
    ),
    "dp_shard": _computed(np.floor_divide, _column("dp"), _column("dp_replicate")),
    "num_micro_batches": _num_micro_batches,
}

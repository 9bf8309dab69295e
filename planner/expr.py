"""Expressions in texts of users and of data files: parsed, checked, computed, never run as Python.

One language for all: names, with dots where they are parts of something, and Python's operators on
plain values and on columns of NumPy. Which names and functions there are comes from the caller.

A column of floats holds whole numbers up to 2**53. What divides by zero or grows beyond is NaN, and
a comparison with it neither true (1) nor false (0), but a half, which ``not`` leaves as it is.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from operator import itemgetter
from string import Formatter
from typing import Any, TypeAlias

import numpy as np

from planner.errors import did_you_mean
from planner.limits import MAX_CONDITION_CHARACTERS, MAX_CONDITION_DEPTH

Value: TypeAlias = Any  # plain, or a column
Functions: TypeAlias = Mapping[str, Callable[..., Any]]


def _is_of_floats(value: Value) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", "") == "f"


def _exact(compute: Callable[..., Value], left: Value, right: Value) -> Value:
    result = compute(left, right)
    if not _is_of_floats(result):
        return result
    return np.where(np.abs(result) <= 2.0**53, result, np.nan)


def _compared(compare: Callable[..., Value], left: Value, right: Value) -> Value:
    truth = compare(left, right)
    if not (_is_of_floats(left) or _is_of_floats(right)):
        return truth
    return np.where(np.isnan(left + right), 0.5, truth)


def _joined(values: Iterator[Value], *, join: Callable[..., Value], until: bool) -> Value:
    """Truths joined as Python does; columns row by row, but where a plain value decides."""
    joined = None
    for value in values:
        if isinstance(value, np.ndarray):
            joined = join(joined, value) if isinstance(joined, np.ndarray) else value
        elif bool(value) == until:
            return value
        elif not isinstance(joined, np.ndarray):
            joined = value
    return joined


def _negated(value: Value) -> Value:
    if not isinstance(value, np.ndarray):
        return not value
    return 1.0 - value if _is_of_floats(value) else ~value


def _among(value: Value, allowed: Collection[Value]) -> Value:
    if not isinstance(value, np.ndarray):
        return value in allowed
    found = (_compared(operator.eq, value, each) for each in allowed)
    return reduce(np.maximum, found, np.zeros(value.shape, dtype=bool))


# By the class of ast's operator; those of `and` and `or` get an iterator over the values, so that
# they need not compute all of them.
OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.And: partial(_joined, join=np.minimum, until=False),
    ast.Or: partial(_joined, join=np.maximum, until=True),
    ast.Not: _negated,
    ast.USub: operator.neg,
    ast.Add: partial(_exact, operator.add),
    ast.Sub: partial(_exact, operator.sub),
    ast.Mult: partial(_exact, operator.mul),
    ast.FloorDiv: partial(_exact, operator.floordiv),
    ast.Mod: partial(_exact, operator.mod),
    ast.Eq: partial(_compared, operator.eq),
    ast.NotEq: partial(_compared, operator.ne),
    ast.Lt: partial(_compared, operator.lt),
    ast.LtE: partial(_compared, operator.le),
    ast.Gt: partial(_compared, operator.gt),
    ast.GtE: partial(_compared, operator.ge),
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: _among,
    ast.NotIn: lambda value, allowed: _negated(_among(value, allowed)),
}


@dataclass(frozen=True, kw_only=True)
class Language:
    """Elements of expressions of one kind, besides names and constants."""

    forms: tuple[type[ast.expr], ...] = (ast.IfExp, ast.Tuple)  # of nodes without an operator
    allowed: str = "names, constants, + - * // %, == != < <= > >=, is, in, and, or, not, if, calls"
    functions: Functions = field(default_factory=dict)
    without: tuple[type[ast.AST], ...] = ()  # operators

    def allows(self, node: ast.expr) -> bool:
        """Return True if a node may be part of an expression, whatever its contents."""
        match node:
            case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.BoolOp(op=op):
                return type(op) in OPERATIONS
            case ast.Compare(ops=ops):
                return OPERATIONS.keys() - self.without >= set(map(type, ops))
            case ast.Call(keywords=keywords):
                return bool(self.functions) and not keywords
        return isinstance(node, (ast.Name, ast.Constant, *self.forms))


class _Dotted(ast.NodeTransformer):
    """Makes one name of a dotted one."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.Name:
        return ast.Name(ast.unparse(node))


def own_tree(text: str) -> ast.expr:
    """Return the tree of an expression, to be changed by who asks; ValueError where it is none."""
    if len(text) > MAX_CONDITION_CHARACTERS:
        message = f"must be at most {MAX_CONDITION_CHARACTERS} characters; given {len(text)}"
        raise ValueError(message)
    try:
        with warnings.catch_warnings():
            # `1or 2` is a warning today and an error tomorrow
            warnings.simplefilter("error")
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"is no expression: {reason}") from None
    except (RecursionError, MemoryError, Warning):
        raise ValueError("is no expression that can be read") from None
    level: list[ast.AST] = [tree]
    for _ in range(MAX_CONDITION_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            found: ast.expr = _Dotted().visit(tree)
            return found
    raise ValueError(f"is nested too deeply; at most {MAX_CONDITION_DEPTH} levels are allowed")


parsed = lru_cache(maxsize=2048)(own_tree)  # the same tree for the same text: nobody changes it


def names_in(tree: ast.expr) -> list[str]:
    """Return the names in a tree, each once."""
    return list(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))


def faults(tree: ast.expr, language: Language, known: Collection[str]) -> Iterator[str]:
    """Yield all that is wrong with a tree: parts and functions not allowed, names not ``known``."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    for node in called if language.functions else ():
        if not isinstance(node, ast.Name) or node.id not in language.functions:
            allowed = ", ".join(language.functions)
            yield f"unknown function {ast.unparse(node)!r}; allowed are {allowed}"
    for node in nodes:
        if not language.allows(node):
            yield f"{ast.unparse(node)} is not allowed; allowed are {language.allowed}"
        elif isinstance(node, ast.Name) and node not in called and node.id not in known:
            hint = did_you_mean(node.id, known)
            yield f"unknown name {node.id!r}; allowed are {', '.join(known)}; {hint}".rstrip("; ")


@lru_cache(maxsize=4096)  # a tree is asked for with every set of columns
def _computation(node: ast.expr) -> Callable[["Names"], Value]:
    """A tree without faults as a function of names."""
    match node:
        case ast.Constant(value=value):
            return lambda _names: value
        case ast.Name(id=name):
            return itemgetter(name)
        case ast.BoolOp(op=op, values=values):
            join = OPERATIONS[type(op)]
            parts = [*map(_computation, values)]
            return lambda names: join(part(names) for part in parts)
        case ast.UnaryOp(op=op, operand=operand):
            compute = OPERATIONS[type(op)]
            of = _computation(operand)
            return lambda names: compute(of(names))
        case (
            ast.BinOp(left=left, op=op, right=right)
            | ast.Compare(left=left, ops=[op], comparators=[right])
        ):
            compute = OPERATIONS[type(op)]
            first, second = map(_computation, (left, right))
            return lambda names: compute(first(names), second(names))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            triples = zip([left, *rest], ops, rest, strict=False)
            pairs = [ast.Compare(left, [op], [right]) for left, op, right in triples]
            return _computation(ast.BoolOp(ast.And(), [*pairs]))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            is_so, then, otherwise = map(_computation, (test, body, orelse))
            return lambda names: (then if is_so(names) else otherwise)(names)
        case ast.Call(func=ast.Name(id=name), args=args):
            given = _computation(ast.List(args))
            return lambda names: names.functions[name](*given(names))
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            parts = [*map(_computation, elements)]
            return lambda names: [part(names) for part in parts]
    raise TypeError(f"{type(node).__name__} was not refused")


def computed(node: ast.expr, names: "Names") -> Value:
    """Return the value of a tree that changes no more; a name that is not there raises KeyError."""
    return _computation(node)(names)


def part_of(owner: object, name: str) -> Value:
    """Return a part of something by its dotted name; of what is none every part is none."""
    parts = name.split(".")
    return reduce(lambda part, each: None if part is None else getattr(part, each), parts, owner)


class Names(dict[str, Any]):
    """Names in expressions, looked up when needed: own values, a ``table``'s, else ``ask``'s."""

    def __init__(
        self,
        ask: Callable[[str], Any],
        functions: Functions,
        table: Mapping[str, str] | None = None,
        **own: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(own)
        self.ask, self.functions, self.table = ask, functions, table or {}

    def __missing__(self, name: str) -> Value:
        """The value of a name, asked for once it is needed."""
        return self.value(self.table[name]) if name in self.table else self.ask(name)

    def value(self, expression: object) -> Value:
        """Evaluate an expression."""
        return computed(parsed(str(expression)), self)

    def filled(self, text: str) -> str:
        """Format a text whose braces hold expressions."""
        return _Filled().vformat(text, (), self)

    def texts_that_hold(self, conditions: Mapping[str, object]) -> Iterator[str]:
        """Yield the texts whose conditions hold, formatted."""
        return (self.filled(text) for text, each in conditions.items() if self.value(each))


class _Filled(Formatter):
    """Format strings whose fields are expressions; a tuple is listed."""

    def get_field(self, field_name: str, _args: object, names: Any) -> Any:  # noqa: ANN401
        """The value of a field."""
        return names.value(field_name), field_name

    def format_field(self, value: object, format_spec: str) -> str:
        """Format one field."""
        if isinstance(value, tuple):
            value = ", ".join(map(str, value)) or "none"
        return str(super().format_field(value, format_spec))

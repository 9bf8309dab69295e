"""Expressions in texts of users and of data files: parsed, checked, computed, never run as Python.

What an expression may hold, its names and its functions come from the caller, and so does what its
operators compute: plain values or columns of NumPy.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from planner.errors import did_you_mean
from planner.limits import MAX_CONDITION_CHARACTERS, MAX_CONDITION_DEPTH


@dataclass(frozen=True, kw_only=True)
class Language:
    """Elements of expressions of one kind, besides names and constants."""

    # By the class of ast's operator; those of `and` and `or` get an iterator over the values, so
    # that they need not compute all of them.
    operations: Mapping[type[ast.AST], Callable[..., Any]]
    forms: tuple[type[ast.expr], ...]  # of nodes without an operator
    allowed: str  # in words
    constants: tuple[type, ...] = ()  # empty: any
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def allows(self, node: ast.expr) -> bool:
        """Return True if a node may be part of an expression, whatever its contents."""
        match node:
            case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.BoolOp(op=op):
                return type(op) in self.operations
            case ast.Compare(ops=ops):
                return all(type(op) in self.operations for op in ops)
            case ast.Constant(value=value):
                return not self.constants or type(value) in self.constants
            case ast.Call(keywords=keywords):
                return bool(self.functions) and not keywords
        return isinstance(node, (ast.Name, *self.forms))


def _last_of(values: Iterator[Any], *, until: bool) -> Any:  # noqa: ANN401
    """The first value that is as true as ``until``, or the last one."""
    value = None
    for value in values:
        if bool(value) == until:
            break
    return value


# Of our own data files: values and conditions, as Python computes them.
OF_DATA = Language(
    operations={
        ast.And: partial(_last_of, until=False),
        ast.Or: partial(_last_of, until=True),
        ast.Not: operator.not_,
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.USub: operator.neg,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.Is: operator.is_,
        ast.IsNot: operator.is_not,
        ast.In: lambda part, whole: part in whole,
        ast.NotIn: lambda part, whole: part not in whole,
    },
    forms=(ast.IfExp, ast.Tuple),
    allowed="names, constants, + - * // %, == != < <= >, is, in, and, or, not, if, calls",
)


@lru_cache(maxsize=2048)
def parsed(text: str) -> ast.expr:
    """Return the tree of an expression; raises ValueError where it is none, or too large."""
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
            return tree
    raise ValueError(f"is nested too deeply; at most {MAX_CONDITION_DEPTH} levels are allowed")


def names_in(tree: ast.expr) -> list[str]:
    """Return the names in a tree, each once."""
    found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(found))


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


def computed(node: ast.expr, names: Mapping[str, Any], language: Language) -> Any:  # noqa: ANN401
    """Return the value of a tree without faults; a name that ``names`` lacks raises KeyError."""
    of, operations = partial(computed, names=names, language=language), language.operations
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.BoolOp(op=op, values=values):
            return operations[type(op)](map(of, values))
        case ast.UnaryOp(op=op, operand=operand):
            return operations[type(op)](of(operand))
        case ast.BinOp(left=left, op=op, right=right):
            return operations[type(op)](of(left), of(right))
        case ast.Compare(left=first, ops=ops, comparators=rest):
            operands = zip([first, *rest], ops, rest, strict=False)
            pairs = (operations[type(op)](of(left), of(right)) for left, op, right in operands)
            return operations[ast.And](pairs)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return of(body if of(test) else orelse)
        case ast.Call(func=ast.Name(id=name), args=args):
            return language.functions[name](*map(of, args))
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return list(map(of, elements))
    raise TypeError(f"{type(node).__name__} was not refused")
